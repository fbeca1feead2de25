"""`python -m benchmarks.first_step [--ranks 2 4]`: seconds until BinSGDM's first step is done, kernels compiled or not.

All ranks start at once on this machine, over gloo. torch and its compiler, which every optimizer of torch imports, are
loaded before the clock starts. "Empty": nothing was compiled before; "filled": a second start.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

SETTINGS = {
    "shaped, hierarchical": ("{}", "{}"),
    "random, hierarchical": ("{'rounding': 'random'}", "{}"),
    "shaped, flat": ("{}", "{'topology': 'flat'}"),
    "shaped, average gradients": ("{}", "{'average': 'gradients'}"),
}
RANK = """
import sys, time
import torch, torch._dynamo, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import binsgdm

dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 10))
ddp = DistributedDataParallel(model)
dist.barrier()
start = time.perf_counter()
optimizer = binsgdm.BinSGDM(model.parameters(), **{options})
binsgdm.attach(optimizer, ddp, **{scheme})
attached = time.perf_counter()
ddp(torch.ones(4, 100)).sum().backward()
optimizer.step()
print(attached - start, time.perf_counter() - attached, flush=True)
dist.destroy_process_group()
"""


def started(ranks: int, program: str, cache: Path) -> tuple[float, float]:
    """Start ranks; return the seconds of attach and of the first iteration on the slowest."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    common |= {"LOCAL_WORLD_SIZE": str(ranks), "NUMBA_CACHE_DIR": str(cache)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(ranks)
    ]
    rows = [tuple(map(float, process.communicate()[0].split())) for process in processes]
    attach_s, iteration_s = map(max, zip(*rows, strict=True))
    return attach_s, iteration_s


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    given = parser.parse_args()
    print("| ranks | BinSGDM | cache | attach [s] | first iteration [s] |")
    print("|---|---|---|---|---|")
    for ranks in given.ranks:
        for title, (options, scheme) in SETTINGS.items():
            program = RANK.replace("{options}", options).replace("{scheme}", scheme)
            with tempfile.TemporaryDirectory() as folder:
                for cache in ("empty", "filled"):
                    attach_s, iteration_s = started(ranks, program, Path(folder))
                    print(f"| {ranks} | {title} | {cache} | {attach_s:.2f} | {iteration_s:.2f} |", flush=True)


if __name__ == "__main__":
    main()
