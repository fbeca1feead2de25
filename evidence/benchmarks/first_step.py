"""Seconds until BinSGDM's first step is done, kernels compiled or not.

    python -m evidence.benchmarks.first_step

All ranks start at once on this machine, over gloo. torch and its compiler, which every optimizer of torch imports, are
loaded before the clock starts. "Empty": nothing was compiled before; "filled": a second start.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

RANK = """
import time
import torch, torch._dynamo, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import binsgdm

dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 10))
ddp = DistributedDataParallel(model)
dist.barrier()
start = time.perf_counter()
optimizer = binsgdm.BinSGDM(model.parameters())
binsgdm.attach(optimizer, ddp)
attached = time.perf_counter()
ddp(torch.ones(4, 100)).sum().backward()
optimizer.step()
times = torch.tensor([attached - start, time.perf_counter() - attached])
dist.all_reduce(times, dist.ReduceOp.MAX)
if dist.get_rank() == 0:
    print(*times.tolist(), flush=True)
time.sleep(0.2)  # gloo's thread lets go of the tensor above; at the end of Python that would abort the process
dist.destroy_process_group()
"""


def main() -> None:
    """Print the seconds of attach and of the first iteration on the slowest rank, of two and of four."""
    print("| ranks | cache | attach [s] | first iteration [s] |\n|---|---|---|---|")
    for ranks in (2, 4):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "rank.py"
            program.write_text(RANK, encoding="utf-8")
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": folder}
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(program)]
            for cache in ("empty", "filled"):
                words = [sys.executable, *launch]
                done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
                attach_s, iteration_s = map(float, done.stdout.split())
                print(f"| {ranks} | {cache} | {attach_s:.2f} | {iteration_s:.2f} |", flush=True)


if __name__ == "__main__":
    main()
