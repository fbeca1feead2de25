"""The loop: a measured model becomes a workload, an experiment predicts, and measured steps judge it."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from simnet.calibration.measurement_file import read
from simnet.calibration.workload_file import text_of_model
from simnet.cluster.hardware import GLOO_WINDOW, Calibration, LinkCalibration
from simnet.core.units import Duration
from simnet.engine.scenario import load_experiment
from simnet.validation import training_steps
from tests.helpers.cli import assert_refused, run
from tests.helpers.refusals import refused
from tests.helpers.training_samples import DENSE, series, step, write

EXPERIMENT = """question = "?"
workload = "model.toml"
strategy = "binsgdm"
[calibration.inter_node]
efficiency = 0.9
[calibration.intervals]
"inter_node.efficiency" = [0.9, 1.1]
[cluster]
num_nodes = 2
ranks_per_node = 1
[cluster.intra_node]
bandwidth = "20 Gbit/s"
latency = "50 us"
[cluster.inter_node]
bandwidth = "1 Gbit/s"
latency = "50 us"
"""


def model_rows(name: str = "m") -> list[dict[str, Any]]:
    ready = [("c", 1000, 0.010), ("b", 2_000_000, 0.030), ("a", 500, 0.029)]
    common = {"model": name, "batch": 8, "dtype": "float32"}
    return [
        series("model", "forward", 0.02, **common),
        series("model", "backward", 0.04, **common),
        series("model", "optimizer", 0.003, **common, optimizer="binsgdm"),
        series("model", "optimizer", 0.005, **common, optimizer="adamw"),
        *(
            series("model", "gradient_ready", at, **common, tensor=tensor, num_elements=number, order=order)
            for order, (tensor, number, at) in enumerate(ready)
        ),
    ]


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    model = write(tmp_path / "model.json", model_rows())
    (tmp_path / "model.toml").write_text(text_of_model([(model, read(model))]))
    path = tmp_path / "experiment.toml"
    path.write_text(EXPERIMENT)
    return path


def test_a_model_becomes_a_workload_with_its_gradients_in_time(experiment: Path) -> None:
    workload = load_experiment(str(experiment)).at({}).workload
    assert (workload.forward_s, workload.backward_s, workload.optimizer_s) == (0.02, 0.04, 0.005)
    assert [tensor.name for tensor in workload.tensors] == ["c", "b", "a"]
    assert [tensor.backward_share for tensor in workload.tensors] == [10_000, 20_000, 0], "a comes with b, not before"


def test_gradients_have_the_shapes_that_the_file_tells_and_are_the_same_in_files_of_one_model(tmp_path: Path) -> None:
    rows = model_rows()
    for row, shape in zip(rows[4:], ("10x100", "2000x1000", ""), strict=True):
        row["labels"]["shape"] = shape
    path = write(tmp_path / "model.json", rows)
    (tmp_path / "model.toml").write_text(text_of_model([(path, read(path))]))
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    tensors = load_experiment(str(tmp_path / "experiment.toml")).at({}).workload.tensors
    shapes = [((10, 100), None), ((2000, 1000), None), (None, 500)]
    assert [(tensor.shape, tensor.num_elements) for tensor in tensors] == shapes
    paths = [write(tmp_path / "a.json", model_rows()), write(tmp_path / "b.json", model_rows()[:-1])]
    with refused("the gradients of the model differ between files"):
        text_of_model([(path, read(path)) for path in paths])


def test_a_latency_that_was_added_is_paid_with_the_window_of_the_calibration(experiment: Path, tmp_path: Path) -> None:
    scenario = load_experiment(str(experiment)).at({})
    link = LinkCalibration(alpha_s=Duration(0), window=GLOO_WINDOW)
    scenario = replace(scenario, calibration=Calibration(inter_node=link))

    def predicted(latency_s: float) -> float:
        layout = {"num_nodes": 3, "ranks_on_machine": 3}
        file = read(write(tmp_path / "t.json", [step(1.0, DENSE)], **layout, nic_latency_s=latency_s))
        (point,) = training_steps.predict_points(scenario, [file], None)
        assert point.setting[4] == latency_s
        return point.predicted

    # Rounds of 2.67 MB at 25 MB/s: what is seen of a latency are two of them less a quarter of the time of a window.
    hidden_s = 0.25 * GLOO_WINDOW / 25e6
    chunk = 2_001_500 * 4 / 3
    assert predicted(10e-3) == predicted(0.0)
    added_s = 4 * chunk / GLOO_WINDOW * (2 * 50e-3 - hidden_s)
    assert predicted(50e-3) - predicted(0.0) == pytest.approx(added_s, rel=0.01)


@pytest.mark.parametrize(
    ("rows", "setup", "model", "message"),
    [
        ([step(1.0, DENSE)], {}, "x", "--model x: the measured models are m; name one"),
        ([step(1.0, DENSE), step(1.0, DENSE, model="n")], {}, None, "the measured models are m, n; name one"),
        (model_rows(), {}, None, "the measured models are none"),
        ([step(1.0, DENSE)], {"nic_bytes_per_s": None}, None, "4 nodes with NICs of unknown bandwidth: give that of a"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    rows: list[Any], setup: dict[str, Any], model: str | None, message: str, experiment: Path, tmp_path: Path
) -> None:
    measured = read(write(tmp_path / "t.json", rows, **setup))
    with refused(message):
        training_steps.predict_points(load_experiment(str(experiment)).at({}), [measured], model)


def test_a_bandwidth_that_the_file_lacks_is_asked_for_on_several_nodes_alone(experiment: Path, tmp_path: Path) -> None:
    many = write(tmp_path / "many.json", [step(1.0, DENSE)], nic_bytes_per_s=None)
    one = write(tmp_path / "one.json", [step(1.0, DENSE)], num_nodes=1, ranks_on_machine=1, nic_bytes_per_s=None)
    assert_refused(run("validate", experiment, many), "give that of a node with --nic-gbit-per-s")
    told = run("validate", experiment, one)
    assert told.exit_code == 0, told.output
    known = write(tmp_path / "known.json", [step(1.0, DENSE)])
    given = run("validate", experiment, many, "--nic-gbit-per-s", "0.2")
    assert given.exit_code == 0, given.output
    assert given.stdout == run("validate", experiment, known).stdout
    assert_refused(run("validate", "--published", "--nic-gbit-per-s", "1"), "--nic-gbit-per-s: needs EXPERIMENT")
