"""The tables and the figure of docs/evidence/lab-uneven.md, from the committed files."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simnet.calibration import measurement_file
from simnet.calibration.comparison import Comparison, by_series, mean_error, mean_signed_error, worst_error, worst_row
from simnet.core.units import format_seconds
from simnet.report import comparison_figure
from simnet.report import figure as looks
from simnet.report.table import Table
from simnet.report.validation import percent
from simnet.validation import ranking
from simnet.validation.training_steps import median_interval
from studies import page
from studies.page import EVIDENCE, FIGURES
from studies.recorded import recorded_page
from studies.uneven.rows import FAULTS, STRATEGIES, FaultName, own_file, trained_file

PAGE = EVIDENCE / "lab-uneven.md"
FIGURE = FIGURES / "lab_uneven_predicted.png"
ASKED = {50: ("6 %", "15 %"), 95: ("12 %", "")}
"""Mean and worst error that were asked for, by percentile."""
SIZE_IN = (looks.PAGE_IN, 4.2)


@dataclass(frozen=True, kw_only=True)
class UnevenPoint(Comparison):
    """A percentile of the steps of one training, and what was predicted before; the series is the strategy.

    Attributes:
        mbit_per_s: of each NIC.
        fault: what was put into the lab.
        num_steps: that were timed.
        own_s: predicted compute of a step.
        measured_interval_s: 95 % interval of the median; of another percentile None.
    """

    mbit_per_s: int
    fault: FaultName
    num_steps: int
    own_s: float
    measured_interval_s: tuple[float, float] | None

    @property
    def setting(self) -> tuple[int, FaultName]:
        """What strategies are compared in."""
        return self.mbit_per_s, self.fault


def write(folder: Path) -> None:
    """Write the regions of the page and its figure."""
    page.write(PAGE, regions(folder))
    FIGURE.write_bytes(figure(folder))


def regions(folder: Path) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    return {
        "outcome": outcome_table(folder).markdown(),
        "faults": faults_table(folder).markdown(),
        "cost": cost_table(folder).markdown(),
        "points": points_table(folder).markdown(),
        "phases": phases_table(folder).markdown(),
        "fit": recorded_page.fit_text(folder),
    }


def points(folder: Path, percentile: int, key: str = "") -> list[UnevenPoint]:
    """Return a percentile of every training.

    Args:
        folder: of the results.
        percentile: 50 or 95.
        key: of what was predicted, if not that percentile.
    """
    titles = {one.argument: one.title for one in STRATEGIES}
    return [
        UnevenPoint(
            series=titles[row["strategy"]],
            label=f"{titles[row['strategy']]}, {row['fault']}, {row['mbit_per_s']} Mbit/s",
            measured=float(np.percentile(times_s, percentile)),
            predicted=row[key or f"p{percentile}_s"],
            mbit_per_s=row["mbit_per_s"],
            fault=row["fault"],
            num_steps=len(times_s),
            own_s=row["own_s"],
            measured_interval_s=median_interval(times_s) if percentile == 50 else None,
        )
        for row in predictions(folder)
        for times_s in [steps_s(folder, row)]
    ]


def predictions(folder: Path) -> list[dict[str, Any]]:
    """Return what was predicted, by bandwidth, then by what was put in, then by strategy."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("predicted_*.json")]
    rows = [row for one in files for row in one["rows"]]
    order = [one.argument for one in STRATEGIES]
    return sorted(rows, key=lambda row: (row["mbit_per_s"], FAULTS.index(row["fault"]), order.index(row["strategy"])))


def steps_s(folder: Path, row: dict[str, Any], phase: str = "step") -> tuple[float, ...]:
    """Return the times of the steps of a training, or of a phase of each, of the slowest rank [s]."""
    return _times_s(folder / trained_file(row["strategy"], row["fault"], row["mbit_per_s"]), phase)


def _times_s(path: Path, name: str) -> tuple[float, ...]:
    (found,) = (one.values for one in measurement_file.read(path).series if one.name == name)
    return found


