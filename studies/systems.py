"""What docs/evidence/binsgdm.md says of all systems and topologies: tables and figures, from the committed files."""

import math
import statistics
from collections.abc import Iterable, Iterator

from binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from simnet.report.table import Table
from studies import figures
from studies.candidates import ALL, CANDIDATES, IN_TOPOLOGY, LATER, NAMES_IN_TOPOLOGY, PLAIN, REMEDY_TEXTS, TOPOLOGIES
from studies.interval import Interval
from studies.ledger import Row
from studies.outcome import Outcome
from studies.page import BINSGDM, FIGURES, number
from studies.search import mean_loss
from studies.systems_study import FINAL_RANKS, RANKS_PER_NODE, TOPOLOGY_RANKS, SystemsStudy

TOPOLOGY_LEGEND = f"""\
By topology, on {TOPOLOGY_RANKS} ranks in nodes of {RANKS_PER_NODE[TOPOLOGY_RANKS]}, less a system's own form:
[how many are better or worse](data/systems-training-counts.csv), [each](data/systems-training-topologies.csv)."""
FIGURE = "systems_training_topologies.png"
SHOWN = [name for name in (*CANDIDATES, *LATER) if any(own == name for own, _ in NAMES_IN_TOPOLOGY)]
"""The systems that are trained in another topology than their own."""
COLUMNS = [one for one in TOPOLOGIES if any(topology == one for _, topology in NAMES_IN_TOPOLOGY)]
"""The topologies that some of them is trained in."""
PAGE = BINSGDM
LEGEND = """\
Final test loss less dense Adam's in nats, mean of the seeds ([all](data/systems-training.csv)); "behind" and "ahead"
where the 95 % interval leaves zero out; "lost" are seeds that diverged or ended at a guess (95 % of its loss)."""
NAMES = {"adam": "Adam", "sgd": "SGD", "binsgdm": BinSGDM.title, "one_bit_adam": OneBitAdam.title}
SETTING_TITLES = {
    "momentum": "momentum",
    "beta": "beta",
    "beta1": "beta1",
    "dense_share": "dense stage",
    "eps": "eps",
    "variance_floor": "floor",
}


def standing_text(outcome: Outcome, system: str, ranks: int) -> str:
    """Return the mean difference to dense, marked where its interval leaves zero out."""
    if system == outcome.reference:
        return "reference"
    if num_lost := outcome.num_lost(system, ranks):
        return f"lost {num_lost} of {len(outcome.rows(system, ranks))}"
    difference = outcome.difference(system, ranks)
    if difference is None:
        raise AssertionError("a system that lost no seed has a difference")
    mark = " behind" if difference.low > 0 else " ahead" if difference.high < 0 else ""
    return f"{difference.mean:+.3f}{mark}"


def loss_text(outcome: Outcome, system: str, ranks: int) -> str:
    """Return mean and range of the final loss over seeds, and how many diverged or ended at a guess."""
    finals = outcome.finals(system, ranks)
    num_lost, num_stuck = len(outcome.rows(system, ranks)) - len(finals), outcome.num_at_a_guess(system, ranks)
    notes = [f"{num_stuck} at a guess"] * bool(num_stuck) + [f"{num_lost} diverged"] * bool(num_lost)
    if finals:
        notes.insert(0, f"{number(statistics.fmean(finals))} ({number(min(finals))} to {number(max(finals))})")
    return ", ".join(notes)


def accuracy_text(finals: list[float]) -> str:
    """Return the mean accuracy over the seeds that did not diverge."""
    return f"{100 * statistics.fmean(finals):.1f} %" if finals else "-"


def difference_text(outcome: Outcome, system: str, ranks: int) -> str:
    """Return the difference to the reference."""
    difference = outcome.difference(system, ranks)
    if difference is None:
        return "-"
    return f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"


def steps_text(steps: list[float]) -> str:
    """Return the median over seeds, and how many never got there.

    Example:
        >>> steps_text([80, 90, 70, 90, math.inf]), steps_text([math.inf, math.inf, math.inf, 120, 150])
        ('90 (1 never)', 'never (3 of 5)')
    """
    num_never = sum(map(math.isinf, steps))
    middle = statistics.median(steps)
    if math.isinf(middle):
        return f"never ({num_never} of {len(steps)})"
    return f"{middle:g}" + (f" ({num_never} never)" if num_never else "")


def in_topologies(outcomes: list[Outcome]) -> list[Outcome]:
    """Return the same on the seeds on which all topologies have run."""
    return [Outcome(outcome.study, outcome.name, only=outcome.topology_seeds) for outcome in outcomes]


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


def read() -> SystemsStudy:
    """Return the study with what is done."""
    return SystemsStudy()


def regions(study: SystemsStudy) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    outcomes = [Outcome(study, task) for task in study.curves]
    by_topology = [TOPOLOGY_LEGEND, "", f"![By topology](figures/{FIGURE})", ""]
    tasks = " ".join(map(task_text, outcomes))
    parts = [LEGEND, "", overview(outcomes), "", *by_topology, tasks, "", *map(task_figure, outcomes)]
    return {"systems": "\n".join(parts)}


def data(study: SystemsStudy) -> dict[str, Table]:
    """Return the tables that the page links to, by name."""
    outcomes = [Outcome(study, task) for task in study.curves]
    return {
        "systems-training": result_table(outcomes),
        "systems-training-remedies": remedy_table(outcomes),
        "systems-training-topologies": topology_table(in_topologies(outcomes)),
        "systems-training-counts": counts_table(in_topologies(outcomes)),
        "systems-training-search": search_table(outcomes),
    }


