"""Training on nodes that are not alike: percentiles predicted under each fault, and only then run.

A rank had 0.4 of a core: all four took 1.6 of two cores, so that none was slowed by what another one did.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from msgspec.structs import replace

import evidence
from evidence.lab import decisions
from evidence.studies.in_lab import campaign as engine
from evidence.studies.in_lab.campaign import FREE, LabPoint, Row, mbit, read, signed
from evidence.studies.page import FIGURES, SIMULATOR, paragraph
from simnet.calibration import measurement_file, variation, variation_files
from simnet.calibration.comparison import mean_error, mean_signed_error
from simnet.cluster.faults import BackgroundTraffic, SlowLink, SlowRank
from simnet.cluster.hardware import Cluster, Fault
from simnet.core import schema
from simnet.core.units import Bandwidth, Duration, format_seconds
from simnet.engine.result import StrategyResult
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.report import comparison_charts, figures
from simnet.report.figure import PAGE_IN
from simnet.report.table import Table
from simnet.report.text import percent
from simnet.strategies.base import strategy_from_text
from simnet.validation.training_steps import median_interval
from simnet.workload.workload import Gradient, Workload

ASKED = {50: ("6 %", "15 %"), 95: ("12 %", "")}
"""Mean and worst error that were asked for, by percentile."""
NUM_NODES = 4
MODEL, BATCH = "mlp_4m", 128
WIDTH, LAYERS, CLASSES = 1024, 4, 10
"""Of the model, as in `binsgdm.recording.model_zoo`."""
SLOW_RANK, SLOWDOWN = 2, 1.5
SLOW_NODE, SLOW_RATE = 1, 0.5
DEGRADED_NODE, DEGRADED_RATE, DEGRADED_AFTER = 2, 0.4, 0.65
"""The NIC that gets slower in mid-run, what is left of its rate, and after which part of the steps, as predicted."""
BUSY_NODE, BUSY_SHARE = 1, 0.4
"""The node beside whose training others send and receive, and which part of its NIC they take, in each direction."""
AIM_S, LEAST_STEPS, MOST_STEPS = 16.0, 40, 120
"""A training takes about so long by its prediction."""
ITERATIONS = 400
"""That are simulated where it does not matter when a fault begins: percentiles of many steps."""
PHASES = ("forward", "backward", "optimizer")
Kind = Literal["own", "trained"]
FaultName = Literal["as it comes", "slow rank", "slow NIC", "degrading NIC", "background traffic"]
FAULTS: tuple[FaultName, ...] = get_args(FaultName)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A strategy that trains: of `simnet measure training --strategy`, and as the simulator's, both as text."""

    title: str
    argument: str
    strategy: str


STRATEGIES = (
    Trained(title="DDP", argument="all_reduce", strategy="all_reduce:algorithm=ring,bucket_cap=8 MiB"),
    Trained(
        title="BinSGDM",
        argument="binsgdm:flat",
        strategy="binsgdm:topology=flat,overlap=false,finite_check=ring,bucket_cap=8 MiB",
    ),
    Trained(title="1-bit Adam", argument="one_bit_adam", strategy="one_bit_adam:finite_check=true"),
)
TITLES = {trained.argument: trained.title for trained in STRATEGIES}
BANDWIDTHS = tuple(map(Bandwidth.parse, ("150 Mbit/s", "300 Mbit/s", "600 Mbit/s")))
PAGE, RESULTS = SIMULATOR, evidence.RESULTS / "lab_uneven"
REGION = "lab uneven"


def place(fault: FaultName, mbit_per_s: int) -> str:
    """Return how files name a fault at a bandwidth."""
    return f"{fault.replace(' ', '_')}_{mbit_per_s}mbit"


def steps_file(kind: Kind, argument: str, fault: FaultName, mbit_per_s: int) -> str:
    """Return the name of the file of a training, or of the steps without messages before it."""
    return f"{kind}_{argument.partition(':')[0]}_{place(fault, mbit_per_s)}.json"


def times_s(path: Path, name: str) -> tuple[float, ...]:
    """Return the times of a measured series [s]."""
    (values,) = (series.values for series in measurement_file.read(path).series if series.name == name)
    return values


# Predicted.


