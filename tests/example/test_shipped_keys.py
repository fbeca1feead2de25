"""Shipped experiments show every key of faults, of a run and of strategies: what no experiment shows, nobody finds."""

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Struct

from simnet.cluster.hardware import FAULTS
from simnet.cluster.kernel_times import HostCost, KernelTime
from simnet.core import files
from simnet.engine.scenario import RunSettings
from simnet.strategies import STRATEGIES

STRUCTS: list[type[Struct]] = [*FAULTS.built_in(), *STRATEGIES.built_in(), RunSettings, HostCost, KernelTime]
# A recorded step is a file of the user.
NOT_SHOWN = {"recorded"}


def tables(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every table of a file."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from tables(inner)


SHIPPED = [tomllib.loads(files.locate("experiments", name).read_text()) for name in files.names("experiments")]
SHOWN = {key for whole in SHIPPED for table in tables(whole) for key in table}
SHOWN |= {key.rpartition(".")[2] for whole in SHIPPED for key in whole.get("sweep", {})}


@pytest.mark.parametrize(
    "struct", [one for one in STRUCTS if one.__struct_config__.tag not in NOT_SHOWN], ids=lambda one: one.__name__
)
def test_every_key_is_shown(struct: type[Struct]) -> None:
    assert set(struct.__struct_encode_fields__) - SHOWN == set()
