"""Measured convergence: what a file must hold, and what is read from a curve."""

import pytest

from simnet.analysis.convergence import load
from simnet.core.errors import SimnetError
from tests.helpers.time_to_target_samples import STEPS, SYSTEMS, write_trainings

SHAPED = {"rounding": "shaped"}
RANDOM = {"kind": "binsgdm", "rounding": "random"}


def curve(**changes) -> dict:
    return {"system": "dense", "ranks": 4, "seed": 9, "steps": list(STEPS), "values": [4.0, 3.0, 2.0, 1.0], **changes}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "other"}, "format: 'other': unknown. Known: simnet-convergence"),
        (
            {"version": 1},
            "version: 1: must be 2, in which binsgdm without rounding is of the default one; write 2",
        ),
        ({"better": "greater"}, "better: 'greater': unknown"),
        ({"batch": 0}, "batch: 0: must be"),
        ({"target": float("nan")}, "target: nan: must be finite"),
        ({"metrics": "loss"}, "unknown key 'metrics'. Did you mean 'metric'?"),
        (
            {"systems": {"dense": {"title": "x", "strategy": {"kind": "qsdg"}}}},
            "'qsdg': unknown strategy. Did you mean 'qsgd'",
        ),
        ({"systems": {"dense": {"title": "x", "strategy": {"kind": "qsgd", "bits": 77}}}}, "bits: 77: must be"),
        ({"systems": {"quick": SYSTEMS["quick"]}, "curves": []}, "none without compression"),
        ({"curves": [curve(system="nobody")]}, "curves.0.system: 'nobody': not among systems"),
        ({"curves": [curve(), curve()]}, "curves.1: a second curve of ('dense', 4, 9)"),
        ({"curves": [curve(steps=[10, 20])]}, "steps: 2 for 4 values: must be as many"),
        ({"curves": [curve(steps=[], values=[])]}, "steps: 0 for 0 values"),
        ({"curves": [curve(steps=[10, 20, 20, 30])]}, "steps: must ascend"),
        ({"curves": [curve(values=[4.0, 3.0, 2.0, "x"])]}, "'x': write a number"),
        ({"curves": [curve(values=[4.0, 3.0, 2.0, float("inf")])]}, "must be finite"),
        ({"curves": [curve(), curve(seed=1, steps=[1, 2, 3, 4])]}, "seeds with different steps"),
        ({"curves": 3}, "curves: 3: write a list"),
        ({"target": 10**400}, "t.json: target: a whole number of more than 300 digits"),
        ({"target": 1e300}, "target: 1e+300: must be a number of at least -1e+100, at most 1e+100"),
        ({"batch": 10**300}, "must be a whole number of at least 1, at most 1000000000"),
        ({"curves": [curve(values=[10**400, 3.0, 2.0, 1.0])]}, "curves.0.values.0: a whole number of more"),
        ({"curves": [curve(accuracy=[0.5])]}, "curves.0.accuracy: 1 for 4 steps: must be as many, or none; add them"),
        ({"systems": {**SYSTEMS, "dense": {**SYSTEMS["dense"], "title": " "}}}, "systems.dense.title: ' ': must not"),
        (
            {"systems": {**SYSTEMS, "quick": {**SYSTEMS["quick"], "title": "DDP fp32"}}},
            "systems.quick.title: 'DDP fp32': is also that of 'dense'",
        ),
        (
            {"systems": {**SYSTEMS, "b": {"title": "B", "strategy": RANDOM, "settings": SHAPED}}},
            "systems.b.strategy.rounding: 'random': settings.rounding is 'shaped': must be the same",
        ),
    ],
)
def test_a_file_that_does_not_hold_together_is_refused_in_one_sentence(changes, said, tmp_path):
    path = write_trainings(tmp_path / "t.json", **changes)
    with pytest.raises(SimnetError) as caught:
        load(str(path))
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
