"""The comparison of all compressing systems and topologies on three tasks, behind docs/evidence/binsgdm.md."""

import json
import math
import platform
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from evidence import RESULTS
from evidence.studies import figures
from evidence.studies.candidates import (
    ALL,
    CANDIDATES,
    IN_TOPOLOGY,
    LATER,
    NAMES_IN_TOPOLOGY,
    PLAIN,
    REMEDY_TEXTS,
    TOPOLOGIES,
    strategy_of,
)
from evidence.studies.page import BINSGDM, FIGURES, Interval, number, of_seeds
from evidence.studies.run import Run
from evidence.studies.study import CURVES, Final, Ledger, Row, Search, Study, best_of, mean_loss
from evidence.studies.tasks import TASKS as ALL_TASKS
from simnet.core.version import VERSION
from simnet.report.table import Table

TASKS = ALL_TASKS["systems"]
FINAL_SEEDS = (0, 1, 2, 3, 4)  # none of a search
FINAL_RANKS = (4, 16)
TOPOLOGY_RANKS = 4
"""Of the systems in other topologies: on 16 ranks a scatter-reduce encodes 256 pieces a step, which takes too long."""
TOPOLOGY_SEEDS = (0, 1, 2)
SEARCH_RANKS = 4  # 16 run with what 4 found
SEARCH_SEEDS = {"characters": (100,), "mnist_5k": (100, 101), "digits": (100, 101)}
RANKS_PER_NODE = {4: 2, 16: 4}
"""By ranks, of those systems and topologies that look at nodes."""
NUM_TRIALS = 6
"""Of every system on every task: four are fixed, two follow the best so far."""
SEARCH, PLAIN_RUNS = RESULTS / "systems_search.json", RESULTS / "systems_plain.json"
ALL_REDUCED = ("all_reduce", "power_sgd", "grad_zip", "random_k")
"""Strategies whose all-reduces simnet is to run by the fastest algorithm; training does not depend on it."""
DENSE = ("adam", "sgd")
TARGET_SHARE = 0.95
"""Of the way from a guess down to the reference's final loss: where the target of a task lies. Fixed before any final
run."""
AT_A_GUESS = 0.95
"""Of the loss of a guess: a run that ends above has learned nothing that lasted."""
TOPOLOGY_LEGEND = f"""\
By topology, on {TOPOLOGY_RANKS} ranks in nodes of {RANKS_PER_NODE[TOPOLOGY_RANKS]}, less a system's own form:
[how many are better or worse](data/systems-training-counts.csv), [each](data/systems-training-topologies.csv)."""
FIGURE = "systems_training_topologies.png"
SHOWN = [name for name in (*CANDIDATES, *LATER) if any(base == name for base, _ in NAMES_IN_TOPOLOGY)]
"""The systems that are trained in another topology than their own."""
COLUMNS = [shape for shape in TOPOLOGIES if any(topology == shape for _, topology in NAMES_IN_TOPOLOGY)]
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
BY_RANKS = {4: (figures.BLUE, "-"), 16: (figures.VERMILION, "--")}
PANELS_IN_A_ROW = 4


