"""`python -m benchmarks.uneven_cases [--before CHECKOUT] [--only TEXT] [--docs docs]`: speed where ranks differ.

With --docs their rows take their places in a file of docs/evidence/data, where others stay. --before names a checkout
that had the exact executor alone for such ranks: cases that it can simulate are run there, too, in turns.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measured
from benchmarks.measured import Cells
from benchmarks.timing import Case, Checkout, Timed, fresh
from simnet.core.units import format_seconds

HERE = Path(__file__).resolve().parents[1]
SLOW_RANK = {"kind": "slow_rank", "node": 3, "local_rank": 5, "compute_slowdown": 1.3}
SLOW_NODE = {"kind": "slow_node", "node": 3, "compute_slowdown": 1.3, "nic_slowdown": 1.5}
FORMERLY = {"cluster.slow_nodes": [{"node": 3, "compute_slowdown": 1.3}], "run.fidelity": "exact"}
"""The nearest to a slow rank that a checkout without `cluster.faults` knows."""
JITTER = {"kind": "compute_jitter", "cv": 0.05}
DDP = {"kind": "all_reduce"}
FUSED = {"kind": "all_reduce", "bucketing": "fused", "overlap": False}
HIERARCHICAL = {**FUSED, "algorithm": "hierarchical"}
STREAMING = {"kind": "diloco", "inner_steps": 100, "fragments": 4, "overlap_steps": 5}
PREFACE = """BERT-Base at 10 Gbit/s, 8 ranks a node. CPU
time of the first simulation in a process that has simulated another cluster before, so that modules are loaded and
nothing of this one is kept; memory is the peak of that process, of which {base} are Python and modules without numpy.
"Before" is version 0.1.0 of 2026-11-24, which simulates every send wherever ranks differ.

ASTRA-sim 2 (analytical back end with congestion) and SimGrid (S4U), both C++, were measured on a machine of this class
with 2 shared cores: whole process, wall time. They simulate every send, which they must once a rank is slow: 20 to 44 s
and 117 s for a DDP step of 512 ranks with a slow one. A whole process of simnet takes {shell} for the first row of the
first table.

