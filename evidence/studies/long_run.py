"""Ten thousand steps on four ranks: do replicas stay equal, and memory, threads, files and process groups the same?"""

import json
import os
import resource
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import binsgdm
from evidence import RESULTS
from evidence.studies import figures
from evidence.studies.chaos import Case
from evidence.studies.chaos_ranks import attached
from evidence.studies.page import BINSGDM, FIGURES
from evidence.studies.study import Ledger, Row
from simnet.report.table import Table

LEDGER = Ledger(RESULTS / "long_run.json")
STEPS, EVERY = 10_000, 100
WORLD_SIZE, RANKS_PER_NODE = 4, 2
WARM_UP = 1_000
"""Steps after which memory has to be flat: caches and allocators have filled by then."""
MARKS = (WARM_UP, 2_000, STEPS // 2, STEPS)
"""Steps that the table shows memory at."""
PAGE = BINSGDM
CASES = {
    name: Case(name, called, options)
    for name, called, options in (
        ("BinSGDM, random rounding", "BinSGDM", {"rounding": "random"}),
        ("BinSGDM, shaped rounding", "BinSGDM", {"rounding": "shaped"}),
        ("1-bit Adam", "OneBitAdam", {"dense_steps": 1_000}),
        ("top_k, gather", "compress_gradients", {"system": "top_k", "topology": "gather", "ratio": 0.05}),
        ("qsgd, scatter_reduce", "compress_gradients", {"system": "qsgd", "topology": "scatter_reduce"}),
    )
}


def work(rank: int, name: str, folder: Path) -> None:
    """Train as one rank; compare replicas and leave a sample of this process every hundred steps."""
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS_PER_NODE)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD_SIZE)
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).requires_grad_(requires_grad=False)
    module = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 4))
    ddp = DistributedDataParallel(module, bucket_cap_mb=0.008)  # several buckets
    optimizer = attached(ddp, CASES[name], sgd_lr=0.02, bucket_cap_mb=0.008)["optimizer"]
    generator = torch.Generator().manual_seed(rank + 1)
    samples, start = [], time.monotonic()
    for number in range(STEPS):
        inputs = torch.randn(8, 16, generator=generator)
        optimizer.zero_grad()
        loss = (ddp(inputs) - teacher(inputs)).square().mean()
        loss.backward()
        optimizer.step()
        if (number + 1) % EVERY == 0:
            binsgdm.check_replicas(ddp)
            samples.append(sample() | {"step": number + 1, "loss": loss.item(), "seconds": time.monotonic() - start})
    (folder / f"{rank}.json").write_text(json.dumps(samples))
    dist.barrier()
    dist.destroy_process_group()


def sample() -> dict[str, Any]:
    """Return what this process holds: memory [KiB], threads, open files and process groups."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "rss_kib": pages * resource.getpagesize() // 1024,
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "groups": len(dist.distributed_c10d._world.pg_map),
    }


def train(name: str) -> dict[str, Any]:
    """Train a case, and return the largest of the ranks' samples, step by step."""
    with tempfile.TemporaryDirectory() as folder:
        # torch is there already, and has started no thread that a fork would lose.
        multiprocessing.start_processes(work, (name, Path(folder)), WORLD_SIZE, start_method="fork")
        of_ranks = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(WORLD_SIZE)]
    rows = list(zip(*of_ranks, strict=True))
    largest = {
        key: [max(sample[key] for sample in row) for row in rows] for key in ("rss_kib", "threads", "files", "groups")
    }
    grown = [[sample["rss_kib"] for sample in of_rank] for of_rank in of_ranks]
    return largest | {
        "steps": STEPS,
        "loss": [round(sum(sample["loss"] for sample in row) / WORLD_SIZE, 5) for row in rows],
        "seconds": round(rows[-1][0]["seconds"], 1),
        # Of the rank that grew most, not of the largest.
        "grown_kib": max(of_rank[-1] - of_rank[WARM_UP // EVERY - 1] for of_rank in grown),
    }


def run(options: Namespace) -> None:
    """Train what is not done yet, minutes each; can be stopped and started at any time."""
    for name in CASES:
        key = {"case": name, "steps": STEPS}
        if options.only in name and not LEDGER.having(key):
            row = train(name)
            LEDGER.put(key, row)
            outcome = f"memory grew by {row['grown_kib']} KiB, loss {row['loss'][-1]}"
            print(f"{name}: {row['seconds']} s, {outcome}", flush=True)


def read() -> list[Row]:
    return LEDGER.having({"steps": STEPS})


def data(rows: Sequence[Row]) -> Mapping[str, Table]:
    """Return for each run what a process held early and at the end."""
    lines = []
    for row in rows:
        held = [row[name][WARM_UP // EVERY - 1 :] for name in ("threads", "files", "groups")]
        spans = [" to ".join(map(str, dict.fromkeys((min(some), max(some))))) for some in held]
        memory = [f"{row['rss_kib'][step // EVERY - 1] / 1024:.1f}" for step in MARKS]
        lines.append([row["case"], str(row["steps"] // EVERY), *memory, *spans, f"{row['loss'][-1]:.4f}"])
    at_marks = [f"MiB at step {step:,}" for step in MARKS]
    return {"long-run": Table(["exchange", "comparisons", *at_marks, "threads", "files", "groups", "loss"], lines)}


def draw(rows: Sequence[Row]) -> None:
    """Draw memory over steps, less that at the first sample, a line for each run."""
    with figures.panels(FIGURES / "long_run.png", 1, 1, (6.5, 2.8)) as (figure, (axis,)):
        for row, colour in zip(rows, figures.COLOURS, strict=True):
            steps = range(EVERY, row["steps"] + 1, EVERY)
            mib = [(value - row["rss_kib"][0]) / 1024 for value in row["rss_kib"]]
            axis.plot(steps, mib, "-", color=colour, label=row["case"])
        axis.set(xlabel="Step", ylabel="Resident memory of the largest\nrank, since step 100 (MiB)")
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, STEPS)
        axis.grid(alpha=0.25, linewidth=0.5)
        figure.legend(loc="outside right center")
