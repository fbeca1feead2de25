"""What two gloo ranks do with the checks that `simnet measure gpu` makes over all cards."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from binsgdm.bench.bench import Bench
from binsgdm.bench.gpu import attached, lockstep, replicas, samples
from binsgdm.bench.ranks import Ranks, joined
from binsgdm.bench.record import Record
from binsgdm.bench.timing import StopRule
from binsgdm.parallel import local_gradients

WORLD_SIZE = 2


def planted_errors(ranks: Ranks) -> dict[str, Callable[[], int]]:
    """Return comparisons that fail: with an error of their own, or with what is put in the place of the control."""
    wrong = [torch.ones(3), torch.ones(2) + (2.0**-23 if ranks.rank == 1 else 0.0)]
    return {
        "a bit of rank 1": lambda: samples.num_wrong(ranks, wrong, wrong),
        "an error": lambda: 1 // 0,
        "another mean": lambda: replicas._system(ranks, ranks.groups, "qsgd"),
        "another mean, compress_gradients": lambda: replicas._system(ranks, None, "qsgd", bits=4),
        "attach": lambda: attached._attached(ranks, True),
        "attach_fsdp": lambda: attached._attached_fsdp(ranks),
        "compress_replicas": lambda: attached._compressed_replicas(ranks, "byte_grad", {}),
        "LocalSGD": lambda: attached._local_sgd(ranks, "fp32"),
        "DiLoCo": lambda: attached._diloco(ranks, {"exchange": "int8"}),
    }


def with_another_bit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what gives another last bit in the first element of the last tensor of rank 1, or of all ranks."""

    def changed(*args: Any, **given: Any) -> Any:
        found = function(*args, **given)
        of_rank = found[-1] if isinstance(found[-1], list) else found
        of_rank[-1] = of_rank[-1].clone()
        of_rank[-1].view(-1).view(torch.int32)[0] ^= 1
        return found

    return changed


ANOTHER_CONTROL = {
    name: with_another_bit(getattr(attached, name))
    for name in ("in_one_process", "_averaged_in_one_process", "averaged_steps", "outer_steps")
}
another_mean = with_another_bit(replicas._means)


def average_nothing(
    state: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    """Hand the bucket back as it is, as a hook."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def work(rank: int, where: dict[str, str], folder: str) -> None:
    """Compare everything, then with a planted error; rank 0 leaves the outcomes in a file."""
    torch.set_num_threads(1)
    os.environ |= where | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD_SIZE), "LOCAL_WORLD_SIZE": str(WORLD_SIZE),
    }  # fmt: skip
    # What a rank compares alone is tested in one process.
    with joined(device="cpu") as ranks, mock.patch.object(lockstep, "cases", return_value=()):
        good = Record(ranks)
        replicas.check(Bench(record=good, ranks=ranks, stop_rule=StopRule()), seconds=600.0)
        short = Record(ranks)
        replicas.check(Bench(record=short, ranks=ranks, stop_rule=StopRule()), seconds=-1.0 if rank == 0 else 600.0)
        planted = Record(ranks)
        bench = Bench(record=planted, ranks=ranks, stop_rule=StopRule())
        for name, num_wrong in planted_errors(ranks).items():
            with mock.patch.multiple(replicas, _means=another_mean), mock.patch.multiple(attached, **ANOTHER_CONTROL):
                replicas._add(bench, samples.RankComparison(name=name, num_wrong=num_wrong))
        with mock.patch.object(local_gradients, "average_foreign", average_nothing):
            replicas._add(
                bench, samples.RankComparison(name="no average", num_wrong=lambda: attached._attached(ranks, False))
            )
    if rank == 0:
        found = {"good": good.checks, "planted": planted.checks, "short": [short.checks, short.notes]}
        (Path(folder) / "checks.json").write_text(json.dumps(found))