def draw(study: SystemsStudy) -> None:
    """Draw the figures, and write the targets into the files of the curves."""
    outcomes = [Outcome(study, task) for task in study.curves]
    for outcome in outcomes:
        figures.draw_systems(outcome, FIGURES / f"systems_training_{outcome.name}.png")
        study.write_target(outcome.name, outcome.target)
    gaps = {outcome.task.title: _gaps(outcome) for outcome in in_topologies(outcomes)}
    titles = [ALL[name].title for name in SHOWN]
    figures.draw_topologies(gaps, titles, {"own": "own form", **TOPOLOGIES}, FIGURES / FIGURE)


def overview(outcomes: list[Outcome]) -> str:
    """Return the table of differences to dense with the fewest ranks, a row a system."""
    columns = [(outcome, ranks) for outcome in outcomes for ranks in FINAL_RANKS[:1]]
    titles = [f"{outcome.task.title}, {ranks} ranks" for outcome, ranks in columns]
    rows = [
        [candidate.title, *(standing_text(outcome, system, ranks) for outcome, ranks in columns)]
        for system, candidate in CANDIDATES.items()
    ]
    return Table(["system", *titles], rows).markdown()


def remedy_table(outcomes: list[Outcome]) -> Table:
    """Return the differences to dense of systems that have a remedy: a row without it, and a row with it."""
    columns = [(outcome, ranks) for outcome in outcomes for ranks in FINAL_RANKS]
    titles = [f"{outcome.task.title}, {ranks} ranks" for outcome, ranks in columns]
    rows = []
    for plain in PLAIN:
        system = plain.removesuffix("_plain")
        for name, text in ((plain, "plain"), (system, REMEDY_TEXTS[system])):
            cells = (standing_text(outcome, name, ranks) for outcome, ranks in columns)
            rows.append([CANDIDATES[system].title, text, *cells])
    return Table(["system", "remedy", *titles], rows)


def search_table(outcomes: list[Outcome]) -> Table:
    """Return what each system's final runs take, and its validation loss."""
    rows = [
        [candidate.title, *(found_text(outcome, system) for outcome in outcomes)]
        for system, candidate in (CANDIDATES | PLAIN).items()
    ]
    return Table(["system", *(outcome.task.title for outcome in outcomes)], rows)


def found_text(outcome: Outcome, system: str) -> str:
    """Return the best trial of a system, its validation loss, and whether it lies at an edge of what was tried."""
    rows = outcome.study.searches[outcome.name, system].rows
    best = outcome.best(system)
    return f"{trial_text(best['trial'])}: {number(mean_loss(best['losses']))}{edge_text(best, rows)}"


def trial_text(trial: Row) -> str:
    """Return a trial for people.

    Example:
        >>> trial_text({"optimizer": "sgd", "momentum": 0.9, "lr": 0.1})
        'SGD, momentum 0.9, lr 0.1'
    """
    others = [f"{SETTING_TITLES[name]} {value:g}" for name, value in trial.items() if name in SETTING_TITLES]
    return ", ".join([NAMES[trial["optimizer"]], *others, f"lr {trial['lr']:g}"])


def edge_text(best: Row, rows: list[Row]) -> str:
    """Return a mark if no higher, or no lower, lr was tried with the same settings."""
    lrs = [row["trial"]["lr"] for row in rows if {**row["trial"], "lr": 0} == {**best["trial"], "lr": 0}]
    lr = best["trial"]["lr"]
    return " (highest)" if lr == max(lrs) else " (lowest)" if lr == min(lrs) else ""


def task_text(outcome: Outcome) -> str:
    """Return the target of a task, and what it is measured by."""
    guess = math.log(outcome.task.classes)
    return f"{outcome.task.title}: target {number(outcome.target)} {outcome.task.unit}, a guess {guess:.3f}."


def task_figure(outcome: Outcome) -> str:
    """Return the figure of a task."""
    return f"![{outcome.task.title}](figures/systems_training_{outcome.name}.png)"


def result_table(outcomes: list[Outcome]) -> Table:
    """Return what every system ends at on every task, a row a system and number of ranks."""
    columns = (
        "task", "ranks", "seeds", "system", "test loss: mean (lowest to highest)", "accuracy",
        "less dense, 95 % interval", "steps to target",
    )  # fmt: skip
    rows: list[list[str]] = []
    for outcome in outcomes:
        for ranks in FINAL_RANKS:
            rows += _result_rows(outcome, ranks, len(outcome.seeds(ranks)), CANDIDATES)
        rows += _result_rows(outcome, TOPOLOGY_RANKS, len(outcome.topology_seeds), IN_TOPOLOGY)
    return Table(columns, rows)


def _result_rows(outcome: Outcome, ranks: int, num_seeds: int, systems: Iterable[str]) -> Iterator[list[str]]:
    for system in systems:
        accuracy = outcome.task.has_accuracy and accuracy_text(outcome.finals(system, ranks, "accuracy"))
        yield [
            outcome.task.title, str(ranks), str(num_seeds), ALL[system].title, loss_text(outcome, system, ranks),
            accuracy or "", difference_text(outcome, system, ranks), steps_text(outcome.steps_to_target(system, ranks)),
        ]  # fmt: skip
