"""Search lr and beta, compare BinSGDM with Adam over seeds, and write the numbers of docs/training.md.

python examples/compare.py search digits                                     # then: search lm; validation data, 1 rank
torchrun --nproc-per-node 4 examples/compare.py final digits                 # then: final lm; test data
torchrun --nproc-per-node 8 examples/compare.py scale digits                 # with 1, 2, 4 and 8 ranks
python examples/compare.py page                                              # table and figure from examples/results
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import train_digits
import train_lm
import training

# ruff: noqa: T201

TASKS: dict[str, Any] = {"digits": train_digits, "lm": train_lm}
RESULTS = Path(__file__).parent / "results"
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "training_curves.png"

MARGINS = {"digits": ("accuracy", 0.01), "lm": ("loss", 0.05)}
"""Fixed before any final run: BinSGDM reaches Adam if the whole interval is no worse than Adam by more than this."""

SEARCH_SEEDS = {"digits": (100, 101), "lm": (100,)}
FINAL_SEEDS = (0, 1, 2, 3, 4)
SCALE_SEEDS = (0, 1, 2)
T_95_FOR_5 = 2.776  # Student's t, 4 degrees of freedom, two-sided

LRS = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)

TRIALS = {
    "binsgdm": [("--lr", lr, "--beta", beta) for lr in LRS for beta in (0.9, 0.95, 0.98)],
    "adam": [("--lr", round(3e-4 * 1.3**power, 6)) for power in range(18)],
}


def train(task: str, *words: Any) -> dict[str, Any]:
    """Train once in this process, as rank of the group that torchrun started, if it did."""
    with_flags = TASKS[task].parse([str(word) for word in words])
    result: dict[str, Any] = TASKS[task].train(with_flags, DEVICE)
    return result


def search(task: str) -> list[dict[str, Any]]:
    """Return the mean validation loss of every trial."""
    found = []
    for optimizer, trials in TRIALS.items():
        for trial in trials:
            losses = []
            for seed in SEARCH_SEEDS[task]:
                result = train(task, "--optimizer", optimizer, *trial, "--split", "validation", "--seed", seed)
                losses.append(result["curve"][-1]["loss"])
            found.append({"optimizer": optimizer, "trial": trial[1::2], "loss": statistics.fmean(losses)})
    return found


def best(task: str, optimizer: str) -> tuple[Any, ...]:
    """Return the flags of the trial with the lowest validation loss."""
    trials = [row for row in read(f"search_{task}") if row["optimizer"] == optimizer]
    values = min(trials, key=lambda row: row["loss"])["trial"]
    return tuple(word for pair in zip(("--lr", "--beta"), values, strict=False) for word in pair)


def final(task: str) -> list[dict[str, Any]]:
    """Return the runs of both optimizers over the final seeds; nodes of two ranks."""
    return [
        train(task, "--optimizer", optimizer, *best(task, optimizer), "--seed", seed, "--ranks-per-node", 2)
        for optimizer in TRIALS
        for seed in FINAL_SEEDS
    ]


def scale(task: str) -> list[dict[str, Any]]:
    """Return runs of BinSGDM, flat and, if there is more than one node of two ranks, hierarchical."""
    world_size = training.rank_and_world_size()[1]
    shapes = [("--topology", "flat", "--ranks-per-node", 1)]
    if world_size > 1:
        shapes.append(("--topology", "hierarchical", "--ranks-per-node", 2))
    return [train(task, *best(task, "binsgdm"), *shape, "--seed", seed) for shape in shapes for seed in SCALE_SEEDS]


def read(name: str) -> list[dict[str, Any]]:
    """Return the results written under a name."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())
    return rows


def last(rows: list[dict[str, Any]], metric: str, **having: Any) -> list[float]:
    """Return the last value of a metric in the rows that have some options."""
    return [row["curve"][-1][metric] for row in rows if all(row[name] == value for name, value in having.items())]


