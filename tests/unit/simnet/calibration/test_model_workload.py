"""A counted model becomes a workload, with times of a measurement or a trace where there are some."""

import math
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from simnet.calibration import model_workload, sources
from simnet.calibration.measurement_file import Series
from simnet.cluster.hardware import Calibration, Cluster, Link
from simnet.core.units import Bandwidth, Duration
from simnet.workload import training_step
from tests.helpers.measurement_samples import measurements, setup
from tests.helpers.refusals import refused

COUNTED: dict[str, Any] = {
    "title": "a model",
    "origin": "",
    "versions": "torch 2.13.0",
    "sample": "8",
    "tokens_per_sample": None,
    "batch": 4,
    "dtype": "fp32",
    "num_elements": 84,
    "tensors": [("b.weight", [4, 16], 512.0), ("a.weight", [4, 4], 256.0), ("a.bias", [4], 0.0)],
    "work": {
        "forward_flops": 2.0e9, "backward_flops": 4.0e9, "forward_bytes": 1e6, "backward_bytes": 2e6,
        "optimizer": "adam", "precision": "bf16",
    },
    "memory": {"parameters": 336, "gradients": 336, "optimizer": 672, "activations_per_sample": 100.5},
}  # fmt: skip
TRACE = Path(__file__).parents[3] / "golden" / "calibrate" / "kineto_gloo_2_ranks.json.gz"
COMMAND = "simnet model my:build --batch 4"


def data(**changes: Any) -> dict[str, Any]:
    return model_workload.data_of_count(COUNTED | changes, COMMAND)


def cluster(gpu: str) -> Cluster:
    link = Link(bytes_per_s=Bandwidth(1e9), alpha_s=Duration(1e-6))
    return Cluster(num_nodes=2, ranks_per_node=2, intra_node=link, inter_node=link, gpu=gpu)


def step(found: dict[str, Any], gpu: str) -> training_step.Step:
    return training_step.resolve(model_workload.workload(found), cluster(gpu), Calibration())


def model_file(folder: Path, *, gpu: str = "", batch: int = 4, sides: tuple[str, ...] = ("4x16", "4x4", "4")) -> Path:
    """Write what simnet measure model would: forward 10 ms, backward 30 ms, and when each gradient was ready."""
    found: list[Series] = []

    def add(name: str, seconds: float, **more: str | int) -> None:
        labels = {"model": "mine", "batch": batch, "dtype": "float32", **more}
        found.append(Series(kind="model", name=name, setup=0, unit="s", values=(seconds,) * 8, labels=labels))

    add("forward", 0.010)
    add("backward", 0.030)
    add("optimizer", 0.002, optimizer="adamw")
    for order, shape in enumerate(sides):
        numel = math.prod(map(int, shape.split("x")))
        add("gradient_ready", 0.01 * (order + 1), tensor=f"t{order}", order=order, num_elements=numel, shape=shape)
    whole = measurements(tuple(found), (setup(1, 1, None),))
    whole = msgspec.structs.replace(whole, hardware=msgspec.structs.replace(whole.hardware, gpu=gpu))
    path = folder / "model.json"
    path.write_bytes(msgspec.json.encode(whole))
    return path


def test_what_is_written_is_read_back_and_tensors_in_a_row_that_are_alike_share_a_row() -> None:
    whole = data()
    assert tomllib.loads(model_workload.text(whole)) == whole
    assert whole["source"] == "simnet model my:build --batch 4 (torch 2.13.0); a sample is 8"
    assert model_workload.text(whole).count("\n    {") == 3
    whole = data(tensors=[("a", [4, 4], 8.0), ("b", [4, 4], 8.0), ("c", [4, 4], 9.0), ("d", [], 9.0)])
    assert whole["tensors"] == [
        {"name": "a", "shape": [4, 4], "backward_share": 8.0, "count": 2},
        {"name": "c", "shape": [4, 4], "backward_share": 9.0},
        {"name": "d", "shape": [1], "backward_share": 9.0},
    ]
    assert tomllib.loads(model_workload.text(whole)) == whole


def test_a_measurement_on_a_cpu_gives_its_times_whatever_the_gpu(tmp_path: Path) -> None:
    found = model_workload.with_times(data(), [model_file(tmp_path)])
    for gpu in ("A100-80GB", ""):
        resolved = step(found, gpu)
        assert (resolved.forward_s, resolved.backward_s, resolved.optimizer_s) == pytest.approx((0.01, 0.03, 0.002))
    assert [row["backward_share"] for row in found["tensors"]] == [10_000.0, 10_000.0, 10_000.0]
    assert "intervals" in found
    assert found["work"] == data()["work"]


def test_a_measurement_on_a_gpu_is_a_row_of_it_and_others_are_estimated(tmp_path: Path) -> None:
    found = model_workload.with_times(data(), [model_file(tmp_path, gpu="NVIDIA H100 80GB HBM3")])
    assert found["compute"][0]["gpu"] == "H100-80GB"
    measured, estimated = step(found, "H100-80GB"), step(found, "A100-80GB")
    assert measured.forward_s + measured.backward_s == pytest.approx(0.04)
    # 6 GFLOP x 4 samples at 312 TFLOP/s: far from the 40 ms of the row.
    assert 7.7e-5 < estimated.forward_s + estimated.backward_s < 3e-4
    assert any("roofline" in note for note in estimated.notes)
    assert not any("roofline" in note for note in measured.notes)
    assert tomllib.loads(model_workload.text(found)) == found


def test_times_of_another_model_or_batch_and_other_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "steps.csv"
    other.write_text("nodes,ranks_per_node,batch,strategy,seconds\n1,1,4,all_reduce,0.1\n")
    with refused("neither a model of simnet measure model nor a trace of torch.profiler"):
        model_workload.with_times(data(), [other])
    for changes, sentence in (
        ({"batch": 8}, "8 samples: the model was counted with 4; count it with --batch 8"),
        ({"sides": ("4x16", "8x4")}, "96 elements of gradients: the model has 84; give times of this model"),
    ):
        with refused(sentence):
            model_workload.with_times(data(), [model_file(tmp_path, **changes)])


def test_a_trace_gives_its_times_if_it_reduces_as_many_bytes() -> None:
    ((trace, _),) = sources.read([TRACE]).traces
    found = model_workload.with_times(data(tensors=[("a", [trace.reduced_bytes // 4], 1.0)]), [TRACE])
    resolved = step(found, "A100-80GB")
    wanted = [trace.median_s(f"{part}_s") for part in ("forward", "backward", "optimizer")]
    assert [resolved.forward_s, resolved.backward_s, resolved.optimizer_s] == pytest.approx(wanted, rel=1e-3)
    with refused("all-reduces ", " a step: the gradients of counted are 336 B"):
        model_workload.with_times(data(), [TRACE])
