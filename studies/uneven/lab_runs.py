"""Measure in the lab: links, messages, steps without messages; then predict, and only then train with a fault."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from simnet.core.units import Bandwidth
from simnet.validation.lab.lab import Lab
from simnet.validation.lab.plan import NETWORK, LabSpec, address
from simnet.validation.lab.run_campaign import KEEPING_MEMORY
from studies.uneven import forecast
from studies.uneven.rows import (
    BANDWIDTHS,
    BATCH,
    BUCKET_CAP_MB,
    BUSY_NODE,
    BUSY_SHARE,
    CORES,
    DEGRADED_NODE,
    DEGRADED_RATE,
    FAULTS,
    LINK_BANDWIDTHS,
    LINK_BYTES,
    LINK_NODES,
    MODEL,
    NUM_NODES,
    OWN_STEPS,
    SLOW_NODE,
    SLOW_RANK,
    SLOW_RATE,
    SLOWDOWN,
    STRATEGIES,
    WARM_UP,
    FaultName,
    own_file,
    place,
    trained_file,
)

TIMEOUT_S = 900.0
POLL_S = 0.005
IMPORT_CORES = 1.0
"""Part of a core of a rank while it imports torch."""
DATAGRAM, HEADERS = 1400, 42
"""Bytes of a datagram of the others, and of its headers, which the NIC's limit counts."""
EQUAL_CORES = (CORES,) * NUM_NODES
SLOW_CORES = tuple(CORES / SLOWDOWN if rank == SLOW_RANK else CORES for rank in range(NUM_NODES))
Job = dict[str, Any]
Tell = Callable[[str], object]


def everything(folder: Path, tell: Tell) -> None:
    """Calibrate; then for each bandwidth and fault measure a step's own work, predict, and train; goes on where it was.

    Args:
        folder: of the results.
        tell: receives a line for each launch.
    """
    for rate in LINK_BANDWIDTHS:
        _once(folder / f"links_{_mbit(rate)}mbit.json", partial(_links, rate), tell)
    for start in (1, 2):
        _once(folder / f"messages_{start}.json", _messages, tell)
    for rate in BANDWIDTHS:
        for fault in FAULTS:
            own = {one.argument: folder / own_file(one.argument, fault, _mbit(rate)) for one in STRATEGIES}
            predicted = folder / f"predicted_{place(fault, _mbit(rate))}.json"
            if not predicted.exists():
                tell(f"own work before {fault} at {rate.text()}: {_own_work(own):.0f} s")
                rows = forecast.predict(folder, rate, fault, own)
                _write(predicted, {"written_s": time.time(), "rows": rows})
            rows = json.loads(predicted.read_text(encoding="utf-8"))["rows"]
            tell(f"{fault} at {rate.text()}: {_train(folder, rate, fault, rows):.0f} s")


def _once(path: Path, measure: Callable[[Path], float], tell: Tell) -> None:
    if not path.exists():
        tell(f"{path.stem}: {measure(path):.0f} s")


def _mbit(rate: Bandwidth) -> int:
    return round(rate * 8 / 1e6)


def _spec(num_nodes: int, rate: Bandwidth | None, cores: float, spare_nodes: int = 0) -> LabSpec:
    return LabSpec(num_nodes=num_nodes, bandwidth=rate, cores_per_rank=cores, spare_nodes=spare_nodes)


def _links(rate: Bandwidth, path: Path) -> float:
    sizes = ("--min-size", LINK_BYTES, "--max-size", LINK_BYTES, "--max-seconds", 3)
    nic = ("--nic-gbit-per-s", f"{rate * 8 / 1e9:g}")
    with Lab(_spec(LINK_NODES, rate, CORES)) as lab:
        return _launch(lab, "binsgdm", "measure", "collectives", *sizes, *nic, "--threads", 1, "-o", path)


def _messages(path: Path) -> float:
    sizes = ("--min-size", "2^10", "--max-size", "2^22", "--max-seconds", 0.5)
    with Lab(_spec(NUM_NODES, None, CORES)) as lab:
        return _launch(lab, "binsgdm", "measure", "collectives", *sizes, "--threads", 1, "-o", path)


def _own_work(own: dict[str, Path]) -> float:
    jobs = [_job(argument, path, OWN_STEPS, None) for argument, path in own.items()]
    with Lab(_spec(NUM_NODES, None, IMPORT_CORES)) as lab:
        return _launch_jobs(lab, jobs, EQUAL_CORES)


def _job(argument: str, path: Path, steps: int, rate: Bandwidth | None) -> Job:
    return {
        "strategy": argument, "output": str(path), "steps": steps, "warm_up": WARM_UP, "without_messages": rate is None,
        "model": MODEL, "batch": BATCH, "bucket_cap_mb": BUCKET_CAP_MB, "nic_bytes_per_s": rate and float(rate),
        "network": f"{NETWORK}, {CORES:g} of a core a rank",
    }  # fmt: skip


