"""Search lr and the like, compare BinSGDM with Adam over seeds, and write the numbers of docs/evidence/training.md.

python -m studies.compare search digits                            # then: search lm, search lm_long; validation data
torchrun --nproc-per-node 4 -m studies.compare final digits        # then: final lm, final lm_long; test data
python -m studies.compare final lm_alone                           # after search lm_alone; one rank
torchrun --nproc-per-node 8 -m studies.compare scale digits        # with 1, 2, 4 and 8 ranks; then: scale lm
torchrun --nproc-per-node 4 -m studies.compare options digits      # overlap, bf16 and 1 bit inside a node
torchrun --nproc-per-node 4 -m studies.compare average lm          # gradients averaged inside a node; then: lm_long
python -m studies.compare page                                     # tables and figure from studies/results

Every run is written as it ends and not run again; `--at-most N` and `--optimizer NAME` do a part of them.
"""

import argparse
import fcntl
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import train_digits
import train_lm
import training

from binsgdm import BinSGDM
from simnet.show.table import Table

Trial = dict[str, Any]
"""Options of a training script."""

TASKS: dict[str, Any] = {"digits": train_digits, "lm": train_lm, "lm_long": train_lm, "lm_alone": train_lm}
STEPS = {"digits": 300, "lm": 300, "lm_long": 2000, "lm_alone": 2000}
RESULTS = Path(__file__).parent / "results"
FIGURE = Path(__file__).parents[1] / "docs" / "evidence" / "figures" / "training_curves.png"

MARGINS = {"digits": ("accuracy", 0.01), "lm": ("loss", 0.05), "lm_long": ("loss", 0.05), "lm_alone": ("loss", 0.05)}
"""Fixed before any final run: BinSGDM reaches Adam if the whole interval is no worse than Adam by more than this."""

OPTIMIZERS = {"binsgdm": BinSGDM.title, "adam": "Adam"}
"""By the name on the command line, the name on the page."""
SEARCH_SEEDS = {"digits": (100, 101), "lm": (100,), "lm_long": (100,), "lm_alone": (100,)}
FINAL_SEEDS = (0, 1, 2, 3, 4)
SCALE_SEEDS = (0, 1, 2)
T_95_FOR_5 = 2.776  # Student's t, 4 degrees of freedom, two-sided
TUNED = ("lr", "beta", "beta2", "warmup", "weight_decay")

LRS = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)

SHORT: list[Trial] = [{"optimizer": "binsgdm", "lr": lr, "beta": beta} for lr in LRS for beta in (0.9, 0.95, 0.98)] + [
    {"optimizer": "adam", "lr": round(3e-4 * 1.3**power, 6)} for power in range(18)
]
LONG_LRS = (3e-3, 4.5e-3, 6.7e-3, 1e-2, 1.5e-2, 2.25e-2)
SCHEME = {"play_ranks": 4, "ranks_per_node": 2}
LONG: list[Trial] = [
    {"optimizer": "binsgdm", "lr": lr, "beta": beta, **SCHEME} for lr in LONG_LRS[:4] for beta in (0.8, 0.9, 0.95)
] + [{"optimizer": "adam", "lr": lr, "warmup": warmup} for lr in LONG_LRS for warmup in (0, 200)]
"""Fixed before any final run of lm_long. BinSGDM is searched as the four ranks that it is then run on, played in one
process, since its steps depend on how the batch is shared; those of Adam do not."""
ALONE = [{"optimizer": "binsgdm", "lr": lr, "beta": beta} for lr in LONG_LRS[:4] for beta in (0.3, 0.5, 0.7)] + [
    trial for trial in LONG if trial["optimizer"] == "adam"
]
"""Fixed before any final run of lm_alone, which one rank runs; the trials of Adam are those of lm_long."""
SEARCHES: dict[str, list[Trial]] = {"digits": SHORT, "lm": SHORT, "lm_long": LONG, "lm_alone": ALONE}


def train(task: str, trial: Trial) -> dict[str, Any]:
    """Train once in this process, as rank of the group that torchrun started, if it did."""
    flags = [word for name, value in trial.items() for word in flag(name, value)]
    result: dict[str, Any] = TASKS[task].train(TASKS[task].parse(["--steps", str(STEPS[task]), *flags]), DEVICE)
    return result


