"""Workloads into steps: gradients given once, compute given once, rows chosen by GPU, precision and batch."""

import json
from pathlib import Path

import pytest

from simnet.cluster.hardware import Calibration
from simnet.cluster.kernel_times import KernelTime
from simnet.core import files
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.scenario import load
from simnet.workload import training_step
from simnet.workload.kernel_cost import OPTIMIZER_BYTES
from simnet.workload.workload import ComputeTime, Gradient, Workload
from tests.helpers.refusals import refused
from tests.helpers.topologies import cluster

TIMES = {"forward_s": Duration(0.04), "backward_s": Duration(0.08), "optimizer_s": Duration(0.005)}


def row(**changes):
    fields = {"gpu": "A100-80GB", "precision": "tf32", "batch": 100, "samples_per_s": 1000.0, "optimizer": "adam"}
    return ComputeTime(**{"source": "test", **fields, **changes})


def resolve(workload: Workload, calibration: Calibration | None = None, **more):
    return training_step.resolve(workload, cluster(2, 2, gpu="A100-80GB", **more), calibration or Calibration())


@pytest.mark.parametrize(
    "gradients",
    [
        {"gradient_bytes": Size(440e6)},
        {"num_elements": 110_000_000},
        {"tensors": (Gradient(num_bytes=Size(220e6), count=2),)},
        {"tensors": (Gradient(num_elements=10_000_000), Gradient(num_elements=100_000_000))},
    ],
)
def test_gradients_may_be_given_in_any_one_form(gradients):
    step = resolve(Workload(**gradients, **TIMES))
    assert step.num_elements == pytest.approx(110e6)
    assert step.gradient_bytes == pytest.approx(440e6)
    assert resolve(Workload(num_elements=100, dtype="fp16", **TIMES)).gradient_bytes == 200


def test_every_shipped_workload_resolves_on_a_gpu_that_it_knows():
    for name in files.names("workloads"):
        scenario = load("bert_base_10gbit", {"workload": name})
        gpu = next((row.gpu for row in scenario.workload.compute), "H200")
        step = training_step.resolve(
            scenario.workload, load("bert_base_10gbit", {"cluster.gpu": gpu}).cluster, Calibration()
        )
        assert step.forward_s > 0
        rel = 0.05 if scenario.workload.compute else 0.4
        assert step.backward_s == pytest.approx(2 * step.forward_s, rel=rel), "backward costs about twice forward"
        assert len(step.tensors) > 10


@pytest.mark.parametrize("name", ["bert_base", "bert_large", "gpt2_small", "resnet50", "vgg16", "vit_b_16"])
def test_a_shipped_workload_has_work_for_every_gpu_of_the_table(name):
    workload = load("bert_base_10gbit", {"workload": name, "workload.precision": ""}).workload
    for gpu in files.names("gpus"):
        step = training_step.resolve(workload, cluster(2, 2, gpu=gpu), Calibration())
        assert 1.2 < step.backward_s / step.forward_s < 2.6, "backward costs about twice forward"
        has_row = any(row.gpu == gpu for row in workload.compute)
        assert ("roofline estimate" in step.notes[0]) is not has_row


def test_work_of_a_shipped_workload_goes_with_its_gradients_file():
    for name in files.names("workloads"):
        workload = load("bert_base_10gbit", {"workload": name}).workload
        if workload.work is not None and workload.gradients is not None:
            file = json.loads(files.gradients_path(workload.gradients).read_text())
            assert workload.work.forward_flops == pytest.approx(file["forward_flops_per_sample"], rel=1e-3)
            assert workload.work.backward_flops == pytest.approx(file["backward_flops_per_sample"], rel=0.05)


def test_between_two_rows_the_step_is_interpolated_and_beyond_them_scaled():
    rows = row(batch=10, samples_per_s=None, step_s=Duration(0.02)), row(batch=30, samples_per_s=600.0)
    for batch, seconds, said in ((10, 0.02, ""), (20, 0.035, "interpolated"), (60, 0.1, "scaled from batch 30")):
        step = resolve(Workload(num_elements=10, batch_per_rank=batch, compute=rows))
        assert step.forward_s + step.backward_s == pytest.approx(seconds)
        assert said in step.notes[0]


