"""The table and the figure of long runs, of docs/evidence/binsgdm.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from simnet.report.table import Table
from studies import page
from studies.figures import COLOURS, STYLE
from studies.ledger import Ledger, Row
from studies.long_run import EVERY, RESULTS, STEPS, WARM_UP
from studies.page import FIGURES

FIGURE = FIGURES / "long_run.png"
MARKS = (WARM_UP, 2_000, STEPS // 2, STEPS)


def main() -> None:
    """Write the table and the figure from the runs of full length."""
    rows = [row for row in Ledger(RESULTS).rows if row["steps"] == STEPS]
    page.write_data(data(rows))
    draw(rows)


def data(rows: Sequence[Row]) -> Mapping[str, Table]:
    """Return the table that the page links to, by name."""
    return {"long-run": table(rows)}


def table(rows: Sequence[Row]) -> Table:
    """Return for each run what a process held early and at the end."""
    lines = []
    for row in rows:
        held = [_span(row[name][WARM_UP // EVERY - 1 :]) for name in ("threads", "files", "groups")]
        memory = [f"{row['rss_kib'][step // EVERY - 1] / 1024:.1f}" for step in MARKS]
        lines.append([row["case"], str(row["steps"] // EVERY), *memory, *held, f"{row['loss'][-1]:.4f}"])
    at_marks = [f"MiB at step {step:,}" for step in MARKS]
    return Table(["exchange", "comparisons", *at_marks, "threads", "files", "groups", "loss"], lines)


def draw(rows: Sequence[Row]) -> None:
    """Draw memory over steps, less that at the first sample, a line for each run."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.5, 2.8), layout="constrained")
        axis: Any = figure.subplots()
        for number, row in enumerate(rows):
            steps = range(EVERY, row["steps"] + 1, EVERY)
            mib = [(value - row["rss_kib"][0]) / 1024 for value in row["rss_kib"]]
            style = ("-", "--")[number // len(COLOURS)]
            axis.plot(steps, mib, style, color=COLOURS[number % len(COLOURS)], label=row["case"])
        axis.set(xlabel="Step", ylabel="Resident memory of the largest\nrank, since step 100 (MiB)")
        axis.set_ylim(bottom=0)
        axis.set_xlim(0, STEPS)
        axis.grid(alpha=0.25, linewidth=0.5)
        figure.legend(loc="outside right center")
        FIGURE.parent.mkdir(exist_ok=True)
        figure.savefig(FIGURE, dpi=130)


def _span(values: Sequence[int]) -> str:
    """Return the least and the greatest of some counts."""
    return str(min(values)) if min(values) == max(values) else f"{min(values)} to {max(values)}"


if __name__ == "__main__":
    main()
