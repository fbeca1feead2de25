"""What the lab does for nodes that are not alike: steps without messages, then trainings with a fault put in."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread

from simnet.core.units import Bandwidth
from simnet.validation.lab.lab import Lab
from simnet.validation.lab.plan import NETWORK, LabSpec, address
from studies.lab import campaign as engine
from studies.lab import uneven_forecast as uneven
from studies.lab.campaign import LabCampaign, Row, Tell, mbit, read, write
from studies.lab.uneven_forecast import CORES, NUM_NODES, FaultName

OWN_STEPS = 50
"""Steps without messages that are timed before each launch of trainings, with each strategy."""
WARM_UP = 5
POLL_S = 0.005
IMPORT_CORES = 1.0
"""Part of a core of a rank while it imports torch."""
DATAGRAM, HEADERS = 1400, 42
"""Bytes of a datagram of the others, and of its headers, which the NIC's limit counts."""
EQUAL_CORES = (CORES,) * NUM_NODES
SLOW_CORES = tuple(CORES / uneven.SLOWDOWN if rank == uneven.SLOW_RANK else CORES for rank in range(NUM_NODES))


def everything(campaign: LabCampaign, folder: Path, tell: Tell) -> None:
    """Calibrate; then for each bandwidth and fault measure own work, predict, and train; goes on where it was."""
    engine.measure(campaign, folder, tell)
    for rate in campaign.bandwidths:
        for fault in uneven.FAULTS:
            name = f"predicted_{uneven.place(fault, mbit(rate))}"
            if not (folder / f"{name}.json").exists():
                own = [
                    _job("own", folder, {"strategy": one.argument, "steps": OWN_STEPS}, fault, rate)
                    for one in uneven.STRATEGIES
                ]
                with Lab(_spec(None)) as lab:
                    tell(f"own work before {fault} at {rate.text()}: {_launch_jobs(lab, own, EQUAL_CORES):.0f} s")
                rows = uneven.predict(folder, rate, fault)
                write(folder, name, {"written_s": time.time(), "rows": rows})
            rows = read(folder, name)["rows"]
            tell(f"{fault} at {rate.text()}: {_train(folder, rate, fault, rows):.0f} s")


def _spec(rate: Bandwidth | None, spare_nodes: int = 0) -> LabSpec:
    return LabSpec(num_nodes=NUM_NODES, bandwidth=rate, cores_per_rank=IMPORT_CORES, spare_nodes=spare_nodes)


def _job(kind: str, folder: Path, row: Row, fault: FaultName, rate: Bandwidth) -> Row:
    """Return what ranks do for a row: steps with its strategy, "trained", or without messages, "own"."""
    is_own = kind == "own"
    output = folder / uneven.steps_file("own" if is_own else "trained", row["strategy"], fault, mbit(rate))
    return {
        "strategy": row["strategy"], "output": str(output), "steps": row["steps"], "warm_up": WARM_UP,
        "without_messages": is_own, "model": uneven.MODEL, "batch": uneven.BATCH,
        "bucket_cap_mb": uneven.BUCKET_CAP_MB, "nic_bytes_per_s": None if is_own else float(rate),
        "network": f"{NETWORK}, {CORES:g} of a core a rank",
    }  # fmt: skip


def _train(folder: Path, rate: Bandwidth, fault: FaultName, rows: Sequence[Row]) -> float:
    """Train with every strategy under a fault; return the time of the launches [s]."""
    jobs = [_job("trained", folder, row, fault, rate) for row in rows]
    todo = [(job, row) for job, row in zip(jobs, rows, strict=True) if not Path(job["output"]).exists()]
    cores, elapsed_s = SLOW_CORES if fault == "slow rank" else EQUAL_CORES, 0.0
    # A NIC that gets slower in mid-run is as it was before the next strategy: each has a launch of its own.
    launches = [[one] for one in todo] if fault == "degrading NIC" else [todo] if todo else []
    for launch in launches:
        with Lab(_spec(rate, spare_nodes=1)) as lab, _put_in(lab, fault, rate, launch[0]):
            elapsed_s += _launch_jobs(lab, [job for job, _ in launch], cores)
    return elapsed_s


@contextmanager
def _put_in(lab: Lab, fault: FaultName, rate: Bandwidth, first: tuple[Row, Row]) -> Iterator[None]:
    """Put a fault into the lab for a while."""
    with ExitStack() as stack:
        if fault == "slow NIC":
            lab.shape(Bandwidth(rate * uneven.SLOW_RATE), [uneven.SLOW_NODE])
        elif fault == "degrading NIC":
            job, row = first
            begun = Path(job["output"]).with_suffix(".begun")

            def degrade(is_over: Event) -> None:
                """Make a NIC slower some time after a training has begun."""
                left_s = begun.stat().st_mtime + row["degrades_after_s"] - time.time()
                if not is_over.wait(max(0.0, left_s)):
                    lab.shape(Bandwidth(rate * uneven.DEGRADED_RATE), [uneven.DEGRADED_NODE])

            stack.enter_context(_when_there(begun, degrade))
        elif fault == "background traffic":
            stack.enter_context(_traffic(lab, rate))
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
    bits_per_s = round(rate * 8 * uneven.BUSY_SHARE * DATAGRAM / (DATAGRAM + HEADERS))
    busy = uneven.BUSY_NODE
    sends = ("-c", address(busy), "-u", "-b", str(bits_per_s), "-l", str(DATAGRAM), "--bidir", "-t", "3600")
    with lab.running(busy, ("iperf3", "-s")):
        time.sleep(1)
        with lab.running(NUM_NODES, ("iperf3", *sends)):
            time.sleep(1)
            yield


def _launch_jobs(lab: Lab, jobs: Sequence[Row], cores: Sequence[float]) -> float:
    """Run jobs one after the other; each rank gets its part of a core when it has imported what it needs."""
    output = Path(jobs[0]["output"])
    path, joined, limited = (output.with_suffix(suffix) for suffix in (".jobs", ".joined", ".limited"))

    def limit(_: Event) -> None:
        for rank, part in enumerate(cores):
            lab.set_cores(rank, part)
        limited.touch()

    path.write_text(json.dumps(jobs), encoding="utf-8")
    try:
        with _when_there(joined, limit):
            return engine.run_module(lab, "studies.lab.uneven_ranks", path)
    finally:
        for sign in (path, joined, limited, *(Path(job["output"]).with_suffix(".begun") for job in jobs)):
            sign.unlink(missing_ok=True)
