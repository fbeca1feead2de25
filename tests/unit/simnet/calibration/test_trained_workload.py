"""Traces of one process and of several ranks, and step times, become workloads."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from simnet.calibration import trained_workload
from simnet.core.units import Duration
from simnet.engine import scenario
from simnet.engine.scenario import check_part
from simnet.traces import kineto
from simnet.traces.kineto import Trace
from simnet.workload.workload import Workload
from tests.helpers.cli import assert_refused, run
from tests.helpers.golden import GLOO
from tests.helpers.refusals import refused

HERE = Path("x.json")
RESNET = Workload(name="mine", gradients="resnet50")


def event(name: str, cat: str, start_us: float, us: float, **args: object) -> dict[str, object]:
    return {"ph": "X", "name": name, "cat": cat, "ts": start_us, "dur": us, "args": args}


STEP = event("ProfilerStep#3", "user_annotation", 0, 1000)
CPU = [
    STEP,
    event("aten::conv2d", "cpu_op", 100, 200),
    event("autograd::engine::evaluate_function: ConvolutionBackward0", "cpu_op", 300, 450),
    event("Optimizer.step#AdamW.step", "user_annotation", 800, 150),
    event("aten::_foreach_add_", "cpu_op", 800, 150),
]
# By the format that PyTorch documents: kernels name the operator that launched them.
GPU = [
    STEP,
    event("aten::conv2d", "cpu_op", 10, 20, **{"External id": 5}),
    event("autograd::engine::evaluate_function: ConvolutionBackward0", "cpu_op", 40, 100),
    event("aten::convolution_backward", "cpu_op", 50, 20, **{"External id": 6}),
    event("conv_forward", "kernel", 100, 200, **{"External id": 5}),
    event("conv_backward", "kernel", 300, 450, **{"External id": 6}),
    event("multi_tensor_adam", "kernel", 800, 150, **{"External id": 7}),
    event("Optimizer.step#AdamW.step", "gpu_user_annotation", 800, 150),
]


def trace(events: list[Any], **about: object) -> Trace:
    return kineto.parse({"traceEvents": events, **about}, HERE)


def of_rank(rank: int, scale: float = 1.0, num_elements: int = 1000, world_size: int = 4) -> Trace:
    events = [{**one, "ts": scale * one["ts"], "dur": scale * one["dur"]} for one in CPU]  # type: ignore[operator]
    talk = {"Input Dims": [[num_elements]], "Input type": ["float"]}
    return trace(
        [*events, event("gloo:all_reduce", "user_annotation", 400, 300, **talk)],
        distributedInfo={"backend": "gloo", "rank": rank, "world_size": world_size},
    )


def whole(*traces: Trace, batch: int | None = 8, traced: Workload | None = RESNET) -> dict[str, Any]:
    named = [(one, Path(f"{number}.json")) for number, one in enumerate(traces)]
    return tomllib.loads(trained_workload.text_of_traces(named, batch, traced))


def times_us(found: dict[str, Any]) -> tuple[float, ...]:
    return tuple(round(1e6 * Duration.parse(found[key]), 3) for key in ("forward", "backward", "optimizer"))


@pytest.mark.parametrize("events", [CPU, GPU])
def test_a_trace_of_one_process_tells_its_compute(events: list[Any]) -> None:
    found = whole(trace(events))
    assert times_us(found) == (200, 450, 150)
    assert (found["batch_per_rank"], found["gradients"]) == (8, "resnet50")
    assert "one process" in found["source"]


@pytest.mark.parametrize("odd", [None, [5], "x", 5.5])
def test_kernels_that_name_no_operator_share_forward_and_backward_as_usual(odd: object) -> None:
    events = [{**one, "args": {"External id": odd}} for one in GPU]
    found = whole(trace(events))
    assert times_us(found) == (216.7, 433.3, 150)


def test_traces_of_several_ranks_are_one_run() -> None:
    found = whole(*(of_rank(rank, scale) for rank, scale in enumerate((1.0, 1.1, 1.4))), traced=None)
    assert found["gradient"] == "4000 B"
    assert times_us(found) == (220, 495, 165)
    assert "3 steps of 3 ranks of 4" in found["source"]


NO_SIZE = "no all-reduce of known size, so no gradients: name the traced workload with --trained"


@pytest.mark.parametrize(
    ("traces", "batch", "traced", "message"),
    [
        ([trace(CPU)], None, RESNET, "0.json: a trace does not say its batch; give the samples of a rank with --batch"),
        ([trace(CPU)], 8, None, NO_SIZE),
        ([trace(CPU[:1])], 8, RESNET, "no forward in the trace"),
        ([trace(CPU[:3])], 8, RESNET, "no optimizer in the trace"),
        ([of_rank(0), of_rank(0)], 8, None, "1.json: rank 0 is there twice"),
        ([of_rank(0), of_rank(1, world_size=2)], 8, None, "1.json: 2 ranks with gloo backend: 0.json has 4"),
        ([of_rank(0), of_rank(1, num_elements=7)], 8, None, "ranks all-reduce 28 B, 4 kB a step: must be the same"),
        ([of_rank(0)], 8, RESNET, "all-reduces 4 kB a step: the gradients of mine are 102.2 MB"),
    ],
)
def test_what_is_no_run_or_no_workload_is_refused(
    traces: list[Trace], batch: int | None, traced: Workload | None, message: str
) -> None:
    with refused(message):
        whole(*traces, batch=batch, traced=traced)


def test_the_command_takes_the_gradients_of_the_traced_workload(tmp_path: Path) -> None:
    one, two, out = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "mine.toml"
    one.write_text(json.dumps({"traceEvents": GPU}))
    made = run("calibrate", one, "--workload", out, "--trained", "resnet50", "--batch", "64")
    assert made.exit_code == 0, made.output
    check_part("workloads", str(out))
    assert tomllib.loads(out.read_text())["gradients"] == "resnet50"
    two.write_text(one.read_text())
    twice = run("calibrate", one, two, "--workload", out, "--batch", "1")
    assert twice.exit_code == 2
    assert "rank 0 is there twice" in twice.stderr
    assert len(twice.stderr.splitlines()) == 1
    assert_refused(run("calibrate", GLOO, "--batch", "8"), "--batch: no effect without a trace and --workload")


def test_a_path_of_gradients_holds_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.toml").write_text('gradients = "./g.json"')
    (tmp_path / "g.json").write_text("{}")
    given = scenario.build({"cluster": "generic_10gbit", "workload": "model.toml", "strategy": "all_reduce"}).workload
    assert trained_workload.gradient_keys(given)["gradients"] == str(tmp_path / "g.json")
