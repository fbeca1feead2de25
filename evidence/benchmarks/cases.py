"""What `python -m evidence.benchmarks` times: the simulator, ranks that differ, what people wait for, and Dask.

Trust ratios more than seconds.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

from evidence.benchmarks.timing import SELF_TIMED, Case, command, program

Settings = dict[str, Any]
Groups = dict[str, list[Case]]
"""Cases by the title of their table; where only a size grows, the ratio to the first is the cost of growth."""
BERT, FLAT_STEP, TO_USE = "bert_base_10gbit", "reference_ddp_step", "what_to_use"
NODES, BANDWIDTH, FAULTS = "cluster.num_nodes", "cluster.inter_node.bandwidth", "cluster.faults"
RATES = ",".join(f"{gbit} Gbit/s" for gbit in (5, 10, 15, 20, 25, 30, 40, 50, 75, 100))
SIXTY_RATES = ",".join(f"{gbit} Gbit/s" for gbit in range(10, 70))
FIFTY_NODES = ("--set", f"{NODES}={','.join(map(str, range(1, 51)))}")
MORE_RATES = ",".join(f"{gbit} Gbit/s" for gbit in range(1, 501))
FUSED = {"kind": "all_reduce", "bucketing": "fused", "overlap": False}
ONE_ALL_REDUCE = {
    "strategy": FUSED,
    "workload": {"gradient": "440 MB", "forward": "0 s", "backward": "0 s"},
    "baseline": None,
}
LLAMA = (
    '{forward = "180 ms", backward = "360 ms", batch_per_rank = 4, tensors = [{shape = [32000, 2048]}, '
    "{shape = [2048], count = 49, backward_share = 0.02}, {shape = [2048, 5504], count = 24}, "
    "{shape = [5504, 2048], count = 48}, {shape = [2048, 2048], count = 96}, {shape = [32000, 2048]}]}"
)
"""1.35 billion parameters in 219 tensors."""
DDP = {"kind": "all_reduce"}
STREAMING = {"kind": "diloco", "inner_steps": 100, "fragments": 4, "overlap_steps": 5}
SWEEP = ("sweep", "speedup", "--format", "csv")


def step(title: str, settings: Settings, name: str = FLAT_STEP, runs: int = 15) -> Case:
    """Return the case of simulating one scenario again and again."""
    return program(title, f"given = load({name!r}, {settings!r})", runs=runs)


def of(strategy: Settings, **more: Any) -> Settings:
    return {"strategy": strategy, "baseline": None, **more}


def recorded(title: str, layers: int, nodes: int) -> Case:
    setup = f"from evidence.benchmarks.recorded import sharded_step\ngiven = sharded_step({layers}, {nodes})"
    return program(title, setup, runs=5)


def simulator() -> Groups:
    """Return the simulator's, from a folded step to whole commands, the fast ones first."""
    groups: Groups = {}
    by_size = of(DDP, workload="bert_base")
    ways: list[tuple[str, Settings]] = [
        ("DDP", DDP),
        ("ZeRO-2", {"kind": "zero2"}),
        ("FSDP", {"kind": "fsdp"}),
        ("HSDP", {"kind": "hsdp"}),
        ("HSDP, BinSGDM between copies", {"kind": "hsdp", "replicas": "binsgdm"}),
        ("local SGD", {"kind": "local_sgd"}),
        ("DiLoCo", {"kind": "diloco"}),
        ("DiLoCo, FSDP in a node", {"kind": "diloco", "in_node": "fsdp"}),
        ("streaming DiLoCo", STREAMING),
    ]
    groups["One folded step, in a process that has simulated it before"] = [
        step("BERT-Base, flat ring DDP", of({**DDP, "algorithm": "ring"}), BERT),
        step("BERT-Base, hierarchical DDP", of({**DDP, "algorithm": "hierarchical"}), BERT),
        step("BERT-Base, BinSGDM", of({"kind": "binsgdm"}), BERT),
        # Where the calibration holds NCCL's costs, the default chooses by the size of each bucket.
        step("BERT-Base, DDP by default on InfiniBand", by_size, "infiniband"),
    ]
    groups["Nodes, folded"] = [
        step(f"{nodes} nodes", {**of({**DDP, "bucket_cap": "25 MB"}), NODES: nodes}) for nodes in (8, 64, 512)
    ]
    groups["Recorded steps, folded"] = [
        recorded(f"{3 * layers:,} collectives, {8 * nodes:,} ranks", layers, nodes)
        for layers, nodes in ((10, 8), (100, 8), (334, 8), (334, 64), (334, 512))
    ]
    groups["Sharding and local steps, 1.3 B parameters on 128 GPUs, folded"] = [
        step(title, of(strategy), TO_USE, 7) for title, strategy in ways
    ]
    groups["Start-up"] = [
        EMPTY,
        command("`simnet --version`", "--version", repeat=10),
        command("`simnet simulate bert_base_10gbit`", "simulate", BERT, repeat=15),
        command("`simnet simulate`, 4096 ranks", "simulate", FLAT_STEP, "--set", f"{NODES}=512", repeat=3),
    ]
    groups["Draws for the intervals of a speedup"] = [
        step(f"BERT-Base, {number} draws", {"run.draws": number}, BERT, 7) for number in (0, 20, 50, 200)
    ]
    groups["1,000 points of `simnet sweep speedup`"] = [
        command(f"{title}, {how}", *SWEEP, *sets(axes), "--jobs", jobs, clock=clock)
        for title, axes in (
            ("8 nodes, 500 bandwidths", {NODES: "8", BANDWIDTH: MORE_RATES}),
            ("50 numbers of nodes, 10 bandwidths", {NODES: ",".join(map(str, range(1, 51))), BANDWIDTH: RATES}),
        )
        for how, jobs, clock in (("CPU time of one process", "1", "cpu"), ("wall time of two", "2", "wall"))
    ]
    groups["Searches and pages, CPU time"] = searches()
    groups["`simnet report`, whole process"] = [
        command(f"BERT-Base, {title}", "report", BERT, *more, "-o", "/dev/null")
        for title, more in (("without the ranking", ("--systems", "")), ("with all alternatives", ()))
    ]
    return groups


