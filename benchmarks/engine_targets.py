"""What `python -m benchmarks engine --before CHECKOUT` times: what people wait for, beside the time that is wanted.

Then how cost grows with ranks, buckets, points and draws, so that a cliff is seen. Trust ratios more than seconds.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks import uneven_cases
from benchmarks.cases import FUSED, MORE_RATES, ONE_ALL_REDUCE
from benchmarks.timing import Case, Group, command, fresh, program

EMPTY = Case("an empty Python", ("-c", "pass"), "cpu", 15)
IMPORTS_TORCH = Case("import torch", ("-c", "import torch"), "wall", 3)
BERT, LLAMA = "bert_base_10gbit", "what_to_use"
RANKS = (1, 8, 16, 64, 96, 128, 256, 512, 1_024, 4_096, 16_384, 100_000)
FIRST_TREE = """
simulate(load("reference_ddp_step", {warm!r}))
given = load("reference_ddp_step", {settings!r})
"""
POINTS = """
points = iter([load({name!r}, {{**{settings!r}, "cluster.inter_node.bandwidth": f"{{20 + number / 7}} Gbit/s"}})
               for number in range({runs})])
"""
"""Scenarios of which none was simulated before, since each has another bandwidth."""
VIEWS = """
from dataclasses import replace
from simnet.report.explorer_knobs import Knobs
from simnet.report.explorer_live import view
knobs = Knobs(load("what_to_use", {"workload": "llama_70b"}), "what_to_use")
view(knobs, knobs.start)
"""


def groups() -> list[Group]:
    """Return all groups."""
    caps = (100_000, 25_000, 5_000, 1_000, 250, 100)
    return [
        Group("Targets of the engine", list(targets())),
        Group("Ranks, all alike", [alike(ranks) for ranks in RANKS]),
        Group("Ranks, one of them slow", [slow_rank(f"{ranks:,}", ranks) for ranks in RANKS if ranks > 1]),
        Group("Buckets of a DDP step", [buckets(cap_kb) for cap_kb in caps]),
        Group("Points of a sweep in one process, each", [points(count) for count in (2, 20, 200, 1_000)]),
        Group(
            "Draws of an interval",
            [
                program(str(count), f"given = load({BERT!r}, {{'run.draws': {count}}})", "simulate(given)", 3)
                for count in (20, 50, 100, 200, 1_000)
            ],
        ),
    ]


def targets() -> Iterator[Case]:
    """Yield what has a target, and what is seen beside it."""
    shown = ((BERT, (), "150 ms"), ("reference_ddp_step", (), "85 ms"), (LLAMA, ("--set", "strategy=fsdp"), "250 ms"))
    for name, words, aim in shown:
        title = f"`simulate {' '.join((name, *words))}`, with its interval, beyond an empty Python"
        yield command(title, "simulate", name, *words, repeat=9)._replace(aim=aim, beyond=EMPTY)
    setup = POINTS.format(name=LLAMA, settings={"workload": "llama_70b", "run.draws": 0}, runs=12)
    yield program("a point of llama_70b, one process", setup, "simulate(next(points))", 12)._replace(aim="20 ms")
    for count, nodes, repeat, aim in (
        (1_000, "8", 2, "1.5 s"),
        (100_000, ",".join(map(str, range(1, 101))), 1, "60 s"),
    ):
        axes = (f"cluster.num_nodes={nodes}", f"cluster.inter_node.bandwidth={MORE_RATES}")
        settings = [word for axis in axes for word in ("--set", axis)]
        words = ("sweep", "speedup", "--format", "csv", *settings)
        title = f"a sweep of {count:,} points from the shell, wall time"
        yield command(title, *words, clock="wall", repeat=repeat)._replace(aim=aim)
    for name, title, aim in ((BERT, "BERT-Base", "2.5 s"), (LLAMA, "llama_1b", "4 s")):
        yield command(f"`advise` of {title}, CPU time", "advise", name, repeat=2)._replace(aim=aim)
    for ranks, aim in ((64, "40 ms"), (96, ""), (4_096, "")):
        yield slow_rank(f"a slow rank of {ranks:,}, first time", ranks)._replace(aim=aim)
    for layers, ranks in ((10, 64), (334, 64)):
        setup = f"from benchmarks.recorded import sharded_step\ngiven = sharded_step({layers}, {ranks // 8})"
        title = f"a collective of a recorded step of {3 * layers:,}"
        yield program(title, setup, "simulate(given)", 5)._replace(aim="30 us", parts=3 * layers)
    for nodes_of_tree, aim in ((8, "less"), (16_384, "0.67")):
        settings = {**ONE_ALL_REDUCE, "strategy": {**FUSED, "algorithm": "tree"}, "cluster.num_nodes": nodes_of_tree}
        setup = FIRST_TREE.format(warm=ONE_ALL_REDUCE, settings=settings)
        yield fresh(f"first price of a tree on {nodes_of_tree:,} nodes", setup, "simulate(given)")._replace(aim=aim)
    yield program("a view of `explore` on llama_70b, seen before", VIEWS, "view(knobs, knobs.start)", 5)
    rates = "places = iter([replace(knobs.start, gbit_per_s=float(rate)) for rate in (1, 2, 5, 10, 50, 200, 400, 800)])"
    title = "a view of `explore`, another bandwidth"
    yield program(title, VIEWS + rates, "view(knobs, next(places))", 8)._replace(aim="60 ms")
    title = "`doctor` beyond importing torch, wall time"
    yield command(title, "doctor", clock="wall", repeat=3)._replace(aim="1 s", beyond=IMPORTS_TORCH)


def alike(ranks: int) -> Case:
    """Return a step of ranks that are all alike, simulated for the first time."""
    return uneven_cases.case(f"{ranks:,}", settings_of(ranks), settings_of(ranks))


def slow_rank(title: str, ranks: int) -> Case:
    """Return a step with one slow rank, simulated for the first time."""
    settings = settings_of(ranks, {**uneven_cases.SLOW_RANK, "node": 0, "local_rank": 0})
    return uneven_cases.case(title, settings, settings)


def settings_of(ranks: int, *faults: dict[str, Any]) -> dict[str, Any]:
    """Return a DDP step on so many ranks, 8 a node where there are as many."""
    few = {"cluster.num_nodes": 1, "cluster.ranks_per_node": ranks} if ranks < 8 else {}
    return {**uneven_cases.scenario(ranks, uneven_cases.DDP, faults), **few}


def buckets(cap_kb: int) -> Case:
    """Return a step of equal small tensors in buckets of one size."""
    rows = [{"shape": [1_000, 25], "count": 4_400}]
    workload = {"tensors": rows, "forward": "40 ms", "backward": "80 ms", "optimizer": "5 ms"}
    strategy = {"kind": "all_reduce", "bucket_cap": f"{cap_kb} kB"}
    settings = {"workload": workload, "strategy": strategy, "baseline": None}
    setup = f"given = load('reference_ddp_step', {settings!r})"
    return program(f"{-(-440_000 // cap_kb):,}", setup, "simulate(given)", 3)


def points(count: int) -> Case:
    """Return a point of a sweep of so many by a function, not the shell."""
    setup = f"import simnet\nrates = [f'{{5 + number / 9}} Gbit/s' for number in range({count})]"
    work = (
        f"simnet.sweep({BERT!r}, axes={{'cluster.inter_node.bandwidth': rates}}, settings={{'run.draws': 0}}, jobs=1)"
    )
    return program(f"{count:,}", setup, work, 1)._replace(parts=count)