MANY = (Gradient(num_elements=1, count=1_000_000_000),)


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        (Workload(num_elements=10), "no compute time"),
        (Workload(**TIMES), "no gradients"),
        (Workload(gradient_bytes=Size(4.0), num_elements=1, **TIMES), "gradient and num_elements"),
        (Workload(num_elements=10, compute=(row(),), **TIMES), "give one of the two"),
        (Workload(num_elements=10, compute=(row(gpu="V100"),)), "no compute time for GPU 'A100-80GB': it has V100"),
        (Workload(num_elements=10, compute=(row(),), precision="fp8"), "no compute time in 'fp8'"),
        (
            Workload(num_elements=10, compute=(row(), row(samples_per_s=5.0))),
            "batch 100: two rows of A100-80GB in 'tf32'; give each batch once",
        ),
        (Workload(num_elements=10, compute=(row(samples_per_s=1e-308),)), "a step of inf s"),
        (Workload(num_elements=10_000_000, compute=(row(),)), "shorter than its optimizer"),
        (Workload(tensors=(Gradient(num_elements=1, backward_share=0.0),), **TIMES), "every backward_share is 0"),
        (Workload(tensors=MANY, **TIMES), "more than 100000 tensors"),
    ],
)
def test_contradictions_are_refused_in_a_sentence(workload, said):
    with refused(said):
        resolve(workload, Calibration(memory_bytes_per_s=Bandwidth(1e6)))


GOOD_FILE = '{"forward_flops_per_sample": 1, "backward_flops_per_sample": 2, "tensors": [["a", [5, 1], 1.0]]}'

TENSOR = '[["a", [5, 1], 1.0]]'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TENSOR, '[["a", [1'),
        (TENSOR, "[]"),
        (TENSOR, "[" * 100_000),
        *(("[5, 1]", new) for new in ("5", "[-5]", "[5, 0]", "[5.5]", "[true]", f"[{'9, ' * 8}9]", f"[{'1' * 400}]")),
        *(("1.0]]", new) for new in ("-1]]", "NaN]]", "0.0]]")),
        ('sample": 1', 'sample": 0'),
        ('sample": 2', 'sample": -2'),
    ],
)
def test_only_whole_gradients_files_are_read(old, new, tmp_path):
    path = tmp_path / "model.json"
    path.write_text(GOOD_FILE)
    workload = Workload(gradients=str(path), **TIMES)
    assert resolve(workload).num_elements == 5
    path.write_text(GOOD_FILE.replace(old, new))
    with refused("model.json"):
        resolve(workload)


def test_a_file_of_gradients_that_has_changed_is_read_again(tmp_path, monkeypatch):
    file = {"tensors": [["a", [10], 1.0]], "forward_flops_per_sample": 1.0, "backward_flops_per_sample": 2.0}
    for size in (10, 20):
        (folder := tmp_path / str(size)).mkdir()
        monkeypatch.chdir(folder)
        Path("g.json").write_text(json.dumps({**file, "tensors": [["a", [size], 1.0]]}), encoding="utf-8")
        assert resolve(Workload(gradients="./g.json", **TIMES)).num_elements == size


def test_what_was_measured_on_the_card_counts_alone():
    rows = (row(batch=100), row(batch=100, samples_per_s=500.0, includes_optimizer=False, kind="measured"))
    step = resolve(Workload(num_elements=1000, batch_per_rank=100, compute=rows))
    assert step.forward_s + step.backward_s == pytest.approx(0.2)
    assert "measured: test" in step.notes[0]
    other = resolve(
        Workload(num_elements=1000, batch_per_rank=100, compute=(row(), row(precision="amp", kind="measured")))
    )
    assert other.forward_s + other.backward_s == pytest.approx(0.1)


def test_a_measured_adamw_takes_its_time_in_place_of_its_bytes():
    timed = KernelTime(launch_s=Duration(1e-5), s_per_element=Duration(1e-11))
    calibration = Calibration(memory_bytes_per_s=Bandwidth(1e12), kernels={"adamw": timed})
    for optimizer, wanted in (("adam", 1e-5 + 1e-3), ("sgd_momentum", OPTIMIZER_BYTES["sgd_momentum"] * 1e-4)):
        step = resolve(
            Workload(num_elements=10**8, batch_per_rank=100, compute=(row(optimizer=optimizer),)), calibration
        )
        assert step.optimizer_s == pytest.approx(wanted)


@pytest.mark.parametrize("factor", [1.4, 0.5])
def test_a_compute_factor_scales_every_part_of_compute_and_says_so(factor):
    fast = Calibration(memory_bytes_per_s=Bandwidth(1e12))
    rows = {"num_elements": 10_000_000, "batch_per_rank": 100, "compute": (row(),)}
    for fields in ({"num_elements": 100, **TIMES}, rows):
        plain = resolve(Workload(**fields), fast)
        scaled = resolve(Workload(**fields, compute_factor=factor), fast)
        for part in ("forward_s", "backward_s", "optimizer_s"):
            assert getattr(scaled, part) == pytest.approx(factor * getattr(plain, part), rel=1e-12)
        *notes, note = scaled.notes
        assert tuple(notes) == plain.notes
        assert note.startswith(f"workload.compute_factor multiplies compute times by {factor:g}, which the intervals")
    sure = Workload(**fields, compute_factor=factor, intervals={"compute_factor": (0.8, 1.25)})
    assert resolve(sure, fast).notes[-1] == f"workload.compute_factor multiplies compute times by {factor:g}"