def faults(name: FaultName, degraded_from_s: float) -> tuple[Fault, ...]:
    """Return what is put into the lab, as the simulator has it; "degrading NIC" some time after the start [s]."""
    by_name: dict[FaultName, tuple[Fault, ...]] = {
        "as it comes": (),
        "slow rank": (SlowRank(node=SLOW_RANK, compute_slowdown=SLOWDOWN),),
        "slow NIC": (SlowLink(place=SLOW_NODE, rate=SLOW_RATE),),
        "degrading NIC": (SlowLink(place=DEGRADED_NODE, rate=DEGRADED_RATE, from_s=Duration(degraded_from_s)),),
        "background traffic": (BackgroundTraffic(at_nodes=(BUSY_NODE,), share=BUSY_SHARE),),
    }
    return by_name[name]


def predict(folder: Path, rate: Bandwidth, fault: FaultName) -> list[Row]:
    """Return what steps are predicted to take with each strategy under a fault, and how many to run."""
    calibration, rows = engine.calibrated(folder), []
    for trained in STRATEGIES:
        own_file = folder / steps_file("own", trained.argument, fault, mbit(rate))
        fitted = variation.fit(variation_files.read([own_file]))
        # Nodes as they were while nothing was done to them: with the variation found there.
        link = {"bandwidth": "1 PB/s", "latency": "0 s"}
        shape = {"num_nodes": NUM_NODES, "ranks_per_node": 1, "intra_node": link, "inter_node": link}
        plain = schema.build(Cluster, {**shape, "faults": [dict(each) for each in fitted.faults]}, "lab")
        # The model whose step without messages takes so long, its phases in the proportion of their medians.
        phases = {name: statistics.median(times_s(own_file, name)) for name in PHASES}
        each: dict[str, Any] = {
            f"{name}_s": Duration(s * fitted.compute_s / sum(phases.values())) for name, s in phases.items()
        }
        usual = Scenario(
            name=trained.title,
            cluster=replace(plain, inter_node=replace(FREE, bytes_per_s=rate)),
            workload=Workload(name=MODEL, tensors=gradients(), batch_per_rank=BATCH, **each),
            calibration=calibration,
            strategy=strategy_from_text(trained.strategy, "strategy"),
        )
        usual_s = _simulated(usual, (), ITERATIONS).p50_s
        steps = min(max(round(AIM_S / usual_s), LEAST_STEPS), MOST_STEPS)
        begins_s, degrades = DEGRADED_AFTER * steps * usual_s, fault == "degrading NIC"
        # Where it matters when a fault begins, just the steps that will run.
        result = _simulated(usual, faults(fault, begins_s), steps if degrades else ITERATIONS)
        rows.append(
            {
                "strategy": trained.argument,
                "mbit_per_s": mbit(rate),
                "fault": fault,
                "steps": steps,
                "degrades_after_s": round(begins_s, 3) if degrades else None,
                "p50_s": result.p50_s,
                "p95_s": result.p95_s,
                "usual_p50_s": usual_s,
                "own_s": fitted.compute_s,
                "cv": fitted.cv,
                "executor": result.fidelity,
            }
        )
    return rows


def _simulated(usual: Scenario, more: Sequence[Fault], iterations: int) -> StrategyResult:
    cluster = replace(usual.cluster, faults=(*usual.cluster.faults, *more))
    return simulate(replace(usual, cluster=cluster, run=RunSettings(iterations=iterations))).result


def gradients() -> tuple[Gradient, ...]:
    """Return the tensors of the model."""
    layers = [(CLASSES, WIDTH), *[(WIDTH, WIDTH)] * LAYERS]
    return engine.layered((str(number), *sides) for number, sides in enumerate(layers))


# On the page.


def predictions(folder: Path) -> list[Row]:
    """Return what was predicted, by bandwidth, then by what was put in, then by strategy."""
    rows = [row for path in folder.glob("predicted_*.json") for row in read(folder, path.stem)["rows"]]
    order = list(TITLES)
    return sorted(rows, key=lambda row: (row["mbit_per_s"], FAULTS.index(row["fault"]), order.index(row["strategy"])))


def steps_s(folder: Path, row: Row, phase: str = "step", kind: Kind = "trained") -> tuple[float, ...]:
    """Return the times of the steps of a training, or of a phase of each, of the slowest rank [s]."""
    return times_s(folder / steps_file(kind, row["strategy"], row["fault"], row["mbit_per_s"]), phase)


def points(folder: Path, percentile: int, key: str = "") -> list[LabPoint]:
    """Return a percentile, 50 or 95, of every training; `key` of what was predicted, if not that percentile."""
    return [
        LabPoint(
            series=TITLES[row["strategy"]],
            label=f"{TITLES[row['strategy']]}, {row['fault']}, {row['mbit_per_s']} Mbit/s",
            measured=float(np.percentile(measured_s, percentile)),
            predicted=row[key or f"p{percentile}_s"],
            mbit_per_s=row["mbit_per_s"],
            fault=row["fault"],
            num_timed=len(measured_s),
            own_s=row["own_s"],
            measured_interval_s=median_interval(measured_s) if percentile == 50 else None,
        )
        for row in predictions(folder)
        for measured_s in [steps_s(folder, row)]
    ]