def _train(folder: Path, rate: Bandwidth, fault: FaultName, rows: Sequence[Job]) -> float:
    """Train with every strategy under a fault; return the time of the launches [s]."""
    jobs = [
        _job(row["strategy"], folder / trained_file(row["strategy"], fault, _mbit(rate)), row["steps"], rate)
        for row in rows
    ]
    todo = [(job, row) for job, row in zip(jobs, rows, strict=True) if not Path(job["output"]).exists()]
    elapsed_s = 0.0
    # A NIC that gets slower in mid-run is as it was before the next strategy: each has a launch of its own.
    launches = [[one] for one in todo] if fault == "degrading NIC" else [todo] if todo else []
    for launch in launches:
        with Lab(_spec(NUM_NODES, rate, IMPORT_CORES, spare_nodes=1)) as lab, _put_in(lab, fault, rate, launch[0]):
            elapsed_s += _launch_jobs(
                lab, [job for job, _ in launch], SLOW_CORES if fault == "slow rank" else EQUAL_CORES
            )
    return elapsed_s


@contextmanager
def _put_in(lab: Lab, fault: FaultName, rate: Bandwidth, first: tuple[Job, Job]) -> Iterator[None]:
    """Put a fault into the lab for a while."""
    with ExitStack() as stack:
        if fault == "slow NIC":
            lab.shape(Bandwidth(rate * SLOW_RATE), [SLOW_NODE])
        elif fault == "degrading NIC":
            job, row = first
            stack.enter_context(_degrading(lab, Path(job["output"]), rate, row["degrades_after_s"]))
        elif fault == "background traffic":
            stack.enter_context(_traffic(lab, rate))
        yield


@contextmanager
def _degrading(lab: Lab, output: Path, rate: Bandwidth, after_s: float) -> Iterator[None]:
    """Make a NIC slower some time after a training has begun."""
    begun = output.with_suffix(".begun")

    def degrade(is_over: Event) -> None:
        if not is_over.wait(max(0.0, begun.stat().st_mtime + after_s - time.time())):
            lab.shape(Bandwidth(rate * DEGRADED_RATE), [DEGRADED_NODE])

    with _when_there(begun, degrade):
        yield


@contextmanager
def _when_there(sign: Path, act: Callable[[Event], object]) -> Iterator[None]:
    """Act as soon as a file is there; what acts gets an event that is set when this is left."""
    is_over = Event()

    def wait_and_act() -> None:
        while not sign.exists():
            if is_over.wait(POLL_S):
                return
        act(is_over)

    watcher = Thread(target=wait_and_act)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


@contextmanager
def _traffic(lab: Lab, rate: Bandwidth) -> Iterator[None]:
    """Let a spare node and a node that trains send each other datagrams, each at a part of its NIC's rate."""
    bits_per_s = round(rate * 8 * BUSY_SHARE * DATAGRAM / (DATAGRAM + HEADERS))
    sends = ("-c", address(BUSY_NODE), "-u", "-b", str(bits_per_s), "-l", str(DATAGRAM), "--bidir", "-t", "3600")
    with lab.running(BUSY_NODE, ("iperf3", "-s")):
        time.sleep(1)
        with lab.running(NUM_NODES, ("iperf3", *sends)):
            time.sleep(1)
            yield


def _launch_jobs(lab: Lab, jobs: Sequence[Job], cores: Sequence[float]) -> float:
    """Run jobs one after the other; each rank gets its part of a core when it has imported what it needs."""
    path = Path(jobs[0]["output"]).with_suffix(".jobs")
    _write(path, list(jobs))
    try:
        with _when_there(path.with_suffix(".joined"), partial(_limit, lab, cores, path.with_suffix(".limited"))):
            return _launch(lab, "studies.uneven.ranks", path)
    finally:
        signs = [path, path.with_suffix(".joined"), path.with_suffix(".limited")]
        for sign in [*signs, *(Path(job["output"]).with_suffix(".begun") for job in jobs)]:
            sign.unlink(missing_ok=True)


def _limit(lab: Lab, cores: Sequence[float], done: Path, _: Event) -> None:
    for rank, part in enumerate(cores):
        lab.set_cores(rank, part)
    done.touch()


def _launch(lab: Lab, module: str, *arguments: object) -> float:
    """Run a module as every rank, and return how long it took [s]."""
    command = ["env", *KEEPING_MEMORY, sys.executable, "-m", module, *map(str, arguments)]
    outcome = lab.launch(command, timeout_s=TIMEOUT_S)
    outcome.raise_if_failed()
    return outcome.elapsed_s


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
