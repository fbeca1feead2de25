"""What `python -m evidence.benchmarks` times: the simulator, ranks that differ, and what people wait for.

Trust ratios more than seconds.
"""

from collections.abc import Callable, Iterable
from typing import Any

from evidence.benchmarks.timing import SELF_TIMED, Case, command, program

Settings = dict[str, Any]
Groups = dict[str, list[Case]]
"""Cases by the title of their table; where only a size grows, the ratio to the first is the cost of growth."""
BERT, FLAT_STEP, TO_USE = "bert_base_10gbit", "reference_ddp_step", "what_to_use"
NODES, BANDWIDTH, FAULTS = "cluster.num_nodes", "cluster.inter_node.bandwidth", "cluster.faults"
RATES = ",".join(f"{gbit} Gbit/s" for gbit in (5, 10, 15, 20, 25, 30, 40, 50, 75, 100))
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
TIMES = {"forward": "40 ms", "backward": "80 ms", "optimizer": "5 ms"}
DDP = {"kind": "all_reduce"}
STREAMING = {"kind": "diloco", "inner_steps": 100, "fragments": 4, "overlap_steps": 5}
ADVISE = ("advise", BERT, "--jobs", "1")
SWEEP = ("sweep", "speedup", "--format", "csv")


def step(title: str, settings: Settings, name: str = FLAT_STEP, runs: int = 15) -> Case:
    """Return the case of simulating one scenario again and again."""
    return program(title, f"given = load({name!r}, {settings!r})", runs=runs)


def of(strategy: Settings, **more: Any) -> Settings:
    return {"strategy": strategy, "baseline": None, **more}


def buckets(cap: str) -> Settings:
    return of({**DDP, "bucket_cap": cap})