class SystemsStudy(Study):
    """The study with its files: trials, a file of curves a task, which simnet reads, and runs without remedies."""

    def __init__(self, search: Path = SEARCH, curves: Path = CURVES, plain: Path = PLAIN_RUNS) -> None:
        steps = {name: task.steps for name, task in TASKS.items()}
        trials = Ledger(search, "trials", head=lambda _: {"ranks": SEARCH_RANKS, "seeds": SEARCH_SEEDS, "steps": steps})
        self.searches = {
            (task, system): Search(
                system=system,
                run=_run(task, system, ranks=SEARCH_RANKS),
                fixed=ALL[system].fixed_trials,
                num_trials=NUM_TRIALS,
                seeds=SEARCH_SEEDS[task],
                ledger=trials,
            )
            for task in TASKS
            for system in [*CANDIDATES, *PLAIN]
        }
        self.plain = Ledger(plain, order=lambda row: (row["task"], row["system"], row["ranks"], row["seed"]))
        systems = [*CANDIDATES, *IN_TOPOLOGY]
        self.curves = {
            task: Ledger(
                curves / f"{task}.json",
                "curves",
                head=partial(self._head, task),
                order=lambda row: (systems.index(row["system"]), row["ranks"], row["seed"]),
            )
            for task in TASKS
        }

    def search_of(self, task: str, system: str) -> Search:
        """Return the search that says what a system runs with: for another topology, that of its own form."""
        return self.searches[task, ALL[system].tuned_as or system]

    def finals(self) -> Iterator[Final]:
        """Yield them seed by seed, so that all systems have as many seeds wherever the study is stopped."""
        trials = {key: search.best for key, search in self.searches.items() if search.is_done}
        in_own_form = product(FINAL_RANKS, FINAL_SEEDS, TASKS, [*CANDIDATES, *PLAIN])
        others = ((TOPOLOGY_RANKS, *place) for place in product(TOPOLOGY_SEEDS, TASKS, IN_TOPOLOGY))
        for ranks, seed, task, system in (*in_own_form, *others):
            if (trial := trials.get((task, ALL[system].tuned_as or system))) is not None:
                key = {"system": system, "ranks": ranks, "seed": seed}
                run = _run(task, system, ranks=ranks, trial=trial, seed=seed)
                if system in PLAIN:
                    yield Final(run, self.plain, {"task": task, **key})
                else:
                    yield Final(run, self.curves[task], key)

    def _head(self, task: str, rows: list[Row]) -> Row:
        """Return the members of a file of curves in front of the rows, in the order of the file."""
        source = (
            f"python -m evidence.studies run systems: all ranks in one process by the code of binsgdm {VERSION}, torch "
            f"{torch.__version__}, Python {platform.python_version()}, CPU, {time.strftime('%Y-%m-%d')}; evaluated on "
            "test data"
        )
        return {
            "format": "simnet-convergence",
            "version": 2,
            "task": TASKS[task].title,
            "metric": "test loss",
            "unit": TASKS[task].unit,
            "better": "lower",
            "batch": TASKS[task].batch,
            "num_parameters": TASKS[task].num_parameters,
            "source": source,
            "systems": {system: self._described(task, system) for system in dict.fromkeys(r["system"] for r in rows)},
        }

    def _described(self, task: str, system: str) -> Row:
        """Return what simnet simulates a system as, and the settings that it was trained with."""
        trial = self.search_of(task, system).best
        strategy = strategy_of(system)
        if strategy["kind"] in ALL_REDUCED:
            strategy["algorithm"] = "auto"
        if "dense_share" in trial:
            strategy["dense_steps"] = TASKS[task].dense_steps(trial)
        settings = {name: value for name, value in trial.items() if name != "optimizer"}
        return {
            "title": ALL[system].title,
            "strategy": strategy,
            "optimizer": trial["optimizer"],
            "settings": settings,
        }


def _run(task: str, system: str, *, ranks: int, **changes: Any) -> Run:
    candidate = ALL[system]
    # The two dense candidates differ in their optimizer only, which is part of the trial.
    return Run(
        study="systems",
        task=task,
        system="dense" if candidate.kind == "all_reduce" else candidate.system or system,
        options=candidate.options,
        ranks=ranks,
        ranks_per_node=RANKS_PER_NODE[ranks],
        **changes,
    )


