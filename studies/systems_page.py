"""What docs/evidence/binsgdm.md says of all systems: tables and figures, from the committed files."""

import math
from collections.abc import Iterable, Iterator

from binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from simnet.report.table import Table
from studies import figures, topology_page
from studies.candidates import ALL, CANDIDATES, IN_TOPOLOGY, PLAIN, REMEDY_TEXTS
from studies.cells import accuracy_text, difference_text, loss_text, standing_text, steps_text
from studies.ledger import Row
from studies.outcome import Outcome
from studies.page import BINSGDM, FIGURES, number
from studies.search import mean_loss
from studies.systems_study import FINAL_RANKS, FINAL_SEEDS, TOPOLOGY_RANKS, SystemsStudy

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


def regions(study: SystemsStudy) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    outcomes = [Outcome(study, task) for task in study.curves]
    parts = [LEGEND, "", overview(outcomes), "", *missing_seeds_note(outcomes), *topology_page.section(outcomes)]
    tasks = " ".join(map(task_text, outcomes))
    return {"systems": "\n".join([*parts, tasks, "", *map(task_figure, outcomes)])}


def data(study: SystemsStudy) -> dict[str, Table]:
    """Return the tables that the page links to, by name."""
    outcomes = [Outcome(study, task) for task in study.curves]
    return {
        "systems-training": result_table(outcomes),
        "systems-training-remedies": remedy_table(outcomes),
        "systems-training-topologies": topology_page.topology_table(topology_page.complete(outcomes)),
        "systems-training-counts": topology_page.counts_table(topology_page.complete(outcomes)),
        "systems-training-search": search_table(outcomes),
    }


def draw(study: SystemsStudy) -> None:
    """Draw the figures, and write the targets into the files of the curves."""
    for task in study.curves:
        outcome = Outcome(study, task)
        figures.draw_systems(outcome, FIGURES / f"systems_training_{task}.png")
        study.write_target(task, outcome.target)
    topology_page.draw([Outcome(study, task) for task in study.curves], FIGURES)


def overview(outcomes: list[Outcome]) -> str:
    """Return the table of differences to dense with the fewest ranks, a row a system."""
    columns = [(outcome, ranks) for outcome in outcomes for ranks in complete_ranks(outcome)[:1]]
    titles = [f"{outcome.task.title}, {ranks} ranks" for outcome, ranks in columns]
    rows = [
        [candidate.title, *(standing_text(outcome, system, ranks) for outcome, ranks in columns)]
        for system, candidate in CANDIDATES.items()
    ]
    return Table(["system", *titles], rows).markdown()


def remedy_table(outcomes: list[Outcome]) -> Table:
    """Return the differences to dense of systems that have a remedy: a row without it, and a row with it."""
    columns = [(outcome, ranks) for outcome in outcomes for ranks in complete_ranks(outcome)]
    titles = [f"{outcome.task.title}, {ranks} ranks" for outcome, ranks in columns]
    rows = []
    for plain in PLAIN:
        system = plain.removesuffix("_plain")
        for name, text in ((plain, "plain"), (system, REMEDY_TEXTS[system])):
            cells = (standing_text(outcome, name, ranks) for outcome, ranks in columns)
            rows.append([CANDIDATES[system].title, text, *cells])
    return Table(["system", "remedy", *titles], rows)


def missing_seeds_note(outcomes: list[Outcome]) -> list[str]:
    """Return the lines of the page that name missing seeds; none if all have run."""
    few = [
        f"{outcome.task.title} on {ranks} ranks: {len(outcome.seeds(ranks))} of {len(FINAL_SEEDS)} seeds"
        for outcome in outcomes
        for ranks in FINAL_RANKS
        if len(outcome.seeds(ranks)) < len(FINAL_SEEDS)
    ]
    return ["**Not all has run yet.** " + "; ".join(few) + ".", ""] if few else []


def complete_ranks(outcome: Outcome) -> list[int]:
    """Return the numbers of ranks on which two seeds or more are complete, which an interval takes."""
    return [ranks for ranks in FINAL_RANKS if len(outcome.seeds(ranks)) > 1]


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
        for ranks in complete_ranks(outcome):
            rows += _result_rows(outcome, ranks, len(outcome.seeds(ranks)), CANDIDATES)
        if outcome.is_complete_in_topologies:
            rows += _result_rows(outcome, TOPOLOGY_RANKS, len(outcome.topology_seeds), IN_TOPOLOGY)
    return Table(columns, rows)


def _result_rows(outcome: Outcome, ranks: int, num_seeds: int, systems: Iterable[str]) -> Iterator[list[str]]:
    for system in systems:
        accuracy = outcome.task.has_accuracy and accuracy_text(outcome.finals(system, ranks, "accuracy"))
        yield [
            outcome.task.title, str(ranks), str(num_seeds), ALL[system].title, loss_text(outcome, system, ranks),
            accuracy or "", difference_text(outcome, system, ranks), steps_text(outcome.steps_to_target(system, ranks)),
        ]  # fmt: skip
