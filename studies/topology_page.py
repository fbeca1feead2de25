"""What docs/evidence/binsgdm.md says of topologies: tables and a figure, from the committed files."""

import statistics
from pathlib import Path

from simnet.report.table import Table
from studies import figures
from studies.candidates import ALL, CANDIDATES, LATER, NAMES_IN_TOPOLOGY, TOPOLOGIES
from studies.cells import standing_text
from studies.interval import Interval
from studies.outcome import Outcome
from studies.systems_study import RANKS_PER_NODE, TOPOLOGY_RANKS

LEGEND = f"""\
By topology, on {TOPOLOGY_RANKS} ranks in nodes of {RANKS_PER_NODE[TOPOLOGY_RANKS]}, less a system's own form:
[how many are better or worse](data/systems-training-counts.csv), [each](data/systems-training-topologies.csv)."""
FIGURE = "systems_training_topologies.png"
SHOWN = [name for name in (*CANDIDATES, *LATER) if any(own == name for own, _ in NAMES_IN_TOPOLOGY)]
"""The systems that are trained in another topology than their own."""
COLUMNS = [one for one in TOPOLOGIES if any(topology == one for _, topology in NAMES_IN_TOPOLOGY)]
"""The topologies that some of them is trained in."""


def section(outcomes: list[Outcome]) -> list[str]:
    """Return the part of the page on topologies; nothing before two seeds have run everywhere."""
    outcomes = complete(outcomes)
    if not outcomes:
        return []
    return [LEGEND, "", f"![By topology](figures/{FIGURE})", ""]


def complete(outcomes: list[Outcome]) -> list[Outcome]:
    """Return the tasks of which two seeds or more, as an interval takes, have run in all topologies, on these seeds."""
    whole = [outcome for outcome in outcomes if outcome.is_complete_in_topologies]
    return [Outcome(outcome.study, outcome.name, only=outcome.topology_seeds) for outcome in whole]


def draw(outcomes: list[Outcome], folder: Path) -> None:
    """Draw the figure, a panel for each task that is complete."""
    if gaps := {outcome.task.title: _gaps(outcome) for outcome in complete(outcomes)}:
        titles = [ALL[name].title for name in SHOWN]
        figures.draw_topologies(gaps, titles, {"own": "own form", **TOPOLOGIES}, folder / FIGURE)


def _gaps(outcome: Outcome) -> dict[str, list[Interval | None]]:
    """Return by topology the difference to dense of all shown systems; None where there is none, or a seed is lost."""
    names = {"own": SHOWN, **{one: [NAMES_IN_TOPOLOGY.get((own, one)) for own in SHOWN] for one in COLUMNS}}
    return {one: [_gap(outcome, name) for name in column] for one, column in names.items()}


def _gap(outcome: Outcome, name: str | None) -> Interval | None:
    if name is None or outcome.num_lost(name, TOPOLOGY_RANKS):
        return None
    return outcome.difference(name, TOPOLOGY_RANKS)


def topology_table(outcomes: list[Outcome]) -> Table:
    """Return the table of all tasks: a row a task and system, a column a topology."""
    rows = [
        [
            outcome.task.title,
            str(len(outcome.topology_seeds)),
            ALL[own].title,
            standing_text(outcome, own, TOPOLOGY_RANKS),
            *(cell_text(outcome, own, topology) for topology in COLUMNS),
        ]
        for outcome in outcomes
        for own in SHOWN
    ]
    return Table(["task", "seeds", "system", "own form", *(TOPOLOGIES[one] for one in COLUMNS)], rows)


def cell_text(outcome: Outcome, own: str, topology: str) -> str:
    """Return what a system comes to in a topology: less dense, and less its own form."""
    name = NAMES_IN_TOPOLOGY.get((own, topology))
    if name is None:
        return "-"
    text = standing_text(outcome, name, TOPOLOGY_RANKS)
    change = change_from_own(outcome, own, topology)
    return text if change is None else f"{text} ({change.mean:+.3f}{_word(change)})"


def change_from_own(outcome: Outcome, own: str, topology: str) -> Interval | None:
    """Return the loss in a topology less that in the own form; None without one, or if a seed of either is lost."""
    name = NAMES_IN_TOPOLOGY.get((own, topology))
    if name is None or any(outcome.num_lost(one, TOPOLOGY_RANKS) for one in (own, name)):
        return None
    return outcome.apart(name, own, TOPOLOGY_RANKS)


def _word(change: Interval) -> str:
    return " worse" if change.low > 0 else " better" if change.high < 0 else ""


def counts_table(outcomes: list[Outcome]) -> Table:
    """Return how many systems a topology takes ahead of, and behind, their own form; a column a task."""
    rows = [[TOPOLOGIES[one], *(count_text(outcome, one) for outcome in outcomes)] for one in COLUMNS]
    return Table(["topology", *(outcome.task.title for outcome in outcomes)], rows)


def count_text(outcome: Outcome, topology: str) -> str:
    """Return how many systems are better and worse in a topology, and the median change."""
    own = [one for one in SHOWN if (one, topology) in NAMES_IN_TOPOLOGY]
    changes = [change for one in own if (change := change_from_own(outcome, one, topology)) is not None]
    words = [_word(change) for change in changes]
    middle = f", median {statistics.median(change.mean for change in changes):+.3f}" if len(changes) > 2 else ""
    lost = f", {len(own) - len(changes)} with lost seeds" if len(changes) < len(own) else ""
    counts = f"{words.count(' better')} better, {words.count(' worse')} worse, {words.count('')} not told apart"
    return f"{counts}{lost}{middle}"