class Outcome:
    """The final runs of one task, of the systems that have run.

    Attributes:
        counted: systems, and those in other topologies, that must all have run on a seed: one that some lack would
            favour those that had an easy one.
    """

    counted: tuple[Iterable[str], Iterable[str]] = (CANDIDATES, IN_TOPOLOGY)

    def __init__(self, study: SystemsStudy, task: str, only: Sequence[int] | None = None) -> None:
        self.study, self.name, self.task = study, task, TASKS[task]
        self._only = only

    @cached_property
    def reference(self) -> str:
        """The dense optimizer of lower validation loss in the search."""
        return min(DENSE, key=lambda system: mean_loss(self.best(system)["losses"]))

    @cached_property
    def target(self) -> float:
        """The held-out loss to be reached, the same for all systems and numbers of ranks."""
        final = statistics.fmean(row["values"][-1] for row in self.rows(self.reference, TOPOLOGY_RANKS))
        return final + (1 - TARGET_SHARE) * (math.log(self.task.classes) - final)

    def best(self, system: str) -> Row:
        """Return the trial that a system's final runs took."""
        return best_of(self.study.searches[self.name, system].rows)

    def seeds(self, ranks: int) -> list[int]:
        seeds = self._seeds_of(self.counted[0], ranks)
        return seeds if self._only is None else [seed for seed in seeds if seed in self._only]

    @property
    def topology_seeds(self) -> list[int]:
        """The seeds on which every system has run in all its topologies; for those, only these count."""
        others = self._seeds_of(self.counted[1], TOPOLOGY_RANKS)
        return [seed for seed in self.seeds(TOPOLOGY_RANKS) if seed in others]

    def _seeds_of(self, systems: Iterable[str], ranks: int) -> list[int]:
        rows = self.study.curves[self.name].having({"ranks": ranks})
        of = [{row["seed"] for row in rows if row["system"] == system} for system in systems]
        return sorted(set.intersection(*of)) if of else []

    def rows(self, system: str, ranks: int) -> list[Row]:
        """Return the final runs of a system, with its remedy, plain or in a topology, that count, seed by seed."""
        seeds = self.topology_seeds if system in IN_TOPOLOGY else self.seeds(ranks)
        key = {"system": system, "ranks": ranks}
        rows = self.study.curves[self.name].having(key) + self.study.plain.having({"task": self.name, **key})
        return sorted((row for row in rows if row["seed"] in seeds), key=lambda row: int(row["seed"]))

    def finals(self, system: str, ranks: int, column: str = "values") -> list[float]:
        """Return the last value of each seed that did not diverge."""
        return [row[column][-1] for row in self.rows(system, ranks) if row["values"][-1] is not None]

    def difference(self, system: str, ranks: int) -> Interval | None:
        """Return the final loss less the reference's, paired by seed; None if a seed diverged or for the reference."""
        return None if system == self.reference else self.apart(system, self.reference, ranks)

    def apart(self, system: str, other: str, ranks: int) -> Interval | None:
        """Return a system's final loss less that of another, paired by seed; None if a seed diverged with either."""
        ours, theirs = ({row["seed"]: row["values"][-1] for row in self.rows(name, ranks)} for name in (system, other))
        pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
        return None if any(None in pair for pair in pairs) else Interval.paired(*zip(*pairs, strict=True))

    def num_diverged(self, system: str, ranks: int) -> int:
        return len(self.rows(system, ranks)) - len(self.finals(system, ranks))

    def num_at_a_guess(self, system: str, ranks: int) -> int:
        """Return how many seeds ended no better than a guess, or nearly so, without diverging."""
        return sum(final > AT_A_GUESS * math.log(self.task.classes) for final in self.finals(system, ranks))

    def num_lost(self, system: str, ranks: int) -> int:
        return self.num_diverged(system, ranks) + self.num_at_a_guess(system, ranks)

    def steps_to_target(self, system: str, ranks: int) -> list[float]:
        """Return for each seed the first evaluated step at or below the target; infinity for never."""
        return [first_at(row, self.target) for row in self.rows(system, ranks)]


def first_at(row: Row, target: float) -> float:
    """Return the first evaluated step of a curve at or below a loss.

    Example:
        >>> first_at({"steps": [10, 20, 30], "values": [2.0, 1.0, None]}, 1.5)
        20
    """
    pairs = zip(row["steps"], row["values"], strict=True)
    return next((step for step, value in pairs if value is not None and value <= target), math.inf)


def standing_text(outcome: Outcome, system: str, ranks: int) -> str:
    """Return the mean difference to dense, marked where its interval leaves zero out."""
    if system == outcome.reference:
        return "reference"
    if num_lost := outcome.num_lost(system, ranks):
        return f"lost {num_lost} of {len(outcome.rows(system, ranks))}"
    difference = outcome.difference(system, ranks)
    assert difference is not None, "a system that lost no seed has a difference"
    return f"{difference.mean:+.3f}{difference.word(' behind', ' ahead')}"


def loss_text(outcome: Outcome, system: str, ranks: int) -> str:
    """Return mean and range of the final loss over seeds, and how many diverged or ended at a guess."""
    finals = outcome.finals(system, ranks)
    counts = {"at a guess": outcome.num_at_a_guess(system, ranks), "diverged": outcome.num_diverged(system, ranks)}
    return ", ".join([of_seeds(finals)] * bool(finals) + [f"{n} {what}" for what, n in counts.items() if n])


def difference_text(outcome: Outcome, system: str, ranks: int) -> str:
    difference = outcome.difference(system, ranks)
    return "-" if difference is None else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*difference)


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


