"""`python -m benchmarks [-o FILE]`: how fast the simulator is, as a Markdown table.

Every figure is the best of several repetitions in this one run; a ratio compares two of them.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.every_hop import ring_all_reduce_s
from simnet.scenario import Scenario, load
from simnet.simulate import simulate, version

FLAT = {"strategy": {"kind": "all_reduce", "bucket_cap": "25 MB"}, "cluster.num_nodes": 8}
ONE_ALL_REDUCE = {
    "strategy": {"kind": "all_reduce", "bucketing": "fused", "overlap": False},
    "workload": {"gradient": "440 MB", "forward": "0 s", "backward": "0 s"},
}
Row = tuple[str, str, str]


def scenario(num_nodes: int, settings: dict[str, object], **more: object) -> Scenario:
    """Return the reference step with one strategy and no baseline."""
    return load("reference_ddp_step", {"baseline": None, **settings, "cluster.num_nodes": num_nodes, **more})


def best_s(function: Callable[[], object], repeat: int = 7) -> float:
    """Return the shortest of several runs [s]."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def folded_step() -> list[Row]:
    """Time the folded DDP step on few and on many nodes."""
    times = {n: best_s(lambda n=n: simulate(scenario(n, FLAT)), 15) for n in (8, 64, 512)}
    return [
        ("flat DDP step of 18 buckets, folded, 8 nodes", f"{times[8] * 1e3:.1f} ms", "1"),
        *(
            (f"the same, {n} nodes", f"{times[n] * 1e3:.1f} ms", f"{times[n] / times[8]:.2f} of 8 nodes")
            for n in (64, 512)
        ),
    ]


def exact_all_reduce() -> list[Row]:
    """Time one flat all-reduce with every send an event, against every hop as SimPy resources."""
    rows = []
    for nodes, repeat in ((8, 3), (64, 1)):
        ranks = nodes * 8
        naive_s = best_s(lambda r=ranks: ring_all_reduce_s(r, 440e6, 5e-6, 1.25e9), repeat)
        exact_s = best_s(lambda n=nodes: simulate(scenario(n, {**ONE_ALL_REDUCE, "run.fidelity": "exact"})), repeat)
        folded_s = best_s(lambda n=nodes: simulate(scenario(n, ONE_ALL_REDUCE)), 5)
        rows += [
            (f"one flat all-reduce of {ranks} ranks, every hop a SimPy Resource and Store", f"{naive_s:.2f} s", "1"),
            ("the same, exact executor", f"{exact_s:.2f} s", f"{exact_s / naive_s:.2f}"),
            ("the same, folded executor", f"{folded_s * 1e3:.1f} ms", f"1/{naive_s / folded_s:.0f}"),
        ]
    return rows


def in_new_process(code: str) -> tuple[float, float]:
    """Return seconds and peak memory [MiB] of a whole Python process."""
    wrapped = f"{code}\nimport resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", wrapped], check=True, capture_output=True, text=True)
    return time.perf_counter() - start, float(done.stdout.split()[-1])


def whole_processes() -> list[Row]:
    """Time processes from start to end: 4096 ranks, and the command line."""
    code = (
        "from simnet.simulate import simulate; from simnet.scenario import load; "
        "simulate(load('reference_ddp_step', {'cluster.num_nodes': 512}))"
    )
    seconds, mebibytes = min(in_new_process(code) for _ in range(3))
    command = [str(Path(sys.executable).parent / "simnet"), "simulate", "bert_base_10gbit"]
    table_s = best_s(lambda: subprocess.run(command, check=True, capture_output=True))
    empty_s = best_s(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))
    return [
        ("4096 ranks, flat against hierarchical DDP step, whole process", f"{seconds:.2f} s", f"{mebibytes:.0f} MiB"),
        ("`simnet simulate`, start to table", f"{table_s:.2f} s", f"{table_s / empty_s:.0f} empty Pythons"),
    ]


def sweep() -> list[Row]:
    """Time a sweep of 1,000 scenarios, serial and on two processes."""
    nodes = ",".join(str(n) for n in range(1, 51))
    rates = ",".join(f"{gbit} Gbit/s" for gbit in (5, 10, 15, 20, 25, 30, 40, 50, 75, 100))
    times = {}
    for jobs in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            command = [str(Path(sys.executable).parent / "simnet"), "sweep", "speedup"]
            command += [
                "--jobs",
                str(jobs),
                "-o",
                folder,
                "--set",
                f"cluster.num_nodes={nodes}",
                "--set",
                f"cluster.inter_node.bandwidth={rates}",
            ]
            times[jobs] = best_s(lambda c=command: subprocess.run(c, check=True, capture_output=True), 1)
    return [
        ("sweep of 1,000 scenarios (2 strategies each), 1 process", f"{times[1]:.1f} s", "1"),
        ("the same, 2 processes", f"{times[2]:.1f} s", f"{times[2] / times[1]:.2f}"),
    ]


PREFACE = """# Benchmarks

Made by `make bench BENCH_ARGS="-o docs/benchmarks.md"`; the best of several repetitions in one run on a shared machine,
so trust the ratios more than the seconds.

For scale, one flat ring all-reduce of 440 MB (whole process, the same class of machine): ASTRA-sim 2's analytical
back end (C++) takes 1.09 s and 101 MiB for 512 ranks, 188 s and 5449 MiB for 4096, and 20.4 s for the flat DDP step
of 512; SimGrid S4U (C++) 2.2 s for 512 and 525 s for 4096; ns.py (SimPy, every hop) 12-15 s for 512. The folded
executor gives the same times (to 10 ppm) at a cost that does not grow with the ranks; the exact one is for what is not
symmetric.

"""


def main() -> None:
    """Print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, help="write the table here too")
    output = parser.parse_args().output
    rows = [*folded_step(), *exact_all_reduce(), *whole_processes(), *sweep()]
    lines = [
        f"binsgdm {version()}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores; {time.strftime('%Y-%m-%d')}",
        "",
        "| what | time | ratio, or peak memory |",
        "|---|---|---|",
        *(f"| {what} | {seconds} | {ratio} |" for what, seconds, ratio in rows),
    ]
    print("\n".join(lines))
    if output is not None:
        output.write_text(PREFACE + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
