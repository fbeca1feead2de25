"""BinSGDM against Adam in training: what was run as defaults are those of today."""

import inspect

from tests.helpers.needs import needs

needs("torch", "sklearn")

import binsgdm
from binsgdm.optimizers.settings import usual_gain
from evidence.studies.margins import DEFAULT_SETTINGS


def test_what_was_run_as_defaults_are_the_defaults() -> None:
    signature = inspect.signature(binsgdm.BinSGDM).parameters
    settings = {name: value for name, value in DEFAULT_SETTINGS.items() if name != "optimizer"}
    # On 4 ranks; on 16 the default has grown since, of which the page says.
    usual = {"gain": usual_gain(4)}
    assert settings == {name: signature[name].default for name in settings} | usual
    assert {*settings, "lr", "weight_decay", "maximize", "seed", "kernels"} == {*signature} - {"params"}