[Every row](data/benchmarks-uneven.csv), with those before and those of others; here the first and the slowest of each
table."""
DATA = "data/benchmarks-uneven.csv"


class Row(NamedTuple):
    """What is timed, and beside what.

    Attributes:
        title: for people.
        settings: of the scenario.
        before: settings with which a former checkout can simulate it; None if it cannot.
        peers: what others take, for people.
    """

    title: str
    settings: dict[str, Any]
    before: dict[str, Any] | None = None
    peers: str = ""


class Table(NamedTuple):
    """Rows of which one thing grows; the last column compares each with the first."""

    title: str
    rows: list[Row]


def tables() -> list[Table]:
    """Return all tables."""
    return [
        Table("One slow rank, a DDP step", list(slow_rank())),
        Table("One slow node, NICs and compute, a DDP step", [row(ranks, SLOW_NODE) for ranks in (64, 4_096, 100_000)]),
        Table(
            "Nodes that are slow, each in its own way, 4,096 ranks", [slow_nodes(count) for count in (1, 8, 64, 512)]
        ),
        Table("Ranks, 200 iterations with jitter of compute on every rank", list(many_iterations())),
        Table("Iterations with jitter, DDP, 512 ranks", [iterations(count) for count in (20, 200, 2_000)]),
        Table("Buckets, 20 iterations with jitter, 512 ranks", [buckets(cap) for cap in (25, 5, 1)]),
        Table("Kinds of jitter at once, 200 iterations, DDP, 512 ranks", [kinds(count) for count in (1, 4, 16)]),
        Table("A NIC that flaps, 20 iterations, DDP, 512 ranks", [flapping(count) for count in (1, 10, 100)]),
        Table("Strategies, 20 iterations with jitter, 512 ranks", list(strategies())),
        Table("All-reduces with a slow node, DDP, 4,096 ranks", list(algorithms())),
        Table("The exact executor, a slow rank", list(exact())),
        Table("All ranks alike, folded, a DDP step", [alike(ranks) for ranks in (64, 16_384, 100_000)]),
    ]


def row(ranks: int, *faults: dict[str, Any], strategy: dict[str, Any] = DDP, steps: int = 1, title: str = "") -> Row:
    """Return a scenario with faults on the grouped executor."""
    return Row(title or f"{ranks:,} ranks", {**scenario(ranks, strategy, faults), "run.iterations": steps})


def scenario(ranks: int, strategy: dict[str, Any], faults: Iterator[Any] | tuple[Any, ...] = ()) -> dict[str, Any]:
    """Return the settings of a cluster of so many ranks."""
    found: dict[str, Any] = {"cluster.num_nodes": ranks // 8, "strategy": strategy, "baseline": None}
    return {**found, "cluster.faults": list(faults)} if faults else found


def slow_rank() -> Iterator[Row]:
    """Yield a step on more and more ranks."""
    peers = {64: "0.32 s; 0.84 s", 512: "20 to 44 s, 125 MiB; 117 s, 41 MiB"}
    for ranks in (64, 512, 4_096, 16_384, 100_000):
        before = {**scenario(ranks, DDP), **FORMERLY} if ranks == 64 else None
        yield row(ranks, SLOW_RANK)._replace(before=before, peers=peers.get(ranks, ""))


def slow_nodes(count: int) -> Row:
    """Return a cluster on which so many nodes are slow."""
    factors = [(1 + 0.001 * number, 1 + 0.0005 * number) for number in range(1, count + 1)]
    nodes = [
        {"kind": "slow_node", "node": node, "compute_slowdown": compute, "nic_slowdown": nic}
        for node, (compute, nic) in enumerate(factors)
    ]
    return row(4_096, *nodes, title=f"{count} nodes")


def many_iterations() -> Iterator[Row]:
    """Yield 200 iterations of each of two strategies."""
    for title, kind in (("DDP", "all_reduce"), ("BinSGDM", "binsgdm")):
        for ranks in (64, 512, 4_096, 16_384):
            yield row(ranks, JITTER, strategy={"kind": kind}, steps=200, title=f"{title}, {ranks:,} ranks")


def iterations(count: int) -> Row:
    """Return so many iterations."""
    return row(512, JITTER, steps=count, title=f"{count:,} iterations")


def buckets(cap_mb: int) -> Row:
    """Return DDP with buckets of one size."""
    strategy = {**DDP, "bucket_cap": f"{cap_mb} MB"}
    return row(512, JITTER, strategy=strategy, steps=20, title=f"{-(-440 // cap_mb)} buckets")


def kinds(count: int) -> Row:
    """Return so many faults that draw."""
    return row(512, *[JITTER] * count, steps=200, title=f"{count} faults")


def flapping(per_s: int) -> Row:
    """Return a NIC that is slow for half of the time, so many times a second."""
    every_s = 1 / per_s
    fault = {"kind": "slow_link", "place": 1, "rate": 0.5, "to": f"{every_s / 2:g} s", "every": f"{every_s:g} s"}
    return row(512, fault, steps=20, title=f"{per_s} times a second")


def strategies() -> Iterator[Row]:
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
    slowed = row(512, JITTER, steps=20, title="DDP, links slower while GPUs compute")
    yield slowed._replace(settings={**slowed.settings, "calibration": "hkbu_10gbe"})


def algorithms() -> Iterator[Row]:
    """Yield each all-reduce."""
    for name in ("ring", "hierarchical", "halving_doubling", "tree"):
        yield row(4_096, SLOW_NODE, strategy={**DDP, "algorithm": name}, title=name)


def exact() -> Iterator[Row]:
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
        before = {**scenario(ranks, strategy), **FORMERLY} if has_before else None
        yield Row(title, settings, before, peers)


def alike(ranks: int) -> Row:
    """Return ranks that are all alike, simulated as ever."""
    settings = scenario(ranks, DDP)
    return Row(f"{ranks:,} ranks", settings, settings)


def rows_of(table: Table, here: Checkout, former: Checkout | None) -> Iterator[Cells]:
    """Time a table, and yield it row by row."""
    first: float | None = None
    for one in table.rows:
        now, before = timed(one, here, former)
        first = now.seconds if first is None else first
        cells = {"what": one.title, "time": _text(now), "of the first": f"{now.seconds / first:.3g}"}
        if before:
            cells |= {"before": _text(before), "after / before": f"{now.seconds / before.seconds:.2g}"}
        yield cells | {"ASTRA-sim 2; SimGrid": one.peers}


def timed(one: Row, here: Checkout, former: Checkout | None, turns: int = 3) -> tuple[Timed, Timed | None]:
    """Return the best of several processes of each checkout, in turns; the former one has one turn where it is slow."""
    has_former = former is not None and one.before is not None
    runs, others = [], []
    for turn in range(turns):
        runs.append(here.run(case(one.title, one.settings)))
        if has_former and former is not None and (turn == 0 or others[0].seconds < 3):
            others.append(former.run(case(one.title, one.before or {})))
    return min(runs), min(others, default=None)


def case(title: str, settings: dict[str, Any]) -> Case:
    """Return the case of simulating a scenario once, with all modules loaded."""
    warm = scenario(16, DDP)
    if "cluster.faults" in settings or "cluster.slow_nodes" in settings:
        warm["cluster.slow_nodes"] = [{"node": 0, "compute_slowdown": 2.0}]
    setup = f"simulate(load('bert_base_10gbit', {warm!r}))\ngiven = load('bert_base_10gbit', {settings!r})"
    return fresh(title, setup, "simulate(given)")


def _text(found: Timed) -> str:
    return f"{format_seconds(found.seconds)}, {found.peak_mib:.0f} MiB"


def preface(here: Checkout) -> str:
    """Return what stands above the tables."""
    ddp, slow = "strategy={kind='all_reduce'}", "cluster.slow_nodes=[{node=0, compute_slowdown=2.0}]"
    words = ("simulate", "bert_base_10gbit", "--set", ddp, "--set", slow)
    shell = min(here.run(Case("", ("-m", "simnet", *words), "cpu")).seconds for _ in range(5))
    base = here.run(fresh("", "", "pass"))
    return PREFACE.format(base=f"{base.peak_mib:.0f} MiB", shell=format_seconds(shell))


def main() -> None:
    """Print the tables, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout of the sources, to compare with")
    parser.add_argument("--only", metavar="TEXT", help="only tables whose title has this text")
    parser.add_argument("--docs", type=Path, help="the folder of evidence/data")
    given = parser.parse_args()
    found: dict[str, list[Cells]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        former = Checkout(given.before.resolve(), Path(scratch)) if given.before else None
        here = Checkout(HERE, Path(scratch))
        print(preface(here))
        for table in tables():
            if given.only is None or given.only in table.title:
                found[table.title] = []
                print(f"\n{table.title}")
                for row_found in rows_of(table, here, former):
                    print(*row_found.values(), sep=" | ", flush=True)
                    found[table.title].append(row_found)
    if given.docs is not None:
        measured.write(given.docs / "evidence" / DATA, found, [table.title for table in tables()])


if __name__ == "__main__":
    main()