def flag(name: str, value: Any) -> list[str]:
    """Return an option as words of the command line.

    Example:
        >>> flag("ranks_per_node", 2), flag("overlap", True)
        (['--ranks-per-node', '2'], ['--overlap'])
    """
    return [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]


def search(task: str, trial: Trial) -> dict[str, Any]:
    """Return a trial with its mean validation loss."""
    results = [train(task, {**trial, "split": "validation", "seed": seed}) for seed in SEARCH_SEEDS[task]]
    return {**trial, "loss": statistics.fmean(result["curve"][-1]["loss"] for result in results)}


def searches(task: str) -> list[Trial]:
    """Return the trials of a search."""
    return SEARCHES[task]


def best(task: str, optimizer: str) -> Trial:
    """Return what the trial with the lowest validation loss had set."""
    trial = min((row for row in read(f"search_{task}") if row["optimizer"] == optimizer), key=_loss)
    return {name: trial[name] for name in ("optimizer", *TUNED) if name in trial}


def finals(task: str) -> list[Trial]:
    """Return the runs of both optimizers over the final seeds; nodes of two ranks."""
    return [
        {**best(task, optimizer), "seed": seed, "ranks_per_node": 2} for optimizer in OPTIMIZERS for seed in FINAL_SEEDS
    ]


def scales(task: str) -> list[Trial]:
    """Return runs of BinSGDM, flat and, if there is more than one rank, on nodes of two, and of Adam."""
    shapes: list[Trial] = [{**best(task, "binsgdm"), "topology": "flat", "ranks_per_node": 1}]
    if training.rank_and_world_size()[1] > 1:
        shapes.append({**best(task, "binsgdm"), "topology": "hierarchical", "ranks_per_node": 2})
    shapes.append(best(task, "adam"))
    return [{**shape, "seed": seed} for shape in shapes for seed in SCALE_SEEDS]


def options(task: str) -> list[Trial]:
    """Return runs of BinSGDM on nodes of two ranks with each option that changes what travels, or when."""
    variants: list[Trial] = [{"overlap": True}, {"intra": "bf16"}, {"intra": "one_bit"}]
    return [
        {**best(task, "binsgdm"), "ranks_per_node": 2, **variant, "seed": seed}
        for variant in variants
        for seed in SCALE_SEEDS
    ]


def averages(task: str) -> list[Trial]:
    """Return the final runs of BinSGDM with gradients averaged inside nodes of two ranks; lr and beta not searched."""
    return [
        {**best(task, "binsgdm"), "ranks_per_node": 2, "average": "gradients", "seed": seed} for seed in FINAL_SEEDS
    ]


COMMANDS: dict[str, tuple[Callable[[str], list[Trial]], Callable[[str, Trial], dict[str, Any]]]] = {
    "search": (searches, search),
    "final": (finals, train),
    "scale": (scales, train),
    "options": (options, train),
    "average": (averages, train),
}


def run(command: str, task: str, *, optimizer: str | None, at_most: int | None) -> None:
    """Run the trials of a command that are not written yet, or some of them; write each as it ends."""
    trials, work = COMMANDS[command]
    rank, world_size = training.rank_and_world_size()
    name = f"{command}_{task}" + (f"_{world_size}" if command == "scale" else "")
    rows = read(name)
    left = [trial for trial in trials(task) if optimizer in {None, trial["optimizer"]} and not having(rows, trial)]
    for trial in left[:at_most]:
        row = work(task, trial)
        if rank == 0:
            add(name, row)
    if rank == 0:
        print(f"{name}: {len(left) - len(left[:at_most])} left")


def read(name: str) -> list[dict[str, Any]]:
    """Return the results written under a name."""
    path = RESULTS / f"{name}.json"
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return rows


