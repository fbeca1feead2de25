"""BinSGDM against Adam in training: what was run as defaults are those of today."""

import inspect

from tests.helpers.needs import needs

needs("torch", "sklearn")

import binsgdm
from studies.margins import DEFAULT_SETTINGS


def test_what_was_run_as_defaults_are_the_defaults() -> None:
    signature = inspect.signature(binsgdm.BinSGDM).parameters
    settings = {name: value for name, value in DEFAULT_SETTINGS.items() if name != "optimizer"}
    assert settings == {name: signature[name].default for name in settings}
    assert {*settings, "lr", "weight_decay", "maximize", "seed", "kernels"} == {*signature} - {"params"}
