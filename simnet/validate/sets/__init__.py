"""The validation sets, each one file that reads like its description."""

from collections.abc import Callable
from importlib import import_module
from typing import cast

from simnet.errors import SimnetError, nearest
from simnet.validate.measurements import Measurements
from simnet.validate.outcome import Outcome

NAMES = (
    "hkbu_bsp",
    "hkbu_overlap",
    "one_bit_table1",
    "one_bit_fig5a",
    "end_to_end",
    "binsgdm_band",
    "one_bit_dense",
    "one_bit_speedup",
    "one_bit_fig9",
    "one_bit_compute",
    "hkbu_one_node",
    "pytorch_ddp",
    "nccl_tests",
)
"""In the order of the report: sets with a target first."""


def run(name: str, rows: Measurements, *, alternatives: bool = False) -> Outcome:
    """Fit and predict one set.

    Args:
        name: one of `NAMES`.
        rows: the published measurements.
        alternatives: also work out the other ways to model the same rows, which takes longer.

    Raises:
        SimnetError: there is no such set.
    """
    check(name)
    function = cast("Callable[..., Outcome]", import_module(f"simnet.validate.sets.{name}").run)
    return function(rows, alternatives=alternatives)


def check(name: str) -> None:
    """Check that there is a set of this name.

    Raises:
        SimnetError: there is none.
    """
    if name not in NAMES:
        raise SimnetError(f"--set: {name!r}: unknown set.{nearest(name, NAMES)}")