def add(name: str, row: dict[str, Any]) -> None:
    """Write one more result under a name; other processes may do so at the same time."""
    RESULTS.mkdir(exist_ok=True)
    lock = os.open(RESULTS, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lines = ",\n".join(map(json.dumps, [*read(name), row]))
        (RESULTS / f"{name}.json").write_text(f"[\n{lines}\n]\n")
    finally:
        os.close(lock)


def having(rows: list[dict[str, Any]], options: Trial) -> list[dict[str, Any]]:
    """Return the rows that have some options."""
    return [row for row in rows if all(row.get(name) == value for name, value in options.items())]


def last(rows: list[dict[str, Any]], metric: str) -> list[float]:
    """Return the last value of a metric in each row."""
    return [row["curve"][-1][metric] for row in rows]


def page() -> None:
    """Print the tables in Markdown and draw the figure."""
    tables = [searched(), verdicts(), explored(), scaled("digits"), scaled("lm"), varied("digits")]
    print("\n\n".join(table.markdown() for table in tables))
    draw()


def searched() -> Table:
    """Return the table of the best trials of each search."""
    rows = [
        [task, name, *map(trial_text, sorted(having(read(f"search_{task}"), {"optimizer": optimizer}), key=_loss)[:4])]
        for task in TASKS
        for optimizer, name in OPTIMIZERS.items()
    ]
    return Table(["task", "optimizer", "best", "next", "next", "next"], rows)


def verdicts() -> Table:
    """Return the table of the final runs."""
    rows = [verdict(task, *MARGINS[task], read(f"final_{task}")) for task in TASKS if read(f"final_{task}")]
    for task in TASKS:
        if averaged := read(f"average_{task}"):
            adam = having(read(f"final_{task}"), {"optimizer": "adam"})
            rows.append(verdict(f"{task}, average gradients", *MARGINS[task], averaged + adam))
    columns = ["task", "metric", *OPTIMIZERS.values(), "difference, 95 % interval", "margin", "verdict"]
    return Table(columns, rows)


_OURS: Trial = {"optimizer": "binsgdm", "weight_decay": None, "no_draw": None}
EXPLORED: dict[str, Trial] = {
    "Adam": {"optimizer": "adam", "weight_decay": None},
    "BinSGDM, 1 rank": {**_OURS, "play_ranks": None},
    "2 ranks": {**_OURS, "play_ranks": 2},
    "4 ranks": {**_OURS, "play_ranks": 4, "ranks_per_node": 2},
    "1 rank, no draw": {**_OURS, "play_ranks": 1, "no_draw": True},
    "4 ranks, no draw": {**_OURS, "play_ranks": 4, "no_draw": True},
}
"""Columns of the exploration: which of its rows each is the best of. Two ranks are two nodes, four are two of two."""


def explored() -> Table:
    """Return the table of the exploration: the best of what was tried at each number of steps and each batch."""
    lines: list[list[str]] = []
    rows = [{"batch": 16, **row} for row in read("explore_lm")]
    for steps, batch in sorted({(row["steps"], row["batch"]) for row in rows}):
        found = [having(rows, {"steps": steps, "batch": batch, **what}) for what in EXPLORED.values()]
        best_of = [f"{trial_text(min(some, key=_loss))} ({len(some)})" if some else "" for some in found]
        lines.append([str(steps), str(batch), *best_of])
    return Table(["steps", "batch", *EXPLORED], lines)


def scaled(task: str) -> Table:
    """Return the table of a task over ranks and topology."""
    metrics = ("accuracy", "loss") if task == "digits" else ("loss",)
    titles = {"accuracy": "test accuracy", "loss": "test loss (nats)"}
    lines: list[list[str]] = []
    for world_size in (1, 2, 4, 8):
        rows = read(f"scale_{task}_{world_size}")
        shapes: dict[str, Trial] = {
            "BinSGDM, flat": {"optimizer": "binsgdm", "topology": "flat"},
            "BinSGDM, hierarchical": {"optimizer": "binsgdm", "topology": "hierarchical"},
            "Adam": {"optimizer": "adam"},
        }
        for name, shape in shapes.items():
            if found := having(rows, shape):
                lines.append([str(world_size), name, *cells(found, metrics)])
    return Table(["ranks", "optimizer, topology", *(titles[metric] for metric in metrics)], lines)


def varied(task: str) -> Table:
    """Return the table of a task over the options of `attach`, on four ranks."""
    rows = read(f"options_{task}")
    plain: Trial = {"optimizer": "binsgdm", "topology": "hierarchical"}
    shapes: dict[str, Trial] = {
        "overlap": {"overlap": True},
        "intra bf16": {"intra": "bf16"},
        "intra one_bit": {"intra": "one_bit"},
    }
    variants = {
        "none": having(read(f"scale_{task}_4"), plain),
        **{name: having(rows, it) for name, it in shapes.items()},
    }
    lines = [[name, *cells(found, ("accuracy", "loss"))] for name, found in variants.items() if found]
    return Table(["option", "test accuracy", "test loss (nats)"], lines)


def cells(rows: list[dict[str, Any]], metrics: tuple[str, ...]) -> list[str]:
    """Return mean and standard deviation over the rows of each metric."""
    return [spread(last(rows, metric)) for metric in metrics]


def trial_text(row: dict[str, Any]) -> str:
    """Return a trial and its validation loss in nats."""
    names = {"warmup": "warm-up", "weight_decay": "weight decay"}
    set_to = [f"{names.get(name, name)} {row[name]:.4g}" for name in TUNED if name in row]
    return ", ".join(set_to) + f": {row['loss']:.3f}"


def _loss(row: dict[str, Any]) -> float:
    return float(row["loss"])


def spread(values: list[float]) -> str:
    """Return mean and standard deviation over seeds, of which there are two or more."""
    if len(values) < 2:
        return f"{values[0]:.4f} (1 seed)"
    return f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}"


