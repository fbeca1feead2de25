"""What `python -m benchmarks uneven` times: ranks that differ, BERT-Base at 10 Gbit/s, 8 ranks a node.

CPU time of the first simulation in a process that has simulated another cluster before, so that modules are loaded and
nothing of this one is kept; memory is the peak of that process. --before names a checkout that had the exact executor
alone for such ranks, such as version 0.1.0: cases that it can simulate are run there, too.

ASTRA-sim 2 (analytical back end with congestion) and SimGrid (S4U), both C++, were measured on a machine of this class
with 2 shared cores: whole process, wall time. They simulate every send, which they must once a rank is slow.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.timing import Case, Group, fresh

SLOW_RANK = {"kind": "slow_rank", "node": 3, "local_rank": 5, "compute_slowdown": 1.3}
SLOW_NODE = {"kind": "slow_node", "node": 3, "compute_slowdown": 1.3, "nic_slowdown": 1.5}
FORMERLY = {"cluster.slow_nodes": [{"node": 3, "compute_slowdown": 1.3}], "run.fidelity": "exact"}
"""The nearest to a slow rank that a checkout without `cluster.faults` knows."""
JITTER = {"kind": "compute_jitter", "cv": 0.05}
DDP = {"kind": "all_reduce"}
FUSED = {"kind": "all_reduce", "bucketing": "fused", "overlap": False}
HIERARCHICAL = {**FUSED, "algorithm": "hierarchical"}
STREAMING = {"kind": "diloco", "inner_steps": 100, "fragments": 4, "overlap_steps": 5}


def tables() -> list[Group]:
    """Return all tables."""
    return [
        Group("One slow rank, a DDP step", list(slow_rank())),
        Group("One slow node, NICs and compute, a DDP step", [row(ranks, SLOW_NODE) for ranks in (64, 4_096, 100_000)]),
        Group(
            "Nodes that are slow, each in its own way, 4,096 ranks", [slow_nodes(count) for count in (1, 8, 64, 512)]
        ),
        Group("Ranks, 200 iterations with jitter of compute on every rank", list(many_iterations())),
        Group(
            "Iterations with jitter, DDP, 512 ranks",
            [row(512, JITTER, steps=count, title=f"{count:,} iterations") for count in (20, 200, 2_000)],
        ),
        Group(
            "Buckets, 20 iterations with jitter, 512 ranks",
            [
                row(
                    512,
                    JITTER,
                    strategy={**DDP, "bucket_cap": f"{cap} MB"},
                    steps=20,
                    title=f"{-(-440 // cap)} buckets",
                )
                for cap in (25, 5, 1)
            ],
        ),
        Group(
            "Kinds of jitter at once, 200 iterations, DDP, 512 ranks",
            [row(512, *[JITTER] * count, steps=200, title=f"{count} faults") for count in (1, 4, 16)],
        ),
        Group("A NIC that flaps, 20 iterations, DDP, 512 ranks", [flapping(count) for count in (1, 10, 100)]),
        Group("Strategies, 20 iterations with jitter, 512 ranks", list(strategies())),
        Group(
            "All-reduces with a slow node, DDP, 4,096 ranks",
            [
                row(4_096, SLOW_NODE, strategy={**DDP, "algorithm": name}, title=name)
                for name in ("ring", "hierarchical", "halving_doubling", "tree")
            ],
        ),
        Group("The exact executor, a slow rank", list(exact())),
        Group(
            "All ranks alike, folded, a DDP step",
            [case(f"{ranks:,} ranks", scenario(ranks, DDP), scenario(ranks, DDP)) for ranks in (64, 16_384, 100_000)],
        ),
    ]


def row(ranks: int, *faults: dict[str, Any], strategy: dict[str, Any] = DDP, steps: int = 1, title: str = "") -> Case:
    """Return a scenario with faults on the grouped executor."""
    return case(title or f"{ranks:,} ranks", {**scenario(ranks, strategy, faults), "run.iterations": steps})


def scenario(ranks: int, strategy: dict[str, Any], faults: Iterable[Any] = ()) -> dict[str, Any]:
    """Return the settings of a cluster of so many ranks."""
    found: dict[str, Any] = {"cluster.num_nodes": ranks // 8, "strategy": strategy, "baseline": None}
    return {**found, "cluster.faults": list(faults)} if faults else found


def slow_rank() -> Iterator[Case]:
    """Yield a step on more and more ranks."""
    peers = {64: "0.32 s; 0.84 s", 512: "20 to 44 s, 125 MiB; 117 s, 41 MiB"}
    for ranks in (64, 512, 4_096, 16_384, 100_000):
        settings = scenario(ranks, DDP, [SLOW_RANK])
        former = {**scenario(ranks, DDP), **FORMERLY} if ranks == 64 else None
        yield case(f"{ranks:,} ranks", settings, former)._replace(peers=peers.get(ranks, ""))


def slow_nodes(count: int) -> Case:
    """Return a cluster on which so many nodes are slow."""
    factors = [(1 + 0.001 * number, 1 + 0.0005 * number) for number in range(1, count + 1)]
    nodes = [
        {"kind": "slow_node", "node": node, "compute_slowdown": compute, "nic_slowdown": nic}
        for node, (compute, nic) in enumerate(factors)
    ]
    return row(4_096, *nodes, title=f"{count} nodes")


def many_iterations() -> Iterator[Case]:
    """Yield 200 iterations of each of two strategies."""
    for title, kind in (("DDP", "all_reduce"), ("BinSGDM", "binsgdm")):
        for ranks in (64, 512, 4_096, 16_384):
            yield row(ranks, JITTER, strategy={"kind": kind}, steps=200, title=f"{title}, {ranks:,} ranks")


def flapping(per_s: int) -> Case:
    """Return a NIC that is slow for half of the time, so many times a second."""
    every_s = 1 / per_s
    fault = {"kind": "slow_link", "place": 1, "rate": 0.5, "to": f"{every_s / 2:g} s", "every": f"{every_s:g} s"}
    return row(512, fault, steps=20, title=f"{per_s} times a second")


def strategies() -> Iterator[Case]:
    """Yield strategies whose programs differ, and links that compute slows."""
    for title, strategy in (
        ("DDP", DDP),
        ("BinSGDM", {"kind": "binsgdm"}),
        ("FSDP", {"kind": "fsdp"}),
        ("HSDP, three streams", {"kind": "hsdp"}),
        ("DiLoCo", {"kind": "diloco"}),
        ("streaming DiLoCo, three streams", STREAMING),
    ):
        yield row(512, JITTER, strategy=strategy, steps=20, title=title)
    slowed = {**scenario(512, DDP, [JITTER]), "run.iterations": 20, "calibration": "hkbu_10gbe"}
    yield case("DDP, links slower while GPUs compute", slowed)


def exact() -> Iterator[Case]:
    """Yield all-reduces and steps, every send simulated."""
    for title, ranks, strategy, has_before, peers in (
        ("flat all-reduce, 64 ranks", 64, FUSED, True, "0.037 s; 0.085 s"),
        ("flat all-reduce, 512 ranks", 512, FUSED, True, "1.08 s, 101 MiB; 3.70 s, 42 MiB"),
        ("hierarchical all-reduce, 512 ranks", 512, HIERARCHICAL, True, "0.255 s; 0.503 s"),
        ("DDP step, flat, 64 ranks", 64, DDP, True, "0.32 s; 0.84 s"),
        ("DDP step, flat, 512 ranks", 512, DDP, False, "20 to 44 s, 125 MiB; 117 s, 41 MiB"),
        ("BinSGDM step, 64 ranks, rails that share NICs", 64, {"kind": "binsgdm"}, True, ""),
    ):
        settings = {**scenario(ranks, strategy, (SLOW_RANK,)), "run.fidelity": "exact"}
        former = {**scenario(ranks, strategy), **FORMERLY} if has_before else None
        yield case(title, settings, former)._replace(peers=peers)


def case(title: str, settings: dict[str, Any], former: dict[str, Any] | None = None) -> Case:
    """Return the case of simulating a scenario once, with all modules loaded; best of three processes.

    Args:
        title: for people.
        settings: of the scenario.
        former: settings with which a former checkout can simulate it; None if it cannot.
    """
    arguments = None if former is None else _simulates("", former).arguments
    return _simulates(title, settings)._replace(repeat=3, former=arguments)


def _simulates(title: str, settings: dict[str, Any]) -> Case:
    warm = scenario(16, DDP)
    if "cluster.faults" in settings or "cluster.slow_nodes" in settings:
        warm["cluster.slow_nodes"] = [{"node": 0, "compute_slowdown": 2.0}]
    setup = f"simulate(load('bert_base_10gbit', {warm!r}))\ngiven = load('bert_base_10gbit', {settings!r})"
    return fresh(title, setup, "simulate(given)")
