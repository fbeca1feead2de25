"""Settings of DiLoCo: what is refused, and what short names stand for."""

import pytest

from tests.helpers.needs import needs

needs("torch")

from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.outer_settings import OuterSettings


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"inner_steps": 0}, "inner_steps: 0: must be a whole number from 1 on"),
        ({"outer_lr": 0}, "outer_lr: 0: must be a number above 0"),
        ({"outer_momentum": 1}, r"outer_momentum: 1: must be a number in \[0, 1\)"),
        ({"outer_momentum": 0}, "nesterov: True without outer_momentum: has no effect"),
        ({"inner_steps": 4, "fragments": 3}, r"fragments: 3: must divide inner_steps \(4\)"),
        ({"inner_steps": 4, "fragments": 2, "overlap_steps": 2}, "overlap_steps: 2: must be below"),
        ({"local_share": 0.5}, "local_share: 0.5: has no effect with overlap_steps=0"),
        ({"overlap_steps": 1, "local_share": 2}, r"local_share: 2: must be a number in \[0, 1\]"),
        ({"exchange": "int4"}, "exchange: 'int4': unknown; give one of fp32, bf16, int8"),
        ({"exchange": "fp32", "options": {"bits": 4}}, "bits: an option of a system: has no effect"),
        ({"exchange": "int8", "options": {"bits": 4}}, "byte_grad: bits: unknown option"),
        (
            {"exchange": "qsgd", "options": {"topology": "hierarchical"}},
            "topology: 'hierarchical': averages in the node",
        ),
        ({"workers": "gpu"}, "workers: 'gpu': must be one of"),
        ({"seed": -1}, "seed: -1: must be a whole number"),
        ({"nesterov": 1}, "nesterov: 1: must be one of"),
    ],
)
def test_what_cannot_be_or_has_no_effect_is_refused(given, text):
    with pytest.raises(BinsgdmError, match=text):
        OuterSettings(**given)
