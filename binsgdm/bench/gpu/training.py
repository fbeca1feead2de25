"""Check trainings: losses, skipped steps, resumed runs, and replicas over all cards."""

import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from binsgdm.bench import training
from binsgdm.bench.bench import Bench
from binsgdm.bench.gpu import recorded, replicas, trainings
from binsgdm.bench.record import Record

STRATEGIES = ("all_reduce", "binsgdm", "binsgdm:overlap", "one_bit_adam", "qsgd:bits=4")
MODEL, QUICK_MODEL = ("transformer_25m", 64), ("mlp_200k", 2)  # model and samples a rank
REPLICAS_SHARE = 0.8  # of the time that is left
FIXED_ORDER = ":4096:8"  # what cuBLAS needs to sum in one order, as PyTorch's documentation of determinism says


def measure(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add the outcome of all checks; where there are two ranks, also steps of training under several strategies.

    Rank 0 alone checks what needs one rank; the others wait for it.
    """
    end_s = time.perf_counter() + seconds
    record, ranks = bench.record, bench.ranks
    with _sums_in_one_order():
        if ranks.rank == 0:
            trainings.check_skipped_steps(record, ranks.device)
            bench.progress(0.1)
            trainings.check_resumed_runs(record, ranks.device, quick=quick)
        ranks.barrier()
    bench.progress(0.3)
    if ranks.rank == 0:
        trainings.check_losses(record, ranks.device, quick=quick)
        if ranks.device.type == "cuda":
            trainings.check_graphs_refused(record, ranks.device)
    ranks.barrier()
    if ranks.groups is None:
        record.note("replicas: this process is in no process group: left out")
        return
    # Where there are several ranks, steps of training need the rest.
    share = 1.0 if ranks.world_size < 2 else REPLICAS_SHARE
    replicas.check(bench.part(0.5, 0.9), share * (end_s - time.perf_counter()))
    if ranks.device.type == "cuda":
        if ranks.rank == 0:
            _check_recorded_steps(record, ranks.device, end_s - time.perf_counter())
        ranks.barrier()
    if ranks.world_size < 2:
        record.note("one rank: NCCL carries nothing, and steps under strategies of several ranks are left out")
        return
    model, batch = QUICK_MODEL if quick else MODEL
    each_s = max(0.0, end_s - time.perf_counter()) / len(STRATEGIES)
    rule = replace(bench.stop_rule, max_seconds=min(bench.stop_rule.max_seconds, each_s))
    training.measure(
        replace(bench.part(0.9, 1.0), stop_rule=rule),
        models=[model],
        batch=batch,
        strategies=[training.strategy(text) for text in STRATEGIES],
    )


def _check_recorded_steps(record: Record, device: torch.device, left_s: float) -> None:
    """Check them if there is time for it."""
    if left_s < recorded.LIMIT_S:
        record.note(f"recorded steps: no time was left for the {recorded.LIMIT_S} s that they may take: left out")
    else:
        recorded.check_recorded_steps(record, device)


@contextmanager
def _sums_in_one_order() -> Iterator[None]:
    """Ask for algorithms whose results are the same in every run, where there are such."""
    name = "CUBLAS_WORKSPACE_CONFIG"
    before = os.environ.get(name)
    os.environ[name] = FIXED_ORDER
    was_asked = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            yield
    finally:
        torch.use_deterministic_algorithms(was_asked, warn_only=warns_only)
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
