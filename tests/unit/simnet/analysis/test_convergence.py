"""Measured convergence: what a file must hold, and what is read from a curve."""

import pytest

from simnet.analysis.convergence import check_same_task, load, published_of
from tests.helpers.refusals import refused
from tests.helpers.time_to_target_samples import STEPS, SYSTEMS, scenario, write_trainings

QUICK = SYSTEMS["quick"]["title"]
RANDOM = {"kind": "binsgdm", "rounding": "random"}


def curves(*changes: dict) -> dict:
    curve = {"system": "dense", "ranks": 4, "seed": 9, "steps": list(STEPS), "values": [4.0, 3.0, 2.0, 1.0]}
    return {"curves": [curve | change for change in changes]}


def dense(**changes) -> dict:
    return {"systems": {**SYSTEMS, "dense": {**SYSTEMS["dense"], **changes}}}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": "other"}, "format: 'other': unknown. Known: simnet-convergence"),
        ({"version": 1}, "version: 1: must be 2, in which binsgdm without rounding is of the default one; write 2"),
        ({"better": "greater"}, "better: 'greater': unknown"),
        ({"batch": 0}, "batch: 0: must be"),
        ({"batch": 10**300}, "must be a whole number of at least 1, at most 1000000000"),
        ({"target": float("nan")}, "target: nan: must be finite"),
        ({"target": 10**400}, "t.json: target: a whole number of more than 300 digits"),
        ({"target": 1e300}, "target: 1e+300: must be a number of at least -1e+100, at most 1e+100"),
        ({"metrics": "loss"}, "unknown key 'metrics'. Did you mean 'metric'?"),
        (dense(strategy={"kind": "qsdg"}), "'qsdg': unknown strategy. Did you mean 'qsgd'"),
        (dense(strategy={"kind": "qsgd", "bits": 77}), "bits: 77: must be"),
        (dense(title=" "), "systems.dense.title: ' ': must not"),
        (dense(title=QUICK), f"systems.quick.title: {QUICK!r}: is also that of 'dense'"),
        ({"systems": {"quick": SYSTEMS["quick"]}, "curves": []}, "none without compression"),
        (
            {"systems": {**SYSTEMS, "b": {"title": "B", "strategy": RANDOM, "settings": {"rounding": "shaped"}}}},
            "systems.b.strategy.rounding: 'random': settings.rounding is 'shaped': must be the same",
        ),
        ({"curves": 3}, "curves: 3: write a list"),
        (curves({"system": "nobody"}), "curves.0.system: 'nobody': not among systems"),
        (curves({}, {}), "curves.1: a second curve of ('dense', 4, 9)"),
        (curves({"steps": [10, 20]}), "steps: 2 for 4 values: must be as many"),
        (curves({"steps": [], "values": []}), "steps: 0 for 0 values"),
        (curves({"steps": [10, 20, 20, 30]}), "steps: must ascend"),
        (curves({"values": [4.0, 3.0, 2.0, "x"]}), "'x': write a number"),
        (curves({"values": [4.0, 3.0, 2.0, float("inf")]}), "must be finite"),
        (curves({"values": [10**400, 3.0, 2.0, 1.0]}), "curves.0.values.0: a whole number of more"),
        (curves({}, {"seed": 1, "steps": [1, 2, 3, 4]}), "seeds with different steps"),
        (curves({"accuracy": [0.5]}), "curves.0.accuracy: 1 for 4 steps: must be as many, or none; add them"),
    ],
)
def test_a_file_that_does_not_hold_together_is_refused_in_one_sentence(changes, said, tmp_path):
    path = write_trainings(tmp_path / "t.json", **changes)
    with refused(said, start=path):
        load(str(path))


def test_curves_of_another_or_an_unknown_model_are_refused(tmp_path):
    path = write_trainings(tmp_path / "t.json", num_parameters=None)
    with refused("num_parameters: missing: ", " of 10,000,000 parameters; add --same-task"):
        check_same_task(load(str(path)), scenario())
    for name in ("characters", "digits", "mnist_5k"):
        trainings = load(name)
        assert 1e3 < trainings.num_parameters < 1e6
        with refused("must be of the model that is simulated"):
            check_same_task(trainings, scenario())


def test_what_is_published_of_others_is_left_out() -> None:
    assert published_of({"binsgdm"}) == ()
    assert all("diloco" in record.kinds for record in published_of({"diloco"}))