def topology_table(outcomes: list[Outcome]) -> Table:
    rows = [
        [
            outcome.task.title,
            str(len(outcome.topology_seeds)),
            ALL[base].title,
            standing_text(outcome, base, TOPOLOGY_RANKS),
            *(cell_text(outcome, base, topology) for topology in COLUMNS),
        ]
        for outcome in outcomes
        for base in SHOWN
    ]
    return Table(["task", "seeds", "system", "own form", *(TOPOLOGIES[topology] for topology in COLUMNS)], rows)


def cell_text(outcome: Outcome, base: str, topology: str) -> str:
    """Return what a system comes to in a topology: less dense, and less its own form."""
    name = NAMES_IN_TOPOLOGY.get((base, topology))
    if name is None:
        return "-"
    text = standing_text(outcome, name, TOPOLOGY_RANKS)
    change = change_from_own(outcome, base, topology)
    return text if change is None else f"{text} ({change.mean:+.3f}{change.word(' worse', ' better')})"


def change_from_own(outcome: Outcome, base: str, topology: str) -> Interval | None:
    """Return the loss in a topology less that in the own form; None without one, or if a seed of either is lost."""
    name = NAMES_IN_TOPOLOGY.get((base, topology))
    if name is None or any(outcome.num_lost(system, TOPOLOGY_RANKS) for system in (base, name)):
        return None
    return outcome.apart(name, base, TOPOLOGY_RANKS)


def count_text(outcome: Outcome, topology: str) -> str:
    """Return how many systems a topology takes ahead of, and behind, their own form, and the median change."""
    systems = [base for base in SHOWN if (base, topology) in NAMES_IN_TOPOLOGY]
    changes = [change for system in systems if (change := change_from_own(outcome, system, topology)) is not None]
    words = [change.word("worse", "better") for change in changes]
    middle = f", median {statistics.median(change.mean for change in changes):+.3f}" if len(changes) > 2 else ""
    lost = f", {len(systems) - len(changes)} with lost seeds" if len(changes) < len(systems) else ""
    counts = f"{words.count('better')} better, {words.count('worse')} worse, {words.count('')} not told apart"
    return f"{counts}{lost}{middle}"


def read() -> SystemsStudy:
    return SystemsStudy()


def regions(study: SystemsStudy) -> dict[str, str]:
    outcomes = [Outcome(study, task) for task in TASKS]
    tasks = " ".join(
        f"{of.task.title}: target {number(of.target)} {of.task.unit}, a guess {math.log(of.task.classes):.3f}."
        for of in outcomes
    )
    pictures = [f"![{outcome.task.title}](figures/systems_training_{outcome.name}.png)" for outcome in outcomes]
    by_topology = [TOPOLOGY_LEGEND, "", f"![By topology](figures/{FIGURE})", ""]
    overview = standings(
        outcomes, FINAL_RANKS[:1], ["system"], {(candidate.title,): name for name, candidate in CANDIDATES.items()}
    )
    return {"systems": "\n".join([LEGEND, "", overview.markdown(), "", *by_topology, tasks, "", *pictures])}


def data(study: SystemsStudy) -> dict[str, Table]:
    outcomes = [Outcome(study, task) for task in TASKS]
    in_topologies = [Outcome(study, outcome.name, only=outcome.topology_seeds) for outcome in outcomes]
    titles = [outcome.task.title for outcome in outcomes]
    counts = [
        [TOPOLOGIES[topology], *(count_text(outcome, topology) for outcome in in_topologies)] for topology in COLUMNS
    ]
    trials = [
        [candidate.title, *(best_text(outcome, system) for outcome in outcomes)]
        for system, candidate in (CANDIDATES | PLAIN).items()
    ]
    remedies: dict[tuple[str, ...], str] = {}
    for plain in PLAIN:
        system = plain.removesuffix("_plain")
        remedies[CANDIDATES[system].title, "plain"] = plain
        remedies[CANDIDATES[system].title, REMEDY_TEXTS[system]] = system
    return {
        "systems-training": result_table(outcomes),
        "systems-training-remedies": standings(outcomes, FINAL_RANKS, ["system", "remedy"], remedies),
        "systems-training-topologies": topology_table(in_topologies),
        "systems-training-counts": Table(["topology", *titles], counts),
        "systems-training-search": Table(["system", *titles], trials),
    }


