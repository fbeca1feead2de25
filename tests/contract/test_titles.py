"""A system is called the same where it is real and where it is simulated."""

import pytest

from tests.helpers.needs import needs

needs("torch")

from binsgdm import BinSGDM
from binsgdm.compressors.registry import BUILT_IN
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from simnet.strategies import STRATEGIES


@pytest.mark.parametrize(
    ("name", "real"),
    [
        *((system.name, system) for system in BUILT_IN if system.name != "dense"),
        ("binsgdm", BinSGDM),
        ("one_bit_adam", OneBitAdam),
    ],
)
def test_a_system_has_one_title(name: str, real: type) -> None:
    simulated = {strategy.__struct_config__.tag: strategy.title for strategy in STRATEGIES}
    assert simulated[name] == real.title
