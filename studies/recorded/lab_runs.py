"""Measure in the lab: links, messages in place, recordings with all ranks at work, and at last the steps themselves."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simnet.core.units import Bandwidth
from simnet.validation.lab.lab import Lab
from simnet.validation.lab.plan import LabSpec
from simnet.validation.lab.run_campaign import KEEPING_MEMORY
from studies.recorded import forecast
from studies.recorded.rows import (
    AIM_S,
    BANDWIDTHS,
    GLOO_BANDWIDTH,
    LEAST_PERIODS,
    LINK_BANDWIDTHS,
    LINK_BYTES,
    LINK_NODES,
    MOST_PERIODS,
    NUM_NODES,
    RANKS_PER_NODE,
    RUN_WARM_UP,
    STARTS,
    STEPS,
    WARM_UP,
    WORLD_SIZE,
    LabStudy,
    Way,
)

TIMEOUT_S = 900.0
Job = dict[str, Any]


def everything(study: LabStudy, folder: Path, scratch: Path, tell: Callable[[str], object]) -> None:
    """Calibrate, record, predict, and only then run; links that are measured already stay.

    Args:
        study: what is recorded, predicted and run.
        folder: of the results.
        scratch: for what ranks hand over.
        tell: receives a line for each launch.
    """
    for rate in (one for one in LINK_BANDWIDTHS if not _links_path(folder, one).exists()):
        tell(f"links at {rate.text()}: {_links(folder, rate):.0f} s")
    found: dict[str, list[list[Any]]] = {way.name: [] for way in study.ways}
    for start in range(STARTS):
        tell(f"messages in place: {_messages(folder, start):.0f} s")
        tell(f"recordings in place: {_record(study, scratch / str(start), WORLD_SIZE, found):.0f} s")
    alone: dict[str, list[list[Any]]] = {way.name: [] for way in study.ways}
    tell(f"recordings alone: {_record(study, scratch / 'alone', 1, alone):.0f} s")
    for way in study.ways:
        _write(folder / f"recordings_{way.name}.json", found[way.name])
        every = [one for launch in found[way.name] for one in launch]
        _write(folder / f"step_{way.name}.json", forecast.mean_recording(every))
        _write(folder / f"alone_{way.name}.json", forecast.mean_recording(alone[way.name][0]))
    predictions = study.predict(folder, BANDWIDTHS)
    _write(folder / "predictions.json", {"written_s": time.time(), "rows": predictions})
    runs: list[Job] = []
    for rate in BANDWIDTHS:
        mine = [one for one in predictions if one["mbit_per_s"] == round(rate * 8 / 1e6)]
        tell(f"steps at {rate.text()}: {_run(study, scratch, rate, mine, runs):.0f} s")
        _write(folder / "runs.json", runs)


def gloo(folder: Path) -> None:
    """Count what gloo sends for each collective, and time it."""
    _launch(NUM_NODES, GLOO_BANDWIDTH, "studies.recorded.gloo_on_the_wire", folder / "gloo.json")


def _links_path(folder: Path, rate: Bandwidth) -> Path:
    return folder / f"links_{rate * 8 / 1e6:g}mbit.json"


def _links(folder: Path, rate: Bandwidth) -> float:
    path = _links_path(folder, rate)
    sizes = ("--min-size", LINK_BYTES, "--max-size", LINK_BYTES, "--max-seconds", 1.5)
    nic = ("--nic-gbit-per-s", f"{rate * 8 / 1e9:g}")
    return _launch(LINK_NODES, rate, "binsgdm", "measure", "collectives", *sizes, *nic, "--threads", 1, "-o", path)


def _messages(folder: Path, start: int) -> float:
    sizes = ("--min-size", "2^10", "--max-size", "2^22", "--max-seconds", 0.3)
    path = folder / f"messages_{start + 1}.json"
    return _launch(NUM_NODES, None, "binsgdm", "measure", "collectives", *sizes, "--threads", 1, "-o", path)


def _record(study: LabStudy, scratch: Path, num_ranks: int, found: dict[str, list[list[Any]]]) -> float:
    """Record every way by some ranks at once, each alone in its world; add what they found, and return the time [s]."""
    jobs = [_recording(study, scratch, way) for way in study.ways]
    elapsed_s = _launch_jobs("record", scratch, jobs, None, 1 if num_ranks == 1 else NUM_NODES, num_ranks)
    for way, job in zip(study.ways, jobs, strict=True):
        paths = [Path(job["folder"]) / f"rank_{rank}.json" for rank in range(num_ranks)]
        found[way.name].append([json.loads(path.read_text(encoding="utf-8")) for path in paths])
    return elapsed_s


def _recording(study: LabStudy, scratch: Path, way: Way) -> Job:
    folder = scratch / way.name
    folder.mkdir(parents=True)
    settings = {
        "num_nodes": NUM_NODES, "ranks_per_node": RANKS_PER_NODE, "script": str(study.script), "is_module": False,
        "arguments": [*way.arguments, "--steps", "100000"], "steps": STEPS * way.period,
        "warm_up": WARM_UP * way.period, "runs_on": "cpu", "compute": "timed", "device": "cpu",
        "fake": False,
    }  # fmt: skip
    return {"folder": str(folder), "settings": settings}


def _run(study: LabStudy, scratch: Path, rate: Bandwidth, predictions: Sequence[Job], runs: list[Job]) -> float:
    """Run every way at a bandwidth; add when its steps ended, and return the time [s]."""
    jobs = [_training(study, scratch, one) for one in predictions]
    begun_s = time.time()
    elapsed_s = _launch_jobs("train", scratch, jobs, rate, NUM_NODES)
    for one, job in zip(predictions, jobs, strict=True):
        ends = json.loads(Path(job["found"]).read_text(encoding="utf-8"))
        row = {"way": one["way"], "mbit_per_s": one["mbit_per_s"], "begun_s": begun_s}
        runs.append(row | {"step_ends_s": [round(end, 6) for end in ends]})
    return elapsed_s


def _training(study: LabStudy, scratch: Path, prediction: Job) -> Job:
    (way,) = [one for one in study.ways if one.name == prediction["way"]]
    periods = round(AIM_S / (prediction["predicted_s"] * way.period))
    # The first end of a step begins the first period.
    steps = (RUN_WARM_UP + min(max(periods, LEAST_PERIODS), MOST_PERIODS)) * way.period + 1
    found = scratch / f"{way.name}_{prediction['mbit_per_s']}.json"
    return {"script": str(study.script), "arguments": [*way.arguments, "--steps", str(steps)], "found": str(found)}


def _launch_jobs(  # noqa: PLR0913, PLR0917
    mode: str, scratch: Path, jobs: Sequence[Job], rate: Bandwidth | None, num_nodes: int, num_ranks: int = WORLD_SIZE
) -> float:
    path = scratch / f"{mode}.json"
    _write(path, jobs)
    return _launch(num_nodes, rate, "studies.recorded.scripts_in_lab", mode, path, per_node=num_ranks // num_nodes)


def _launch(
    num_nodes: int, rate: Bandwidth | None, module: str, *arguments: object, per_node: int = RANKS_PER_NODE
) -> float:
    """Run a module as every rank, and return how long it took [s]."""
    command = ["env", *KEEPING_MEMORY, sys.executable, "-m", module, *map(str, arguments)]
    spec = LabSpec(num_nodes=num_nodes, ranks_per_node=per_node, bandwidth=rate)
    with Lab(spec) as lab:
        outcome = lab.launch(command, timeout_s=TIMEOUT_S)
    outcome.raise_if_failed()
    return outcome.elapsed_s


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
