"""`python -m benchmarks.engine_targets BEFORE [AFTER] [--only TEXT] [--long] [--figure FILE]`: the engine's targets.

Times what people wait for in two checkouts, in turns within one run, and prints both, their ratio and the target beside
it; then how cost grows with ranks, buckets, points and draws, so that a cliff is seen. Trust the ratios more than the
seconds. AFTER is this checkout by default.
"""

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import uneven_cases
from benchmarks.cases import FUSED, MORE_RATES, ONE_ALL_REDUCE
from benchmarks.timing import Case, Checkout, command, fresh, in_turns, program
from simnet.core.units import format_seconds

HERE = Path(__file__).resolve().parents[1]
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


class Target(NamedTuple):
    """What is timed, and what it is to be.

    Attributes:
        title: for people.
        case: what runs in both checkouts.
        aim: what is wanted, for people.
        beyond: what is taken off: the time of another case in the same run.
        parts: pieces that the time is shared by, such as collectives.
    """

    title: str
    case: Case
    aim: str = ""
    beyond: Case | None = None
    parts: int = 1


class Growth(NamedTuple):
    """Cases of which one number grows.

    Attributes:
        title: of the table.
        axis: what grows, for the figure.
        cases: by that number.
        per: whether the time is shared by the number, as where it counts points.
    """

    title: str
    axis: str
    cases: dict[int, Case]
    per: bool = False


def targets(*, long: bool) -> Iterator[Target]:
    """Yield what has a target; a sweep of 100,000 points only where there is time."""
    with_interval = "with its interval, beyond an empty Python"
    shown = ((BERT, (), "150 ms"), ("reference_ddp_step", (), "85 ms"), (LLAMA, ("--set", "strategy=fsdp"), "250 ms"))
    for name, words, aim in shown:
        title = f"`simulate {' '.join((name, *words))}`, {with_interval}"
        yield Target(title, command("", "simulate", name, *words, repeat=9), aim, EMPTY)
    yield Target("a point of llama_70b, one process", llama_point(), "20 ms")
    nodes = {1_000: "8", 100_000: ",".join(map(str, range(1, 101)))}
    for count, numbers in nodes.items():
        if count == 1_000 or long:
            axes = (f"cluster.num_nodes={numbers}", f"cluster.inter_node.bandwidth={MORE_RATES}")
            settings = [word for axis in axes for word in ("--set", axis)]
            case = command("", "sweep", "speedup", "--format", "csv", *settings, clock="wall", repeat=2)
            aim = {1_000: "1.5 s", 100_000: "60 s"}[count]
            yield Target(f"a sweep of {count:,} points from the shell, wall time", case, aim)
    for name, title, aim in ((BERT, "BERT-Base", "2.5 s"), (LLAMA, "llama_1b", "4 s")):
        yield Target(f"`advise` of {title}, CPU time", command("", "advise", name, repeat=2), aim)
    for ranks, aim in ((64, "40 ms"), (96, ""), (4_096, "")):
        yield Target(f"a slow rank of {ranks:,}, first time", slow_rank(ranks), aim)
    for layers, ranks in ((10, 64), (334, 64)):
        setup = f"from benchmarks.recorded import sharded_step\ngiven = sharded_step({layers}, {ranks // 8})"
        case = program("", setup, "simulate(given)", 5)
        yield Target(f"a collective of a recorded step of {3 * layers:,}", case, "30 us", parts=3 * layers)
    for nodes_of_tree, aim in ((8, "less"), (16_384, "0.67")):
        yield Target(f"first price of a tree on {nodes_of_tree:,} nodes", first_tree(nodes_of_tree), aim)
    rates = "places = iter([replace(knobs.start, gbit_per_s=float(rate)) for rate in (1, 2, 5, 10, 50, 200, 400, 800)])"
    yield Target("a view of `explore` on llama_70b, seen before", program("", VIEWS, "view(knobs, knobs.start)", 5))
    yield Target(
        "a view of `explore`, another bandwidth", program("", VIEWS + rates, "view(knobs, next(places))", 8), "60 ms"
    )
    yield Target(
        "`doctor` beyond importing torch, wall time",
        command("", "doctor", clock="wall", repeat=3),
        "1 s",
        IMPORTS_TORCH,
    )


def llama_point() -> Case:
    """Return a point of a sweep over bandwidths of a model that does not fit."""
    setup = POINTS.format(name=LLAMA, settings={"workload": "llama_70b", "run.draws": 0}, runs=12)
    return program("", setup, "simulate(next(points))", 12)


def slow_rank(ranks: int) -> Case:
    """Return a step with one slow rank, simulated for the first time."""
    return uneven_cases.case("", settings_of(ranks, {**uneven_cases.SLOW_RANK, "node": 0, "local_rank": 0}))


def settings_of(ranks: int, *faults: dict[str, Any]) -> dict[str, Any]:
    """Return a DDP step on so many ranks, 8 a node where there are as many."""
    few = {"cluster.num_nodes": 1, "cluster.ranks_per_node": ranks} if ranks < 8 else {}
    return {**uneven_cases.scenario(ranks, uneven_cases.DDP, faults), **few}


def first_tree(nodes: int) -> Case:
    """Return an all-reduce by trees on a cluster that no tree was made for."""
    settings = {**ONE_ALL_REDUCE, "strategy": {**FUSED, "algorithm": "tree"}, "cluster.num_nodes": nodes}
    return fresh("", FIRST_TREE.format(warm=ONE_ALL_REDUCE, settings=settings), "simulate(given)")


