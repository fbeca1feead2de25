"""Sharding, local steps and 8 bits in the lab: the page says what its files say, and predictions came first."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")

from benchmarks.regions import filled, region
from simnet.calibration.comparison import mean_error, worst_error
from studies.alternatives import alternatives_page, forecast
from studies.alternatives.forecast import GOLDEN, WAYS
from studies.recorded import forecast as recorded
from studies.recorded.rows import BANDWIDTHS, STARTS, WORLD_SIZE

PAGE = alternatives_page.PAGE.read_text(encoding="utf-8")


def document(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def test_the_page_says_what_the_files_say() -> None:
    assert filled(PAGE, alternatives_page.regions(GOLDEN)) == PAGE


def test_the_page_tells_another_measurement_apart(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "measured"))
    runs = document("runs")
    runs[0]["step_ends_s"] = [1.01 * end for end in runs[0]["step_ends_s"]]
    (folder / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    assert filled(PAGE, alternatives_page.regions(folder)) != PAGE


def test_the_strategies_still_predict_what_they_predicted_before_the_runs() -> None:
    before = document("predictions")["rows"]
    now = forecast.predict(GOLDEN, BANDWIDTHS)
    assert [one["way"] for one in now] == [one["way"] for one in before]
    for mine, theirs in zip(now, before, strict=True):
        assert mine["predicted_s"] == pytest.approx(theirs["predicted_s"], rel=1e-3)


def test_predictions_were_written_before_anything_ran() -> None:
    written_s = document("predictions")["written_s"]
    assert all(one["begun_s"] > written_s for one in document("runs"))


def test_every_way_ran_at_every_bandwidth() -> None:
    places = {(way.name, round(rate * 8 / 1e6)) for way in WAYS for rate in BANDWIDTHS}
    assert {(one["way"], one["mbit_per_s"]) for one in document("runs")} == places


def test_compute_is_the_mean_of_what_every_rank_recorded() -> None:
    for way in WAYS:
        launches = document(f"recordings_{way.name}")
        assert [len(launch) for launch in launches] == [WORLD_SIZE] * STARTS
        every = [one for launch in launches for one in launch]
        assert recorded.mean_recording(every) == document(f"step_{way.name}")


def test_of_a_recording_the_seconds_of_compute_alone_count() -> None:
    (recording,) = document("step_fsdp")["recordings"]
    before = forecast.workload(recording, WORLD_SIZE)
    for stream in recording["streams"]:
        for operation in stream["operations"]:
            if operation["kind"] != "compute":
                operation["message_bytes"] *= 2
    assert forecast.workload(recording, WORLD_SIZE) == before


def test_the_errors_are_those_of_the_page() -> None:
    found = alternatives_page.points(GOLDEN)
    shown = region(PAGE, "outcome")
    assert f"| 8 % | {100 * mean_error(found):.1f} % |" in shown
    assert f"| 15 % | {100 * worst_error(found):.1f} % |" in shown


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_the_tensors_that_are_predicted_are_those_of_the_model_that_runs() -> None:
    from studies.alternatives.ways import Blocks

    real = {name: tuple(one.shape) for name, one in Blocks(forecast.WIDTH, forecast.BLOCKS).named_parameters()}
    assert {one.name: one.shape for one in forecast.gradients()} == real


def test_backward_of_int8_holds_no_wait_for_its_thread() -> None:
    for file in ("step", "alone"):
        int8_s, ddp_s = (backward_s(document(f"{file}_{name}")["recordings"][0]) for name in ("int8", "ddp"))
        assert int8_s < 1.3 * ddp_s  # its thread encodes meanwhile; with the waits it was more


def backward_s(recording: Any) -> float:
    """Return what the training thread takes for gradients alone."""
    operations = recording["streams"][0]["operations"]
    return float(sum(one["seconds"] for one in operations if one.get("part") == "backward"))