def regions(folder: Path) -> dict[str, str]:
    """Return what was asked, what was reached, and what was fitted."""
    names = {50: "medians", 95: "95th percentiles"}
    texts = [
        engine.outcome_text(names[percentile], points(folder, percentile), *asked)
        for percentile, asked in ASKED.items()
    ]
    pairs = decisions.pairs(points(folder, 50))
    apart = [pair for pair in pairs if pair.measured_intervals_are_disjoint]
    right, of_apart = (sum(pair.is_right for pair in some) for some in (pairs, apart))
    blind = points(folder, 50, "usual_p50_s")
    texts.append(
        f"Medians of {right} of {len(pairs)} pairs of strategies are in the right order, of {of_apart} of the "
        f"{len(apart)} whose 95 % intervals do not overlap. Had the faults not been known, the mean error of medians "
        f"would be {percent(mean_error(blind))}."
    )
    return {REGION: paragraph(*texts, engine.fit_text(folder))}


def data(folder: Path) -> dict[str, Table]:
    """Return a row for every training, what faults cost, errors by fault, and forward with messages and without."""
    both = [points(folder, percentile) for percentile in ASKED]
    every = []
    for at_percentiles in zip(*both, strict=True):
        point = at_percentiles[0]
        cells = [(format_seconds(it.predicted), format_seconds(it.measured), signed(it.error)) for it in at_percentiles]
        what = (
            point.fault,
            f"{point.mbit_per_s} Mbit/s",
            point.series,
            format_seconds(point.own_s),
            str(point.num_timed),
        )
        every.append((*what, *chain.from_iterable(cells)))
    by_fault: list[tuple[str, ...]] = []
    for fault in FAULTS:
        median, late = ([point for point in at_percentile if point.fault == fault] for at_percentile in both)
        signs = signed(mean_signed_error(median))
        by_fault.append((fault, percent(mean_error(median)), signs, percent(mean_error(late))))
    phases = []
    for argument, title in TITLES.items():
        alike = [row for row in predictions(folder) if row["fault"] != "slow rank" and row["strategy"] == argument]
        medians = (
            statistics.median(chain.from_iterable(steps_s(folder, row, "forward", kind) for row in alike))
            for kind in get_args(Kind)
        )
        phases.append((title, *map(format_seconds, medians)))
    heads = [f"p{percentile} {what}" for percentile in ASKED for what in ("predicted", "measured", "error")]
    return {
        "lab-uneven": Table(["fault", "NIC", "strategy", "own work", "steps", *heads], every),
        "lab-uneven-cost": _cost_table(folder),
        "lab-uneven-faults": Table(
            ["", "median: mean error", "with its sign", "95th percentile: mean error"], by_fault
        ),
        "lab-uneven-phases": Table(["", "forward, no messages", "forward, in training"], phases),
    }


def _cost_table(folder: Path) -> Table:
    """Return how much longer a step takes than in the training in which nothing was done, measured and predicted."""
    rates, rows = list(map(mbit, BANDWIDTHS)), []
    for fault in FAULTS[1:]:
        # What lasts for the last third of a run is in the 95th percentile, and not in the median.
        percentile = 95 if fault == "degrading NIC" else 50
        by_setting = {(point.series, point.setting): point for point in points(folder, percentile)}
        for title in TITLES.values():
            costs = []
            for rate in rates:
                faulty, usual = (by_setting[title, (rate, name)] for name in (fault, FAULTS[0]))
                measured, predicted = faulty.measured / usual.measured - 1, faulty.predicted / usual.predicted - 1
                costs.append(f"{100 * measured:+.0f} % ({100 * predicted:+.0f} %)")
            rows.append((f"{fault}, p{percentile}", title, *costs))
    return Table(["fault", "strategy", *(f"{rate} Mbit/s" for rate in rates)], rows)


def draw(folder: Path) -> None:
    """Draw both percentiles, predicted over measured."""
    panels = {"median": comparison_charts.steps(points(folder, 50))}
    panels["95th percentile"] = comparison_charts.steps(points(folder, 95))
    (FIGURES / "lab_uneven_predicted.png").write_bytes(figures.drawn(panels, panel_in=3.3, width_in=PAGE_IN))