def standings(
    outcomes: list[Outcome], ranks: Iterable[int], heads: list[str], names: dict[tuple[str, ...], str]
) -> Table:
    """Return the differences to dense of systems by their first cells, a column a task and number of ranks."""
    columns = list(product(outcomes, ranks))
    titles = [f"{outcome.task.title}, {number} ranks" for outcome, number in columns]
    rows = [
        [*cells, *(standing_text(outcome, name, number) for outcome, number in columns)]
        for cells, name in names.items()
    ]
    return Table([*heads, *titles], rows)


def best_text(outcome: Outcome, system: str) -> str:
    """Return the best trial of a system, its validation loss, and whether it lies at an edge of what was tried."""
    rows = outcome.study.searches[outcome.name, system].rows
    best = outcome.best(system)
    lr = best["trial"]["lr"]
    lrs = [row["trial"]["lr"] for row in rows if {**row["trial"], "lr": lr} == best["trial"]]
    edge = " (highest)" if lr == max(lrs) else " (lowest)" if lr == min(lrs) else ""
    return f"{trial_text(best['trial'])}: {number(mean_loss(best['losses']))}{edge}"


def trial_text(trial: Row) -> str:
    """Return a trial for people.

    Example:
        >>> trial_text({"optimizer": "sgd", "momentum": 0.9, "lr": 0.1})
        'SGD, momentum 0.9, lr 0.1'
    """
    others = [f"{SETTING_TITLES[name]} {value:g}" for name, value in trial.items() if name in SETTING_TITLES]
    return ", ".join([NAMES[trial["optimizer"]], *others, f"lr {trial['lr']:g}"])


def result_table(outcomes: list[Outcome]) -> Table:
    """Return what every system ends at on every task, a row a system and number of ranks."""
    columns = (
        "task", "ranks", "seeds", "system", "test loss: mean (lowest to highest)", "accuracy",
        "less dense, 95 % interval", "steps to target",
    )  # fmt: skip
    rows = []
    for outcome in outcomes:
        groups = [(ranks, outcome.seeds(ranks), CANDIDATES) for ranks in FINAL_RANKS]
        for ranks, seeds, systems in (*groups, (TOPOLOGY_RANKS, outcome.topology_seeds, IN_TOPOLOGY)):
            for system in systems:
                accuracies = outcome.finals(system, ranks, "accuracy") if outcome.task.has_accuracy else []
                accuracy = f"{100 * statistics.fmean(accuracies):.1f} %" if accuracies else "-"
                rows.append([
                    outcome.task.title, str(ranks), str(len(seeds)), ALL[system].title,
                    loss_text(outcome, system, ranks), accuracy if outcome.task.has_accuracy else "",
                    difference_text(outcome, system, ranks), steps_text(outcome.steps_to_target(system, ranks)),
                ])  # fmt: skip
    return Table(columns, rows)


def draw(study: SystemsStudy) -> None:
    """Draw the figures, and write the targets into the files of the curves; all else in them stays."""
    outcomes = [Outcome(study, task) for task in TASKS]
    for outcome in outcomes:
        draw_systems(outcome, FIGURES / f"systems_training_{outcome.name}.png")
        ledger = study.curves[outcome.name]
        head = json.loads(ledger.path.read_text(encoding="utf-8"))
        systems, curves = head.pop("systems"), head.pop("curves")
        ledger.write(curves, head | {"target": float(f"{outcome.target:.5g}"), "systems": systems})
    draw_topologies([Outcome(study, outcome.name, only=outcome.topology_seeds) for outcome in outcomes])


