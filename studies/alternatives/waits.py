"""What the recorded compute of int8 holds of waiting: the recorder's clock runs on while threads wait for each other.

Found after the runs. It changes no prediction of the study.
"""

import copy
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from simnet.simulation import simulate
from simnet.units import Bandwidth
from studies.alternatives import forecast
from studies.alternatives.forecast import AlternativeWay
from studies.recorded import recorded_page
from studies.recorded.forecast import calibrated

MAIN, EXCHANGING = 0, 1
"""Streams of a recording: the thread that trains, and the one that exchanges buckets."""


class Waits(NamedTuple):
    """What threads of a recorded step waited for each other [s].

    Attributes:
        at_end: the training thread, at the end of backward, until all buckets were exchanged.
        for_bucket: the exchanging thread, until the second bucket was ready.
    """

    at_end: float
    for_bucket: float


def of(recording: dict[str, Any]) -> Waits:
    """Return the waits in a recorded step of two buckets."""
    main, exchanging = (_seconds(recording, stream) for stream in (MAIN, EXCHANGING))
    end = _end_of_backward(recording)
    ((_, begun),) = recording["streams"][EXCHANGING]["operations"][0]["after"]
    second = _second_bucket(recording)
    submitted_s = sum(main[begun + 1 : end])
    return Waits(at_end=main[end], for_bucket=max(submitted_s - sum(exchanging[:second]), 0.0))


def without(recording: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded step whose compute holds no wait."""
    found, waits = copy.deepcopy(recording), of(recording)
    found["streams"][MAIN]["operations"][_end_of_backward(recording)]["seconds"] -= waits.at_end
    found["streams"][EXCHANGING]["operations"][_second_bucket(recording)]["seconds"] -= waits.for_bucket
    return found


def predicted_s(way: AlternativeWay, rate: Bandwidth, folder: Path) -> float:
    """Return what a step takes as predicted without the waits, all else as before the runs [s]."""
    before = forecast.scenario(way, rate, folder, calibrated(folder))
    (recording,) = recorded_page.read(folder, f"step_{way.name}")["recordings"]
    workload = forecast.workload(without(recording), way.optimizer_shards)
    return simulate(replace(before, workload=workload)).result.iteration_s


def backward_s(recording: dict[str, Any]) -> float:
    """Return what the training thread takes for gradients alone, without encoding and decoding [s]."""
    operations = recording["streams"][MAIN]["operations"]
    return float(sum(one.get("seconds", 0.0) for one in operations if one.get("part") == "backward"))


def _seconds(recording: dict[str, Any], stream: int) -> list[float]:
    return [one.get("seconds", 0.0) for one in recording["streams"][stream]["operations"]]


def _second_bucket(recording: dict[str, Any]) -> int:
    """Return the operation of the exchanging thread with which its second bucket begins."""
    begins = [one for one in recording["streams"][2]["operations"] if one["kind"] == "all_to_all"]
    ((_, number),) = begins[1]["after"]
    return int(number)


def _end_of_backward(recording: dict[str, Any]) -> int:
    """Return the operation of the training thread before the first that comes after the exchange."""
    operations = recording["streams"][MAIN]["operations"]
    return next(number - 1 for number, one in enumerate(operations) if "after" in one)
