"""Work without a time: priced by the cluster's GPU, with its interval."""

import math

import pytest

from simnet.cluster.hardware import Calibration
from simnet.engine import intervals, scenario
from simnet.workload import roofline, training_step
from simnet.workload.workload import Gradient, Work, Workload
from tests.helpers.refusals import refused
from tests.helpers.topologies import cluster

WORK = Work(
    forward_flops=1e12, backward_flops=2e12, forward_bytes=3e9, backward_bytes=6e9, optimizer="adam", precision="bf16"
)
TENSORS = (Gradient(shape=(1000, 1000), count=10),)
CONVOLVED = (Gradient(shape=(1000, 100, 3, 3), backward_share=3.0), Gradient(shape=(1000, 1000)))


def resolve(work: Workload, gpu: str = "A100-80GB", calibration: Calibration | None = None) -> training_step.Step:
    return training_step.resolve(work, cluster(2, 2, gpu=gpu), calibration or Calibration())


def workload(**changes) -> Workload:
    return Workload(**{"tensors": TENSORS, "work": WORK, "batch_per_rank": 4, **changes})


def test_convolutions_are_known_by_the_shapes_of_gradients() -> None:
    times = [resolve(workload(tensors=tensors)).forward_s for tensors in (TENSORS, CONVOLVED)]
    every = roofline.attainments()
    assert times[1] / times[0] == pytest.approx(every.products.share / every.convolutions.share)
    experts = resolve(workload(tensors=(Gradient(shape=(8, 1000, 4000)),))).forward_s
    assert experts == times[0], "matrices of experts, stacked"
    unknown = resolve(workload(tensors=(Gradient(num_elements=100),))).forward_s
    assert unknown / times[0] == pytest.approx(every.products.share / every.either.share)


def test_the_format_of_the_workload_replaces_that_of_the_work() -> None:
    plain_format, cast, wide = (resolve(workload(precision=precision)) for precision in ("", "amp", "tf32"))
    assert cast.forward_s == plain_format.forward_s
    assert " in fp16: " in cast.notes[0]
    share = roofline.attainments().products.share
    assert wide.forward_s == pytest.approx(4 * (1e12 / 156e12 + 2 * 3e9 / 2039e9) / share)
    plain = training_step.compute_interval(workload(precision="fp32"), cluster(2, 2, gpu="T4"))
    assert plain == roofline.attainments().plain.factors


NO_TIME = "no compute time; give forward, backward and optimizer, or compute rows, or work"


@pytest.mark.parametrize(
    ("changes", "gpu", "said"),
    [
        ({}, "", "cluster.gpu: '': workload has work, which is priced for a GPU; name one of: simnet show gpus"),
        ({}, "H10-80GB", "cluster.gpu: 'H10-80GB': unknown GPU. Did you mean 'H100-80GB'?"),
        ({}, "V100-32GB", "workload.work.precision: 'bf16': V100-32GB has no peak in it: it has fp32, fp16; "),
        ({"work": None}, "H200", NO_TIME),
        ({"precision": "tf32"}, "T4", "workload.precision: 'tf32': T4 has no peak in it: it has fp32, fp16; "),
        ({"precision": "int8"}, "H200", "workload.precision: 'int8': no roofline knows it; give one of fp32, "),
    ],
)
def test_what_cannot_be_priced_is_refused_in_a_sentence(changes: dict[str, object], gpu: str, said: str) -> None:
    with refused(said):
        resolve(workload(**changes), gpu)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"forward_flops": 0.0, "forward_bytes": 0.0}, "forward_flops: 0, with no forward_bytes: must be above 0"),
        ({"forward_flops": math.nan}, "work.forward_flops: nan: must be finite"),
        ({"backward_bytes": 1e30}, "work.backward_bytes: 1e+30: must be a number of at least 0, at most"),
        ({"backward_flops": -1.0}, "work.backward_flops: -1.0: must be a number of at least 0"),
        ({"precision": "fp7"}, "work.precision: 'fp7': unknown. Did you mean"),
        ({"optimizer": "lion"}, "work.optimizer: 'lion': unknown"),
    ],
)
def test_wrong_work_is_refused_where_it_stands(change: dict[str, object], said: str) -> None:
    with refused(said):
        in_a_scenario(**change)


def in_a_scenario(**change: object) -> scenario.Scenario:
    table = {key: getattr(WORK, key) for key in WORK.__struct_fields__}
    return scenario.build(
        {
            "cluster": {"use": "generic_10gbit", "gpu": "H200"},
            "calibration": "ideal",
            "strategy": "all_reduce",
            "workload": {"num_elements": 1000, "work": table | change},
        }
    )


def test_the_interval_is_that_of_the_share_which_trainings_attain_and_drawn_times_fill_it() -> None:
    h200, every = cluster(2, 2, gpu="H200"), roofline.attainments()
    assert training_step.compute_interval(workload(), h200) == every.products.factors
    assert training_step.compute_interval(workload(tensors=CONVOLVED), h200) == every.convolutions.factors
    whole = in_a_scenario()
    drawn = intervals.drawn_scenarios(whole, 200)
    times = sorted(training_step.resolve(draw.workload, draw.cluster, draw.calibration).forward_s for draw in drawn)
    usual = training_step.resolve(whole.workload, whole.cluster, whole.calibration).forward_s
    low, high = every.either.factors
    assert times[10] / usual == pytest.approx(low, rel=0.05)
    assert times[-11] / usual == pytest.approx(high, rel=0.05)