def page() -> None:
    """Print the tables in Markdown and draw the figure."""
    print("| task | optimizer | best | next | next | next |\n|---|---|---|---|---|---|")
    for task in TASKS:
        for optimizer in TRIALS:
            rows = sorted((row for row in read(f"search_{task}") if row["optimizer"] == optimizer), key=_loss)
            print(f"| {task} | {optimizer} | " + " | ".join(map(trial_text, rows[:4])) + " |")
    print("\n| task | metric | BinSGDM | Adam | difference, 95 % interval | margin | |\n|---|---|---|---|---|---|---|")
    for task, (metric, margin) in MARGINS.items():
        print(verdict(task, metric, margin))
    print("\n| ranks | topology | test accuracy | test loss |\n|---|---|---|---|")
    for world_size in (1, 2, 4, 8):
        rows = read(f"scale_digits_{world_size}")
        for topology in ("flat", "hierarchical"):
            if accuracies := last(rows, "accuracy", topology=topology):
                losses = last(rows, "loss", topology=topology)
                print(f"| {world_size} | {topology} | {spread(accuracies)} | {spread(losses)} |")
    draw()


def trial_text(row: dict[str, Any]) -> str:
    """Return a trial and its validation loss in nats."""
    values = zip(("lr", "beta"), row["trial"], strict=False)
    return ", ".join(f"{name} {value:.4g}" for name, value in values) + f": {row['loss']:.3f}"


def _loss(row: dict[str, Any]) -> float:
    return float(row["loss"])


def spread(values: list[float]) -> str:
    """Return mean and standard deviation over seeds."""
    return f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.4f}"


def verdict(task: str, metric: str, margin: float) -> str:
    """Return the row of a task: BinSGDM minus Adam, paired by seed."""
    rows = read(f"final_{task}")
    ours, theirs = (last(rows, metric, optimizer=optimizer) for optimizer in TRIALS)
    differences = [our - their for our, their in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(differences)
    half = T_95_FOR_5 * statistics.stdev(differences) / len(differences) ** 0.5
    worst = mean + half if metric == "loss" else -(mean - half)
    reached = "reached" if worst <= margin else "missed" if worst - 2 * half > margin else "not shown"
    interval = f"{mean:+.4f} [{mean - half:+.4f}, {mean + half:+.4f}]"
    return f"| {task} | {metric} | {spread(ours)} | {spread(theirs)} | {interval} | {margin} | {reached} |"


def draw() -> None:
    """Draw both tasks against steps: mean of the seeds, band from lowest to highest."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    styles = {"binsgdm": ("BinSGDM", "#0072B2", "-", "o"), "adam": ("Adam", "#D55E00", "--", "s")}
    labels = {"digits": ("Digits", "Test accuracy (%)", 100), "lm": ("Characters", "Test loss (nats per character)", 1)}
    for axis, (task, (title, label, factor)) in zip(axes, labels.items(), strict=True):
        rows = read(f"final_{task}")
        for optimizer, (name, colour, line, marker) in styles.items():
            curves = [row["curve"] for row in rows if row["optimizer"] == optimizer]
            steps = [point["step"] for point in curves[0]]
            at = [[factor * curve[i][MARGINS[task][0]] for curve in curves] for i in range(len(steps))]
            axis.fill_between(steps, list(map(min, at)), list(map(max, at)), color=colour, alpha=0.2, linewidth=0)
            means = list(map(statistics.fmean, at))
            axis.plot(steps, means, line, color=colour, marker=marker, markersize=4, label=name)
        axis.set(title=title, xlabel="Step", ylabel=label)
        axis.grid(alpha=0.3)
        axis.legend(title="mean and range of 5 seeds")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=130)


if __name__ == "__main__":
    command, *rest = sys.argv[1:] or ["page"]
    if command == "page":
        page()
        sys.exit()
    with training.ranks() as DEVICE:
        found = {"search": search, "final": final, "scale": scale}[command](rest[0])
        rank, world_size = training.rank_and_world_size()
        if rank == 0:
            name = f"{command}_{rest[0]}" + (f"_{world_size}" if command == "scale" else "")
            RESULTS.mkdir(exist_ok=True)
            lines = ",\n".join(json.dumps(row) for row in found)
            (RESULTS / f"{name}.json").write_text(f"[\n{lines}\n]\n")
