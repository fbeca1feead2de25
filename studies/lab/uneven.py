"""Training on nodes that are not alike: its campaign, tables and figure; runs need iperf3."""

import json
import statistics
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from simnet.calibration.comparison import mean_error, mean_signed_error
from simnet.core.units import Bandwidth, format_seconds
from simnet.report import figures
from simnet.report.table import Table
from simnet.report.text import percent
from simnet.validation import decisions
from simnet.validation.lab.campaign import Layout
from simnet.validation.training_steps import median_interval
from studies.lab import campaign as engine
from studies.lab import uneven_runs
from studies.lab.campaign import LabCampaign, LabPoint, Row, mbit, signed
from studies.lab.uneven_forecast import CORES, FAULTS, NUM_NODES, STRATEGIES, steps_file, times_s
from studies.page import SIMULATOR, paragraph

ASKED = {50: ("6 %", "15 %"), 95: ("12 %", "")}
"""Mean and worst error that were asked for, by percentile."""


CAMPAIGN = LabCampaign(
    name="uneven",
    layout=Layout(NUM_NODES, 1),
    links=tuple(map(Bandwidth.parse, ("100 Mbit/s", "450 Mbit/s"))),
    link_seconds=3.0,
    bandwidths=tuple(map(Bandwidth.parse, ("150 Mbit/s", "300 Mbit/s", "600 Mbit/s"))),
    message_seconds=0.5,
    cores=CORES,
)
PAGE, RESULTS = SIMULATOR, CAMPAIGN.golden


def run(folder: Path) -> None:
    """Calibrate; then for each bandwidth and fault measure a step's own work, predict, and train; resumes."""
    uneven_runs.everything(CAMPAIGN, folder, print)


def regions(folder: Path) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    return {CAMPAIGN.region: paragraph(_outcome_text(folder), engine.fit_text(folder))}


def data(folder: Path) -> dict[str, Table]:
    """Return the tables that the page links to, by name."""
    return {
        "lab-uneven": _points_table(folder),
        "lab-uneven-cost": _cost_table(folder),
        "lab-uneven-faults": _faults_table(folder),
        "lab-uneven-phases": _phases_table(folder),
    }


def draw(folder: Path) -> None:
    """Draw both percentiles, predicted over measured."""
    names = {50: "median"}
    found = {names.get(percentile, f"{percentile}th percentile"): points(folder, percentile) for percentile in ASKED}
    CAMPAIGN.figure.write_bytes(figures.percentiles(found))


def points(folder: Path, percentile: int, key: str = "") -> list[LabPoint]:
    """Return a percentile of every training.

    Args:
        folder: of the results.
        percentile: 50 or 95.
        key: of what was predicted, if not that percentile.
    """
    titles = {one.argument: one.title for one in STRATEGIES}
    return [
        LabPoint(
            series=titles[row["strategy"]],
            label=f"{titles[row['strategy']]}, {row['fault']}, {row['mbit_per_s']} Mbit/s",
            measured=float(np.percentile(found_s, percentile)),
            predicted=row[key or f"p{percentile}_s"],
            mbit_per_s=row["mbit_per_s"],
            fault=row["fault"],
            num_timed=len(found_s),
            own_s=row["own_s"],
            measured_interval_s=median_interval(found_s) if percentile == 50 else None,
        )
        for row in predictions(folder)
        for found_s in [steps_s(folder, row)]
    ]


