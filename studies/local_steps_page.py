"""Tables and figure of local steps in docs/evidence/binsgdm.md: `python -m studies.local_steps_page`."""

import statistics
from collections.abc import Mapping
from typing import Any

from simnet.report.table import Table
from studies import figures
from studies.local_steps_study import WAYS, best, read
from studies.page import BINSGDM, FIGURES, number, write, write_data
from studies.tasks import TASKS

PAGE = BINSGDM
FIGURE = FIGURES / "local_steps.png"
DRAWN = ("adam", "local_sgd_4", "diloco_10_fp32", "diloco_10_one_bit_tensor")
BYTES = {"fp32": 4.0, "int8": 1.0, "one_bit": 1 / 8}
"""Of a parameter in an exchange, without scales."""


def regions(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    every = losses(found)
    means = [(*row[:2], *(cell.partition(" (")[0] for cell in row[2:])) for row in every.rows]
    return {"local steps": Table(every.columns, means).markdown()}


def data(found: Mapping[str, Any]) -> dict[str, Table]:
    """Return the tables that the page links to, by name."""
    return {"local-steps": losses(found), "local-steps-settings": settings(found)}


def losses(found: Mapping[str, Any]) -> Table:
    """Return the final test loss of every way on every task: mean of the seeds, lowest to highest."""
    tasks = TASKS["systems"]
    lines = []
    for name, way in WAYS.items():
        exchange = "fp32" if way.outer is None else way.outer["exchange"]
        sent = BYTES[exchange] / way.inner_steps
        lines.append([way.title, f"{sent:.3g}", *(_of_seeds(rows(found, task, name)) for task in tasks)])
    return Table(["way", "bytes a parameter and step", *(task.title for task in tasks.values())], lines)


def settings(found: Mapping[str, Any]) -> Table:
    """Return what the search chose."""
    tasks = TASKS["systems"]
    lines = [
        [way.title, *(_settings(best(found, task, name)) for task in tasks)]
        for name, way in WAYS.items()
        if way.tuned_as is None
    ]
    return Table(["way", *(task.title for task in tasks.values())], lines)


def draw(found: Mapping[str, Any]) -> None:
    """Draw a panel for each task: test loss over steps."""
    by_task = {task: {name: rows(found, task, name) for name in DRAWN} for task in TASKS["systems"]}
    titles = {name: task.title for name, task in TASKS["systems"].items()}
    figures.draw_margins(by_task, {name: WAYS[name].title for name in DRAWN}, titles, FIGURE)


def rows(found: Mapping[str, Any], task: str, way: str) -> list[dict[str, Any]]:
    """Return the final runs of a way on a task."""
    return [row for row in found["curves"] if (row["task"], row["way"]) == (task, way)]


def _of_seeds(of_way: list[dict[str, Any]]) -> str:
    finals = [row["values"][-1] for row in of_way]
    if None in finals:
        return "diverged"
    return f"{number(statistics.fmean(finals))} ({number(min(finals))} to {number(max(finals))})"


def _settings(trial: Mapping[str, Any]) -> str:
    outer = f", {trial['outer_lr']}, {trial['outer_momentum']}" if "outer_lr" in trial else ""
    return f"{trial['lr']}{outer}"


if __name__ == "__main__":
    made = read()
    write(PAGE, regions(made))
    write_data(data(made))
    draw(made)