def growths() -> Iterator[Growth]:
    """Yield tables in which one number grows."""
    yield Growth("Ranks, all alike", "ranks", {ranks: uneven_cases.case("", settings_of(ranks)) for ranks in RANKS})
    yield Growth("Ranks, one of them slow", "ranks", {ranks: slow_rank(ranks) for ranks in RANKS if ranks > 1})
    caps = {-(-440_000 // cap_kb): f"{cap_kb} kB" for cap_kb in (100_000, 25_000, 5_000, 1_000, 250, 100)}
    yield Growth("Buckets of a DDP step", "buckets", {count: buckets(cap) for count, cap in caps.items()})
    yield Growth(
        "Points of a sweep in one process, each", "points", {n: points(n) for n in (2, 20, 200, 1_000)}, per=True
    )
    draws = {count: program("", f"given = load({BERT!r}, {{'run.draws': {count}}})", "simulate(given)", 3)
             for count in (20, 50, 100, 200, 1_000)}  # fmt: skip
    yield Growth("Draws of an interval", "draws", draws)


def buckets(cap: str) -> Case:
    """Return a step of equal small tensors in buckets of one size."""
    rows = [{"shape": [1_000, 25], "count": 4_400}]
    workload = {"tensors": rows, "forward": "40 ms", "backward": "80 ms", "optimizer": "5 ms"}
    strategy = {"kind": "all_reduce", "bucket_cap": cap}
    settings = {"workload": workload, "strategy": strategy, "baseline": None}
    return program("", f"given = load('reference_ddp_step', {settings!r})", "simulate(given)", 3)


def points(count: int) -> Case:
    """Return a sweep of so many points by a function, not the shell."""
    setup = f"import simnet\nrates = [f'{{5 + number / 9}} Gbit/s' for number in range({count})]"
    work = (
        f"simnet.sweep({BERT!r}, axes={{'cluster.inter_node.bandwidth': rates}}, settings={{'run.draws': 0}}, jobs=1)"
    )
    return program("", setup, work, 1)


def seconds_of(case: Case, checkouts: Sequence[Checkout], beyond: Case | None = None) -> list[float]:
    """Return the best of each checkout, less the best of what it is to be beyond."""
    cases = [case] if beyond is None else [case, beyond]
    rounds = [[in_turns(one._replace(repeat=1), list(checkouts)) for one in cases] for _ in range(case.repeat)]
    best = [[min(times).seconds for times in zip(*of_case, strict=True)] for of_case in zip(*rounds, strict=True)]
    return best[0] if beyond is None else [one - less for one, less in zip(*best, strict=True)]


def cells_of(found: Sequence[float]) -> list[str]:
    before, after = found
    return [format_seconds(before), format_seconds(after), f"{after / before:.2f}"]


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def lines(
    checkouts: Sequence[Checkout], is_asked: Callable[[str], bool], *, long: bool, measured: dict[str, Any]
) -> Iterator[str]:
    """Time everything that is asked for, and yield the tables; curves are added to `measured`."""
    yield row("what", "before", "after", "after / before", "target")
    yield "|---" * 5 + "|"
    for one in targets(long=long):
        if is_asked(one.title):
            found = [seconds / one.parts for seconds in seconds_of(one.case, checkouts, one.beyond)]
            yield row(one.title, *cells_of(found), one.aim)
    for table in growths():
        if not is_asked(table.title):
            continue
        yield f"\n### {table.title}\n"
        yield row(table.axis, "before", "after", "after / before", "after, of the one above")
        yield "|---" * 5 + "|"
        curve: list[tuple[int, list[float]]] = []
        for number, case in table.cases.items():
            found = [seconds / (number if table.per else 1) for seconds in seconds_of(case, checkouts)]
            above = f"{found[-1] / curve[-1][1][-1]:.2f}" if curve else ""
            curve.append((number, found))
            yield row(f"{number:,}", *cells_of(found), above)
        measured[table.title] = table.axis, curve


def draw(measured: dict[str, tuple[str, list[tuple[int, list[float]]]]], path: Path) -> None:
    """Write a figure with a panel for each table of growth."""
    from simnet.report import figure

    with figure.styled():
        made = figure.new(figure.PAGE_IN, 2.4 * -(-len(measured) // 3))
        panels = made.subplots(-(-len(measured) // 3), 3, squeeze=False).flat
        for (title, (axis, curve)), panel in zip(measured.items(), panels, strict=False):
            numbers = [number for number, _ in curve]
            for place, (name, colour) in enumerate((("before", figure.VERMILION), ("after", figure.BLUE))):
                panel.plot(numbers, [1e3 * found[place] for _, found in curve], "o-", color=colour, label=name)
            panel.set(xscale="log", yscale="log", xlabel=axis, ylabel="ms", title=title)
            figure.log_numbers(panel.xaxis)
            figure.log_numbers(panel.yaxis, (1.0, 2.0, 5.0))
            panel.legend()
        for panel in list(panels):
            panel.axis("off")
        figure.write(made, path)


def main() -> None:
    """Print the tables, and draw them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of the sources to compare with")
    parser.add_argument("after", type=Path, nargs="?", default=HERE, help="the checkout that is to be faster")
    parser.add_argument("--only", metavar="TEXT", default="", help="only what has this text in its title")
    parser.add_argument("--long", action="store_true", help="a sweep of 100,000 points, too")
    parser.add_argument("--figure", type=Path, help="write how cost grows as a figure: .png, .pdf or .svg")
    given = parser.parse_args()
    measured: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        checkouts = [Checkout(path.resolve(), Path(scratch)) for path in (given.before, given.after)]
        for line in lines(checkouts, lambda title: given.only in title, long=given.long, measured=measured):
            print(line, flush=True)
    if given.figure is not None and measured:
        draw(measured, given.figure)


if __name__ == "__main__":
    main()