def equal(shape: list[int], count: int) -> Settings:
    return {"workload": {"tensors": [{"shape": shape, "count": count}], **TIMES}}


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
    groups["Nodes, folded"] = [step(f"{nodes} nodes", {**buckets("25 MB"), NODES: nodes}) for nodes in (8, 64, 512)]
    groups["Buckets, folded"] = [step(f"{-(-440 // cap)} buckets", buckets(f"{cap} MB"), runs=5) for cap in (25, 5, 1)]
    groups["Tensors, folded"] = [
        step(f"{count:,} tensors", {**equal([4_400_000 // count, 25], count), "baseline": None}, runs=5)
        for count in (100, 1_000, 10_000)
    ]
    groups["Recorded steps, folded"] = [
        recorded(f"{3 * layers:,} collectives, {8 * nodes:,} ranks", layers, nodes)
        for layers, nodes in ((10, 8), (100, 8), (334, 8), (334, 64), (334, 512))
    ]
    groups["Sharding and local steps, 1.3 B parameters on 128 GPUs, folded"] = [
        step(title, of(strategy), TO_USE, 7) for title, strategy in ways
    ]
    groups["Micro-batches of FSDP, folded"] = [
        step(f"{n} micro-batches", of({"kind": "fsdp"}, **{"run.grad_accumulation": n}), TO_USE, 3) for n in (1, 8, 64)
    ]
    groups["Steps of a period of DiLoCo, folded"] = [
        step(f"{n:,} steps", of({"kind": "diloco", "inner_steps": n}), TO_USE, 5) for n in (5, 50, 5_000)
    ]
    groups["Ranks, every send an event"] = [case for nodes in (8, 32) for case in every_send(nodes)]
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
    groups["Timelines of 1,000 buckets"] = [timeline(number) for number in (1, 3, 30)]
    groups["`simnet report`, whole process"] = [
        command(f"BERT-Base, {title}", "report", BERT, *more, "-o", "/dev/null")
        for title, more in (("without the ranking", ("--systems", "")), ("with all alternatives", ()))
    ]
    groups["What `advise` grows with, CPU time of one process"] = [
        *(command(some, *ADVISE, "--systems", some) for some in ("binsgdm", "binsgdm,qsgd,power_sgd,top_k")),
        command("all", *ADVISE),
        *(command(f"all, {nodes} nodes", *ADVISE, *sets({NODES: str(nodes)})) for nodes in (2, 64, 512)),
        *(
            command(f"all, {count:,} equal tensors", *ADVISE, *sets({"workload": equal_text(count)}))
            for count in (100, 1_000)
        ),
    ]
    return groups


EMPTY = Case("an empty Python", ("-c", "pass"), "cpu", 15)


def sets(axes: dict[str, str]) -> list[str]:
    return [word for key, values in axes.items() for word in ("--set", f"{key}={values}")]


def equal_text(count: int) -> str:
    rows = f"[{{shape = [{4_400_000 // count}, 25], count = {count}}}]"
    return f'{{tensors = {rows}, forward = "40 ms", backward = "80 ms", optimizer = "5 ms"}}'


def every_send(nodes: int) -> list[Case]:
    """Return one flat all-reduce with every send an event, against every hop as SimPy resources, and folded."""
    ranks, settings = nodes * 8, {**ONE_ALL_REDUCE, NODES: nodes}
    naive = f"ring_all_reduce_s({ranks}, 440e6, 5e-6, 1.25e9)"
    hop = program(
        f"{ranks} ranks, every hop a SimPy Resource and Store",
        "from evidence.benchmarks.every_hop import ring_all_reduce_s",
        naive,
        1,
    )
    exact = step(f"{ranks} ranks, exact executor", {**settings, "run.fidelity": "exact"}, runs=1)
    return [hop, exact, step(f"{ranks} ranks, folded", settings)]


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


def timeline(iterations: int) -> Case:
    """Return a trace with a bucket for each of 1,000 tensors, made and written."""
    settings = {**equal([4400, 25], 1000), **buckets("0.44 MB")}
    setup = (
        "from pathlib import Path; from tempfile import mkdtemp; from simnet.traces.timeline_trace import write_trace; "
        f"found = simulate(load('bert_base_10gbit', {settings!r})); path = Path(mkdtemp()) / 'trace.json'; "
        "assert found.result.num_buckets == 1000"
    )
    return program(f"{iterations} iterations", setup, f"write_trace(found, path, {iterations})", 3)


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
    groups["One slow node, NICs and compute, a DDP step"] = [row(ranks, SLOW_NODE) for ranks in (64, 4_096, 100_000)]
    groups["Nodes that are slow, each in its own way, 4,096 ranks"] = [
        row(
            4_096,
            *(
                {
                    "kind": "slow_node",
                    "node": node,
                    "compute_slowdown": 1 + 0.001 * (node + 1),
                    "nic_slowdown": 1 + 0.0005 * (node + 1),
                }
                for node in range(count)
            ),
            title=f"{count} nodes",
        )
        for count in (1, 8, 64, 512)
    ]
    groups["Ranks, 200 iterations with jitter of compute on every rank"] = [
        row(ranks, JITTER, strategy=strategy, steps=200, title=f"{title}, {ranks:,} ranks")
        for title, strategy in several[:2]
        for ranks in (64, 512, 4_096, 16_384)
    ]
    groups["Iterations with jitter, DDP, 512 ranks"] = [
        row(512, JITTER, steps=count, title=f"{count:,} iterations") for count in (20, 200, 2_000)
    ]
    groups["Buckets, 20 iterations with jitter, 512 ranks"] = [
        row(512, JITTER, strategy=buckets(f"{cap} MB")["strategy"], steps=20, title=f"{-(-440 // cap)} buckets")
        for cap in (25, 5, 1)
    ]
    groups["Kinds of jitter at once, 200 iterations, DDP, 512 ranks"] = [
        row(512, *[JITTER] * count, steps=200, title=f"{count} faults") for count in (1, 4, 16)
    ]
    groups["A NIC that flaps, 20 iterations, DDP, 512 ranks"] = [flapping(count) for count in (1, 10, 100)]
    groups["Strategies, 20 iterations with jitter, 512 ranks"] = [
        row(512, JITTER, strategy=strategy, steps=20, title=title) for title, strategy in several
    ] + [first("DDP, links slower while GPUs compute", slowed)]
    groups["All-reduces with a slow node, DDP, 4,096 ranks"] = [
        row(4_096, SLOW_NODE, strategy={**DDP, "algorithm": name}, title=name)
        for name in ("ring", "hierarchical", "halving_doubling", "tree")
    ]
    groups["The exact executor, a slow rank"] = [
        first(title, {**scenario(ranks, strategy, [SLOW_RANK]), "run.fidelity": "exact"})._replace(peers=peers)
        for title, ranks, strategy, peers in exact
    ]
    groups["All ranks alike, folded, a DDP step"] = [
        first(f"{ranks:,} ranks", scenario(ranks, DDP)) for ranks in (64, 16_384, 100_000)
    ]
    return groups


def flapping(per_s: int) -> Case:
    """Return a NIC that is slow for half of the time, so many times a second."""
    fault = {"kind": "slow_link", "place": 1, "rate": 0.5, "to": f"{0.5 / per_s:g} s", "every": f"{1 / per_s:g} s"}
    return row(512, fault, steps=20, title=f"{per_s} times a second")


# What people wait for, beside the time that is wanted.

RANKS = (1, 8, 16, 64, 96, 128, 256, 512, 1_024, 4_096, 16_384, 100_000)
POINTS = """
points = iter([load("what_to_use", {"workload": "llama_70b", "run.draws": 0,
                                    "cluster.inter_node.bandwidth": f"{20 + number / 7} Gbit/s"})
               for number in range(12)])
"""
"""Scenarios of which none was simulated before, since each has another bandwidth."""


def engine() -> Groups:
    """Return what has a target; then how cost grows, so that a cliff is seen."""
    groups: Groups = {}
    caps = (100_000, 25_000, 5_000, 1_000, 250, 100)
    small = equal([1_000, 25], 4_400)
    groups["Targets of the engine"] = targets()
    groups["Ranks, all alike"] = [first(f"{ranks:,}", scenario(ranks, DDP)) for ranks in RANKS]
    groups["Ranks, one of them slow"] = [slow_rank(f"{ranks:,}", ranks) for ranks in RANKS[1:]]
    groups["Buckets of a DDP step"] = [
        step(f"{-(-440_000 // cap):,}", {**small, **buckets(f"{cap} kB")}, runs=3) for cap in caps
    ]
    groups["Points of a sweep in one process, each"] = [points(count) for count in (2, 20, 200, 1_000)]
    groups["Draws of an interval"] = [
        step(str(count), {"run.draws": count}, BERT, 3) for count in (20, 50, 100, 200, 1_000)
    ]
    return groups


def targets() -> list[Case]:
    interval, found = "with its interval, beyond an empty Python", []
    for words, aim in (((BERT,), "150 ms"), ((FLAT_STEP,), "85 ms"), ((TO_USE, "--set", "strategy=fsdp"), "250 ms")):
        made = command(f"`simulate {' '.join(words)}`, {interval}", "simulate", *words, repeat=9, aim=aim)
        found.append(made._replace(beyond=EMPTY))
    a_point = program("a point of llama_70b, one process", POINTS, "simulate(next(points))", 12)
    found.append(a_point._replace(aim="20 ms"))
    for count, nodes, repeat, aim in (
        (1_000, "8", 2, "1.5 s"),
        (100_000, ",".join(map(str, range(1, 101))), 1, "60 s"),
    ):
        words = (*SWEEP, *sets({NODES: nodes, BANDWIDTH: MORE_RATES}))
        title = f"a sweep of {count:,} points from the shell, wall time"
        found.append(command(title, *words, clock="wall", repeat=repeat, aim=aim))
    for name, title, aim in ((BERT, "BERT-Base", "2.5 s"), (TO_USE, "llama_1b", "4 s")):
        found.append(command(f"`advise` of {title}, CPU time", "advise", name, repeat=2, aim=aim))
    for ranks, aim in ((64, "40 ms"), (96, ""), (4_096, "")):
        found.append(slow_rank(f"a slow rank of {ranks:,}, first time", ranks)._replace(aim=aim))
    for layers in (10, 334):
        made = recorded(f"a collective of a recorded step of {3 * layers:,}", layers, 8)
        found.append(made._replace(aim="30 us", parts=3 * layers))
    for count, aim in ((8, "less"), (16_384, "0.67")):
        tree = {**ONE_ALL_REDUCE, "strategy": {**FUSED, "algorithm": "tree"}, NODES: count}
        setup = f"simulate(load({FLAT_STEP!r}, {ONE_ALL_REDUCE!r}))\ngiven = load({FLAT_STEP!r}, {tree!r})"
        found.append(fresh(f"first price of a tree on {count:,} nodes", setup)._replace(aim=aim))
    doctor = command("`doctor` beyond importing torch, wall time", "doctor", clock="wall", repeat=3, aim="1 s")
    return [*found, doctor._replace(beyond=Case("import torch", ("-c", "import torch"), "wall", 3))]


def slow_rank(title: str, ranks: int) -> Case:
    return first(title, scenario(ranks, DDP, [{**SLOW_RANK, "node": 0, "local_rank": 0}]))


def points(count: int) -> Case:
    """Return a point of a sweep of so many by a function, not the shell."""
    setup = f"import simnet\nrates = [f'{{5 + number / 9}} Gbit/s' for number in range({count})]"
    work = f"simnet.sweep({BERT!r}, axes={{{BANDWIDTH!r}: rates}}, settings={{'run.draws': 0}}, jobs=1)"
    return program(f"{count:,}", setup, work, 1)._replace(parts=count)


SETS: dict[str, Callable[[], Groups]] = {"simulator": simulator, "uneven": uneven, "engine": engine}