def draw_systems(outcome: Outcome, path: Path) -> None:
    """Draw a panel for each system, the dense reference behind it; how many seeds diverged, whose lines end."""
    reference = outcome.rows(outcome.reference, TOPOLOGY_RANKS)
    size = (7.8, 1.55 * math.ceil(len(CANDIDATES) / PANELS_IN_A_ROW) + 0.7)
    texts = "Step", f"Test loss ({outcome.task.unit})"
    shared = {"sharex": True, "sharey": True}
    with figures.panels(path, len(CANDIDATES), PANELS_IN_A_ROW, size, texts, **shared) as (figure, axes):
        for axis, (system, candidate) in zip(axes, CANDIDATES.items(), strict=True):
            axis.plot(
                reference[0]["steps"], figures.means(reference), color="0.6", linewidth=2.4, label="dense reference"
            )
            axis.axhline(outcome.target, color="0.35", linewidth=0.8, linestyle=":", label="target")
            lost = []
            for ranks, (colour, line) in BY_RANKS.items():
                if rows := outcome.rows(system, ranks):
                    figures.band(axis, rows, alpha=0.18, color=colour, linestyle=line, label=f"{ranks} ranks")
                    if num_lost := outcome.num_diverged(system, ranks):
                        lost.append(f"{num_lost} of {len(rows)} diverged on {ranks}")
            if lost:
                # On a white ground, since lines may run below the text.
                ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.9, "pad": 1.5}
                at = {"transform": axis.transAxes, "ha": "right", "va": "top", "fontsize": 7}
                axis.text(0.97, 0.95, "\n".join(lost), **at, bbox=ground)
            axis.set_title(candidate.title)
            axis.grid(alpha=0.25, linewidth=0.5)
        for axis in axes[-PANELS_IN_A_ROW:]:
            axis.tick_params(labelbottom=True)
        # From below the best final loss to a little above a guess, on a logarithmic axis if that is wide.
        guess = math.log(outcome.task.classes)
        lowest = min(final for ranks in BY_RANKS for system in CANDIDATES for final in outcome.finals(system, ranks))
        if guess / lowest > 5:
            axes[0].set_ylim(lowest * 0.85, guess * 1.25)
            figures.logarithmic(axes[0], [t for t in figures.TICKS if lowest * 0.85 < t < guess * 1.25])
        else:
            axes[0].set_ylim(lowest - 0.05 * guess, guess * 1.02)
        axes[0].set_xticks([part * outcome.task.steps / 3 for part in range(4)])
        axes[0].set_xlim(left=0)
        figures.legend_above(figure, axes[0])


def draw_topologies(outcomes: list[Outcome]) -> None:
    """Draw a panel for each task, a line of marks for each system, a mark for each topology, with its interval."""
    forms: dict[str, tuple[str, dict[str, str]]] = {"own": ("own form", {name: name for name in SHOWN})}
    forms |= {
        form: (
            TOPOLOGIES[form],
            {base: name for (base, topology), name in NAMES_IN_TOPOLOGY.items() if topology == form},
        )
        for form in COLUMNS
    }
    looks = list(zip(("0.35", *figures.COLOURS), ("|", "o", "s", "D", "^"), strict=False))
    size, text = (9, 0.27 * len(SHOWN) + 1.2), "Final test loss less that of the dense reference (nats)"
    with figures.panels(FIGURES / FIGURE, len(outcomes), len(outcomes), size, (text, ""), sharey=True) as (
        figure,
        axes,
    ):
        for axis, outcome in zip(axes, outcomes, strict=True):
            axis.axvline(0, color="0.6", linewidth=1)
            every = []
            for place, ((title, names), (colour, mark)) in enumerate(zip(forms.values(), looks, strict=False)):
                # Side by side, so that marks of equal loss stay apart.
                shift = 0.7 * ((place + 0.5) / len(forms) - 0.5)
                gaps = {
                    line + shift: gap
                    for line, base in enumerate(SHOWN)
                    if base in names and not outcome.num_lost(names[base], TOPOLOGY_RANKS)
                    if (gap := outcome.difference(names[base], TOPOLOGY_RANKS)) is not None
                }
                means = [gap.mean for gap in gaps.values()]
                every += means
                axis.errorbar(
                    means,
                    list(gaps),
                    xerr=[
                        [gap.mean - gap.low for gap in gaps.values()],
                        [gap.high - gap.mean for gap in gaps.values()],
                    ],
                    fmt=mark,
                    color=colour,
                    markersize=7 if mark == "|" else 3.2,
                    elinewidth=0.7,
                    label=title,
                )
            axis.set_title(outcome.task.title)
            # Every mean, if not the whole of the widest intervals.
            room = 0.12 * (max(every) - min(every))
            axis.set_xlim(min(every) - room, max(every) + room)
            axis.locator_params(axis="x", nbins=5)
            axis.grid(axis="y", alpha=0.3, linewidth=0.5)
        axes[0].set_yticks(range(len(SHOWN)), [ALL[name].title for name in SHOWN])
        axes[0].invert_yaxis()
        figures.legend_above(figure, axes[0], len(forms))