EMPTY = Case("an empty Python", ("-c", "pass"), "cpu", 15)


def sets(axes: dict[str, str]) -> list[str]:
    return [word for key, values in axes.items() for word in ("--set", f"{key}={values}")]


def searches() -> list[Case]:
    """Return the commands that simulate many scenarios."""
    crossover = ("--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "400 Gbit/s")
    llama = sets({"workload": LLAMA, NODES: "16", BANDWIDTH: "25 Gbit/s"})
    return [
        command("`crossover`", "crossover", BERT, *crossover),
        # By its former name, which checkouts given as --before know as well.
        command("`time-to-target`", "race", BERT, "characters", "--same-task"),
        command("`advise`, BERT-Base", "advise", BERT),
        command("`advise`, BERT-Large on InfiniBand", "advise", "infiniband"),
        command("`advise`, 1.35 billion parameters on 128 GPUs", "advise", BERT, *llama),
        command("`validate --published`", "validate", "--published"),
    ]


# Ranks that differ: BERT-Base at 10 Gbit/s, 8 ranks a node.

SLOW_RANK = {"kind": "slow_rank", "node": 3, "local_rank": 5, "compute_slowdown": 1.3}
SLOW_NODE = {"kind": "slow_node", "node": 3, "compute_slowdown": 1.3, "nic_slowdown": 1.5}
JITTER = {"kind": "compute_jitter", "cv": 0.05}
PEERS = {64: "0.32 s; 0.84 s", 512: "20 to 44 s, 125 MiB; 117 s, 41 MiB"}
"""A DDP step on so many ranks: ASTRA-sim 2 (analytical back end with congestion) and SimGrid (S4U), both C++.

Measured on a machine of this class with 2 shared cores: whole process, wall time. They simulate every send, which they
must once a rank is slow."""


def first(title: str, settings: Settings) -> Case:
    """Return the case of a first simulation, best of three processes that have simulated another cluster before.

    So modules are loaded and nothing of this one is kept; memory is the peak of that process.
    """
    warm = scenario(16, DDP)
    if FAULTS in settings:
        warm["cluster.slow_nodes"] = [{"node": 0, "compute_slowdown": 2.0}]
    setup = f"simulate(load('bert_base_10gbit', {warm!r}))\ngiven = load('bert_base_10gbit', {settings!r})"
    return fresh(title, setup)._replace(repeat=3)


def fresh(title: str, setup: str) -> Case:
    """Return a case that simulates once, in a process that has not done it before, and tells its memory, too."""
    code = SELF_TIMED.format(setup=setup, work="simulate(given)", repeat=1)
    return Case(title, ("-c", code), "printed", 1, with_memory=True)


def scenario(ranks: int, strategy: Settings, faults: Iterable[Settings] = ()) -> Settings:
    """Return the settings of a cluster of so many ranks, 8 a node where there are as many."""
    few = {NODES: 1, "cluster.ranks_per_node": ranks} if ranks < 8 else {NODES: ranks // 8}
    return {**few, **of(strategy), **({FAULTS: list(faults)} if faults else {})}


def row(ranks: int, *faults: Settings, strategy: Settings = DDP, steps: int = 1, title: str = "") -> Case:
    """Return a scenario with faults on the grouped executor."""
    return first(title or f"{ranks:,} ranks", {**scenario(ranks, strategy, faults), "run.iterations": steps})


def uneven() -> Groups:
    """Return ranks that differ."""
    groups: Groups = {}
    several: list[tuple[str, Settings]] = [
        ("DDP", DDP),
        ("BinSGDM", {"kind": "binsgdm"}),
        ("FSDP", {"kind": "fsdp"}),
        ("HSDP, three streams", {"kind": "hsdp"}),
        ("DiLoCo", {"kind": "diloco"}),
        ("streaming DiLoCo, three streams", STREAMING),
    ]
    slowed = {**scenario(512, DDP, [JITTER]), "run.iterations": 20, "calibration": "hkbu_10gbe"}
    exact: list[tuple[str, int, Settings, str]] = [
        ("flat all-reduce, 64 ranks", 64, FUSED, "0.037 s; 0.085 s"),
        ("flat all-reduce, 512 ranks", 512, FUSED, "1.08 s, 101 MiB; 3.70 s, 42 MiB"),
        ("hierarchical all-reduce, 512 ranks", 512, {**FUSED, "algorithm": "hierarchical"}, "0.255 s; 0.503 s"),
        ("DDP step, flat, 64 ranks", 64, DDP, PEERS[64]),
        ("DDP step, flat, 512 ranks", 512, DDP, PEERS[512]),
        ("BinSGDM step, 64 ranks, rails that share NICs", 64, {"kind": "binsgdm"}, ""),
    ]
    groups["One slow rank, a DDP step"] = [
        first(f"{ranks:,} ranks", scenario(ranks, DDP, [SLOW_RANK]))._replace(peers=PEERS.get(ranks, ""))
        for ranks in (64, 512, 4_096, 16_384, 100_000)
    ]
    groups["Ranks, 200 iterations with jitter of compute on every rank"] = [
        row(ranks, JITTER, strategy=strategy, steps=200, title=f"{title}, {ranks:,} ranks")
        for title, strategy in several[:2]
        for ranks in (64, 512, 4_096, 16_384)
    ]
    groups["Strategies, 20 iterations with jitter, 512 ranks"] = [
        row(512, JITTER, strategy=strategy, steps=20, title=title) for title, strategy in several
    ] + [first("DDP, links slower while GPUs compute", slowed)]
    groups["The exact executor, a slow rank"] = [
        first(title, {**scenario(ranks, strategy, [SLOW_RANK]), "run.fidelity": "exact"})._replace(peers=peers)
        for title, ranks, strategy, peers in exact
    ]
    return groups


# What people wait for, beside the time that is wanted.

POINTS = """
points = iter([load("what_to_use", {"workload": "llama_70b", "run.draws": 0,
                                    "cluster.inter_node.bandwidth": f"{20 + number / 7} Gbit/s"})
               for number in range(12)])
"""
"""Scenarios of which none was simulated before, since each has another bandwidth."""


def engine() -> Groups:
    """Return what has a target."""
    interval, targets = "with its interval, beyond an empty Python", []
    for words, aim in (((BERT,), "150 ms"), ((FLAT_STEP,), "85 ms"), ((TO_USE, "--set", "strategy=fsdp"), "250 ms")):
        whole = command(f"`simulate {' '.join(words)}`, {interval}", "simulate", *words, repeat=9, aim=aim)
        targets.append(whole._replace(beyond=EMPTY))
    a_point = program("a point of llama_70b, one process", POINTS, "simulate(next(points))", 12)
    targets.append(a_point._replace(aim="20 ms"))
    for count, nodes, repeat, aim in (
        (1_000, "8", 2, "1.5 s"),
        (100_000, ",".join(map(str, range(1, 101))), 1, "60 s"),
    ):
        words = (*SWEEP, *sets({NODES: nodes, BANDWIDTH: MORE_RATES}))
        title = f"a sweep of {count:,} points from the shell, wall time"
        targets.append(command(title, *words, clock="wall", repeat=repeat, aim=aim))
    for name, title, aim in ((BERT, "BERT-Base", "2.5 s"), (TO_USE, "llama_1b", "4 s")):
        targets.append(command(f"`advise` of {title}, CPU time", "advise", name, repeat=2, aim=aim))
    for ranks, aim in ((64, "40 ms"), (96, ""), (4_096, "")):
        slow = scenario(ranks, DDP, [{**SLOW_RANK, "node": 0, "local_rank": 0}])
        targets.append(first(f"a slow rank of {ranks:,}, first time", slow)._replace(aim=aim))
    for layers in (10, 334):
        a_step = recorded(f"a collective of a recorded step of {3 * layers:,}", layers, 8)
        targets.append(a_step._replace(aim="30 us", parts=3 * layers))
    for count, aim in ((8, "less"), (16_384, "0.67")):
        tree = {**ONE_ALL_REDUCE, "strategy": {**FUSED, "algorithm": "tree"}, NODES: count}
        setup = f"simulate(load({FLAT_STEP!r}, {ONE_ALL_REDUCE!r}))\ngiven = load({FLAT_STEP!r}, {tree!r})"
        targets.append(fresh(f"first price of a tree on {count:,} nodes", setup)._replace(aim=aim))
    doctor = command("`doctor` beyond importing torch, wall time", "doctor", clock="wall", repeat=3, aim="1 s")
    torch_alone = Case("import torch", ("-c", "import torch"), "wall", 3)
    return {"Targets of the engine": [*targets, doctor._replace(beyond=torch_alone)]}


def workers() -> Groups:
    """Return sweeps by processes of this machine, then by those of Dask: points that cost little, and that take long.

    A command starts its workers, which takes Dask a second or two: only the longer sweeps say what a point costs.
    """
    cores = str(os.cpu_count())
    kinds: dict[str, tuple[str, ...]] = {
        "BERT-Base, BinSGDM and DDP, 3,000 points": ("--set", f"{BANDWIDTH}={SIXTY_RATES}", *FIFTY_NODES),
        "the same with 20 draws, 60 points": ("--set", f"{BANDWIDTH}={SIXTY_RATES}", "--draws", "20"),
        "the same with 20 iterations and jitter, 60 points": (
            *("--set", f"{BANDWIDTH}={SIXTY_RATES}", "--set", 'cluster.faults=[{kind="compute_jitter",cv=0.05}]'),
            *("--set", "run.iterations=20"),
        ),
    }
    return {
        title: [
            command(option, "sweep", BERT, "--format", "csv", *words, option, cores, clock="wall", repeat=3)
            for option in ("--jobs", "--dask-local")
        ]
        for title, words in kinds.items()
    }


SETS: dict[str, Callable[[], Groups]] = {
    "simulator": simulator, "uneven": uneven, "engine": engine, "workers": workers
}  # fmt: skip