def outcome_table(folder: Path) -> Table:
    """Return what was asked and what was reached."""
    rows = []
    for percentile, (mean, worst) in ASKED.items():
        found = points(folder, percentile)
        what = "median" if percentile == 50 else f"{percentile}th percentile"
        rows += [
            (f"mean error of the {what}, {len(found)} trainings", mean, percent(mean_error(found))),
            (f"worst error of the {what}", worst, f"{percent(worst_error(found))} ({worst_row(found).label})"),
            *((f"mean error of the {what}, {name}", "", percent(mean_error(mine))) for name, mine in _named(found)),
        ]
    pairs = ranking.pairs(points(folder, 50))
    apart = [one for one in pairs if one.measured_intervals_are_disjoint]
    for what, mine in (
        ("pairs of strategies", pairs),
        ("those whose 95 % intervals of the medians do not overlap", apart),
    ):
        rows.append((f"{what}: medians in the right order", "", f"{sum(one.is_right for one in mine)} of {len(mine)}"))
    blind = points(folder, 50, "usual_p50_s")
    rows.append(("mean error of the median, had the faults not been known", "", percent(mean_error(blind))))
    return Table(["", "asked", "reached"], rows)


def _named(found: Sequence[UnevenPoint]) -> list[tuple[str, list[UnevenPoint]]]:
    return [(name, list(mine)) for name, mine in by_series(found).items()]


def faults_table(folder: Path) -> Table:
    """Return the errors by what was put in."""
    rows = []
    both = [points(folder, percentile) for percentile in ASKED]
    for fault in FAULTS:
        median, late = ([one for one in found if one.fault == fault] for found in both)
        errors = (percent(mean_error(median)), _signed(mean_signed_error(median)), percent(mean_error(late)))
        rows.append((fault, *errors))
    return Table(["", "median: mean error", "with its sign", "95th percentile: mean error"], rows)


def cost_table(folder: Path) -> Table:
    """Return how much longer a step takes than in the training in which nothing was done, measured and predicted."""
    rates = sorted({one.mbit_per_s for one in points(folder, 50)})
    rows = []
    for fault in FAULTS[1:]:
        # What lasts for the last third of a run is in the 95th percentile, and not in the median.
        percentile = 95 if fault == "degrading NIC" else 50
        found = {(one.series, one.setting): one for one in points(folder, percentile)}
        for strategy in STRATEGIES:
            both = [(found[strategy.title, (rate, fault)], found[strategy.title, (rate, FAULTS[0])]) for rate in rates]
            rows.append((f"{fault}, p{percentile}", strategy.title, *(_cost(mine, usual) for mine, usual in both)))
    return Table(["", "strategy", *(f"{rate} Mbit/s" for rate in rates)], rows)


def _cost(mine: UnevenPoint, usual: UnevenPoint) -> str:
    measured, predicted = mine.measured / usual.measured - 1, mine.predicted / usual.predicted - 1
    return f"{100 * measured:+.0f} % ({100 * predicted:+.0f} %)"


def phases_table(folder: Path) -> Table:
    """Return medians of forward in steps without messages, and in trainings; without those that have a slow rank."""
    rows = []
    for strategy in STRATEGIES:
        mine = [
            row for row in predictions(folder) if row["strategy"] == strategy.argument and row["fault"] != "slow rank"
        ]
        own = [folder / own_file(strategy.argument, row["fault"], row["mbit_per_s"]) for row in mine]
        alone_s = statistics.median(time_s for path in own for time_s in _times_s(path, "forward"))
        trained_s = statistics.median(time_s for row in mine for time_s in steps_s(folder, row, "forward"))
        rows.append((strategy.title, format_seconds(alone_s), format_seconds(trained_s)))
    return Table(["", "forward, no messages", "forward, in training"], rows)


def points_table(folder: Path) -> Table:
    """Return a row for every training."""
    heads = ["", "NIC", "strategy", "own work", "steps"]
    for percentile in (50, 95):
        heads += [f"p{percentile} predicted", "measured", "error"]
    rows = [
        (
            one.fault,
            f"{one.mbit_per_s} Mbit/s",
            one.series,
            format_seconds(one.own_s),
            str(one.num_steps),
            *_cells(one),
            *_cells(late),
        )
        for one, late in zip(points(folder, 50), points(folder, 95), strict=True)
    ]
    return Table(heads, rows)


def _cells(one: UnevenPoint) -> tuple[str, str, str]:
    return format_seconds(one.predicted), format_seconds(one.measured), _signed(one.error)


def _signed(error: float) -> str:
    return f"{100 * error:+.1f} %"


def figure(folder: Path) -> bytes:
    """Return both percentiles, predicted over measured, as PNG."""
    with looks.styled():
        drawn = looks.new(*SIZE_IN)
        for axes, percentile in zip(drawn.subplots(1, 2), ASKED, strict=True):
            comparison_figure.draw_comparisons(axes, points(folder, percentile), "time of a step [ms]", 1e3)
            axes.set_title("median" if percentile == 50 else f"{percentile}th percentile", fontweight="normal")
        handles, labels = drawn.axes[0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc="outside lower center", ncols=4)
        return looks.image(drawn)