def verdict(task: str, metric: str, margin: float, rows: list[dict[str, Any]]) -> list[str]:
    """Return the row of a task: BinSGDM minus Adam, paired by seed."""
    rows = sorted(rows, key=lambda row: int(row["seed"]))
    ours, theirs = (last(having(rows, {"optimizer": optimizer}), metric) for optimizer in OPTIMIZERS)
    differences = [our - their for our, their in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(differences)
    half = T_95_FOR_5 * statistics.stdev(differences) / len(differences) ** 0.5
    worst = mean + half if metric == "loss" else -(mean - half)
    reached = "reached" if worst <= margin else "missed" if worst - 2 * half > margin else "not shown"
    interval = f"{mean:+.4f} [{mean - half:+.4f}, {mean + half:+.4f}]"
    return [task, metric, spread(ours), spread(theirs), interval, str(margin), reached]


TITLES = {
    "digits": "Digits, 4 ranks",
    "lm": "Characters, 4 ranks, 300 steps",
    "lm_long": "Characters, 4 ranks, 2000 steps",
    "lm_alone": "Characters, 1 rank, 2000 steps",
}


def draw() -> None:
    """Draw the tasks against steps: mean of the seeds, band from lowest to highest."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    styles = {"binsgdm": ("#0072B2", "-", "o"), "adam": ("#D55E00", "--", "s")}
    for axis, (task, title) in zip(axes.flat, TITLES.items(), strict=True):
        label, factor = ("Test accuracy (%)", 100) if task == "digits" else ("Test loss (nats per character)", 1)
        rows = read(f"final_{task}")
        for optimizer, (colour, line, marker) in styles.items():
            curves = [row["curve"] for row in rows if row["optimizer"] == optimizer]
            steps = [point["step"] for point in curves[0]]
            at = [[factor * curve[i][MARGINS[task][0]] for curve in curves] for i in range(len(steps))]
            axis.fill_between(steps, list(map(min, at)), list(map(max, at)), color=colour, alpha=0.2, linewidth=0)
            means = list(map(statistics.fmean, at))
            axis.plot(steps, means, line, color=colour, marker=marker, markersize=4, label=OPTIMIZERS[optimizer])
        axis.set(title=title, xlabel="Step", ylabel=label)
        axis.locator_params(axis="x", nbins=5)
        axis.set_xlim(left=0)
        axis.grid(alpha=0.3)
        axis.legend(title="mean and range of 5 seeds")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=130)


def parse() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["page", *COMMANDS], nargs="?", default="page")
    parser.add_argument("task", choices=list(TASKS), nargs="?", default="digits")
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), help="only its trials")
    parser.add_argument("--at-most", type=int, help="how many trials to run")
    return parser.parse_args()


if __name__ == "__main__":
    given = parse()
    if given.command == "page":
        page()
    else:
        with training.ranks() as DEVICE:
            run(given.command, given.task, optimizer=given.optimizer, at_most=given.at_most)