def predictions(folder: Path) -> list[Row]:
    """Return what was predicted, by bandwidth, then by what was put in, then by strategy."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("predicted_*.json")]
    rows = [row for one in files for row in one["rows"]]
    order = [one.argument for one in STRATEGIES]
    return sorted(rows, key=lambda row: (row["mbit_per_s"], FAULTS.index(row["fault"]), order.index(row["strategy"])))


def steps_s(
    folder: Path, row: Row, phase: str = "step", kind: Literal["own", "trained"] = "trained"
) -> tuple[float, ...]:
    """Return the times of the steps of a training, or of a phase of each, of the slowest rank [s]."""
    return times_s(folder / steps_file(kind, row["strategy"], row["fault"], row["mbit_per_s"]), phase)


def _outcome_text(folder: Path) -> str:
    """Return what was asked and what was reached."""
    texts = []
    for percentile, (mean, worst) in ASKED.items():
        what = "medians" if percentile == 50 else f"{percentile}th percentiles"
        texts.append(engine.outcome_text(what, points(folder, percentile), mean, worst))
    pairs = decisions.pairs(points(folder, 50))
    apart = [one for one in pairs if one.measured_intervals_are_disjoint]
    right, of_apart = (sum(one.is_right for one in mine) for mine in (pairs, apart))
    blind = points(folder, 50, "usual_p50_s")
    texts.append(
        f"Medians of {right} of {len(pairs)} pairs of strategies are in the right order, of {of_apart} of the "
        f"{len(apart)} whose 95 % intervals do not overlap. Had the faults not been known, the mean error of medians "
        f"would be {percent(mean_error(blind))}."
    )
    return " ".join(texts)


def _faults_table(folder: Path) -> Table:
    """Return the errors by what was put in."""
    rows = []
    both = [points(folder, percentile) for percentile in ASKED]
    for fault in FAULTS:
        median, late = ([one for one in found if one.fault == fault] for found in both)
        rows.append((fault, percent(mean_error(median)), signed(mean_signed_error(median)), percent(mean_error(late))))
    return Table(["", "median: mean error", "with its sign", "95th percentile: mean error"], rows)


def _cost_table(folder: Path) -> Table:
    """Return how much longer a step takes than in the training in which nothing was done, measured and predicted."""
    rates, rows = list(map(mbit, CAMPAIGN.bandwidths)), []
    for fault in FAULTS[1:]:
        # What lasts for the last third of a run is in the 95th percentile, and not in the median.
        percentile = 95 if fault == "degrading NIC" else 50
        found = {(one.series, one.setting): one for one in points(folder, percentile)}
        for strategy in STRATEGIES:
            costs = []
            for rate in rates:
                mine, usual = (found[strategy.title, (rate, one)] for one in (fault, FAULTS[0]))
                measured, predicted = mine.measured / usual.measured - 1, mine.predicted / usual.predicted - 1
                costs.append(f"{100 * measured:+.0f} % ({100 * predicted:+.0f} %)")
            rows.append((f"{fault}, p{percentile}", strategy.title, *costs))
    return Table(["fault", "strategy", *(f"{rate} Mbit/s" for rate in rates)], rows)


def _phases_table(folder: Path) -> Table:
    """Return medians of forward in steps without messages, and in trainings; without those that have a slow rank."""
    rows = []
    alike = [row for row in predictions(folder) if row["fault"] != "slow rank"]
    for strategy in STRATEGIES:
        mine = [row for row in alike if row["strategy"] == strategy.argument]
        medians = (
            statistics.median(time_s for row in mine for time_s in steps_s(folder, row, "forward", kind))
            for kind in get_args(Literal["own", "trained"])
        )
        rows.append((strategy.title, *map(format_seconds, medians)))
    return Table(["", "forward, no messages", "forward, in training"], rows)


def _points_table(folder: Path) -> Table:
    """Return a row for every training."""
    heads = ["fault", "NIC", "strategy", "own work", "steps"]
    heads += [f"p{percentile} {what}" for percentile in ASKED for what in ("predicted", "measured", "error")]
    rows = []
    for both in zip(*(points(folder, percentile) for percentile in ASKED), strict=True):
        one = both[0]
        cells = [(format_seconds(it.predicted), format_seconds(it.measured), signed(it.error)) for it in both]
        what = (one.fault, f"{one.mbit_per_s} Mbit/s", one.series, format_seconds(one.own_s), str(one.num_timed))
        rows.append((*what, *chain.from_iterable(cells)))
    return Table(heads, rows)
