"""What a campaign found: a summary for a terminal, every point and what follows from them as data, and figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from evidence.lab import decisions
from evidence.lab.campaign import file_stem
from evidence.lab.decisions import BandwidthSweep, Speedups, Winner
from evidence.lab.prediction import CampaignResult, LayoutFit
from simnet.analysis.verdict import PAYS
from simnet.calibration.comparison import coverage, mean_error, mean_signed_error, worst_error
from simnet.core.files import write_file
from simnet.core.units import format_seconds
from simnet.report import figures, measured_steps
from simnet.report.chart import Chart, Curve, log_scale, marks_look, number_scale, values_of
from simnet.report.figure import PAGE_IN
from simnet.report.measured_steps import comparison_cells, layout_text
from simnet.report.table import Column, Page, Table
from simnet.report.text import percent
from simnet.validation.training_steps import Setting, TrainedPoint

MBIT = 8 / 1e6
"""Mbit/s in 1 B/s."""
LEAST_SHARE = 0.1
"""Least share of the network in a predicted step; a step with less says nothing about the network."""
DENSE = "all_reduce"
PAIRS = tuple(
    (f"{faster}{rounding}", slower if slower == DENSE else f"{slower}{rounding}")
    for rounding in ("", ", shaped")
    for faster, slower in (
        ("binsgdm flat", DENSE),
        ("binsgdm hierarchical", DENSE),
        ("binsgdm hierarchical", "binsgdm flat"),
    )
)
"""Strategies to compare over bandwidths, without overlap."""
HEADS = ("model", "nodes x ranks", "NIC")


def summary(campaign: CampaignResult) -> Page:
    """Return the outcome for a terminal: every point, why it is held out, and errors by group and by form."""
    proofs = [f"{layout.text()}, {measured_steps.proof_text(proof)}" for layout, proof in campaign.proofs]
    forms = _errors_table("form", "", campaign.alternatives)
    tables = [_groups(campaign.points), *([forms] if campaign.alternatives else [])]
    lines = [line for table in tables for line in ("", *table.markdown().splitlines())]
    poor = [
        f"above the bound of fits, and used by the last form alone: {text}"
        for text in [_poor_kernels(campaign)]
        if text
    ]
    return measured_steps.steps_page(campaign.points, ["", *proofs, "", *_headlines(campaign), *poor, *lines])


def write(campaign: CampaignResult, folder: Path) -> list[Path]:
    """Write the data, the figures, and the fitted calibrations and workloads."""
    of = "" if campaign.campaign.page == "campaign" else f"{campaign.campaign.page}_"
    files = {name: text.encode() for name, text in data(campaign).items()}
    files |= {f"figures/{name}": png for name, png in drawn(campaign).items()}
    files |= {
        f"lab/{of}calibration_{fit.layout.text()}{f'_{number}' if number > 1 else ''}.toml": of_set.text.encode()
        for fit in campaign.fits
        for number, of_set in enumerate(fit.by_strategies, 1)
    }
    files |= {f"lab/{of}workload_{name}.toml": text.encode() for name, text in campaign.workloads.items()}
    for name, content in files.items():
        write_file(folder / name, content, inside=folder)
    return [folder / name for name in files]


def data(campaign: CampaignResult) -> dict[str, str]:
    """Return the tables as CSV, by file name: every point, and what follows from them."""
    pairs = (*PAIRS, *_systems(campaign), *_variants(campaign))
    tables = {
        "": _points(campaign.points),
        "-winners": _winners(decisions.find_winners(campaign.points)),
        "-fits": Table.of(FITS, campaign.fits),
        "-speedups": _crossings(decisions.bandwidth_sweeps(campaign.points, pairs)),
    }
    return {f"data/lab-{campaign.campaign.page}{part}.csv": table.csv() for part, table in tables.items()}


def drawn(campaign: CampaignResult) -> dict[str, bytes]:
    """Return the figures as PNG by file name."""
    pictures = {_picture(campaign, "predicted"): figures.steps(campaign.points)}
    by_system = _by_system(campaign)
    for model in campaign.campaign.models:
        of_model = [point for point in campaign.points if point.model == model]
        pictures[_picture(campaign, model)] = _of_model(of_model, model, by_system)
    return pictures


def _of_model(points: Sequence[TrainedPoint], model: str, systems: Mapping[str, Sequence[str]]) -> bytes:
    """Return times of one model's steps over NIC bandwidth as PNG, a panel a layout, or a layout and a system.

    Args:
        points: of one model.
        model: its name.
        systems: the strategies of each panel by its title; none where all are in each.
    """
    layouts = dict.fromkeys(map(_place, points))
    groups = systems or {"": sorted({point.series for point in points})}
    panels = {}
    for place in layouts:
        there = [point for point in points if _place(point) == place]
        for system, names in groups.items():
            looks = {name: index for index, name in enumerate(names)}
            shown = [point for point in there if point.series in looks]
            if shown:
                panels[", ".join(filter(None, (system, place)))] = _over_rates(shown, looks)
    title = f"{model}: measured (markers) and predicted (lines, 90 % intervals)"
    columns = len(systems) or 3
    return figures.drawn(panels, title=title, columns=columns, width_in=PAGE_IN, shared="both")


def _place(point: TrainedPoint) -> str:
    _, nodes, ranks, _, latency_s = point.setting
    return f"{nodes} nodes x {ranks}" + (f", {format_seconds(latency_s)}" if latency_s else "")


def _over_rates(points: Sequence[TrainedPoint], styles: Mapping[str, int]) -> Chart:
    """Return times of steps over NIC bandwidth: predicted lines with 90 % intervals, measured marks.

    Args:
        points: of one model on one layout.
        styles: the place of each series among the looks.
    """
    curves: list[Curve] = []
    for name, place in styles.items():
        ordered = sorted((point for point in points if point.series == name), key=lambda point: point.setting[3])
        if not ordered:
            continue
        look = marks_look(place)
        rates = [point.setting[3] * MBIT for point in ordered]
        ends = [
            (low * 1e3, high * 1e3) for point in ordered for low, high in [point.interval or (point.predicted,) * 2]
        ]
        predicted, measured = ([getattr(point, side) * 1e3 for point in ordered] for side in ("predicted", "measured"))
        curves.append(Curve(x=rates, y=predicted, ends=ends, colour=look["colour"], width=1.0))
        curves.append(Curve(name=name, x=rates, y=measured, is_open=True, **look))
    rates = sorted({point.setting[3] * MBIT for point in points})
    return Chart(
        x=number_scale("NIC of a node [Mbit/s]", {rate: f"{rate:g}" for rate in rates}),
        y=log_scale("time of a step [ms]", values_of(curves)),
        curves=curves,
    )


def _picture(campaign: CampaignResult, what: str) -> str:
    page = "" if campaign.campaign.page == "campaign" else f"{campaign.campaign.page}_"
    return f"lab_{page}{file_stem(what)}.png"


def _depends_on_network(point: TrainedPoint) -> bool:
    return point.network_share >= LEAST_SHARE


def _systems(campaign: CampaignResult) -> tuple[tuple[str, str], ...]:
    """Return the pair of every strategy but dense DDP and BinSGDM with dense DDP."""
    kinds = dict.fromkeys(point.series for point in sorted(campaign.points, key=_order))
    others = (kind for kind in kinds if kind.partition(" ")[0] not in {"all_reduce", "binsgdm"})
    return tuple((kind, "all_reduce") for kind in others)


def _by_system(campaign: CampaignResult) -> dict[str, list[str]]:
    """Return all strategies that are no compressing system, and the variants of one, by its name.

    Empty where no system has several variants.
    """
    compressing = [spec for spec in campaign.campaign.specs if spec.kernels_argument]
    names = [spec.system for spec in compressing]
    if len(set(names)) == len(names):
        return {}
    others = [spec.label for spec in campaign.campaign.specs if not spec.kernels_argument]
    return {
        name: [*others, *(spec.label for spec in compressing if spec.system == name)] for name in dict.fromkeys(names)
    }


def _variants(campaign: CampaignResult) -> tuple[tuple[str, str], ...]:
    """Return the pairs of two variants of one compressing system, the later one first."""
    specs = [spec for spec in campaign.campaign.specs if spec.kernels_argument]
    pairs = combinations(specs, 2)
    return tuple((second.label, first.label) for first, second in pairs if first.system == second.system)


def _headlines(campaign: CampaignResult) -> list[str]:
    """Return the headline numbers, a line each."""
    points, won = campaign.points, decisions.find_winners(campaign.points)
    lines = [f"all points: {_errors(points)}"]
    if judged := [point for point in points if _depends_on_network(point)]:
        share = percent(LEAST_SHARE)
        lines.append(f"points at which the network takes {share} of the step or more: {_errors(judged)}")
    lines.append(
        f"the fastest strategy is predicted in {sum(winner.is_right for winner in won)} of {len(won)} settings; in "
        f"{sum(winner.is_close for winner in won)} the strategy predicted to be fastest is within {percent(PAYS - 1)} "
        "of the fastest"
    )
    if _systems(campaign):
        pairs = decisions.pairs(points)
        apart = [pair for pair in pairs if pair.measured_intervals_are_disjoint]
        sure = [pair for pair in apart if pair.predicted_intervals_are_disjoint]
        lines.append(
            f"of {len(pairs)} pairs of strategies in one setting, {len(apart)} differ as measured (the 95 % intervals "
            f"of their medians do not overlap); {sum(pair.is_right for pair in apart)} of these are predicted in "
            f"the measured order, and {sum(pair.is_right for pair in sure)} of the {len(sure)} that also differ as "
            "predicted"
        )
    return lines


def _errors(points: Sequence[TrainedPoint]) -> str:
    inside, judged = coverage(points)
    text = f"{len(points)}, mean error {percent(mean_error(points))}, worst {percent(worst_error(points))}"
    return f"{text}, {inside} of {judged} inside the interval ({percent(inside / judged)})" if judged else text


def _groups(points: Sequence[TrainedPoint]) -> Table:
    kinds: dict[str, Callable[[TrainedPoint], str]] = {
        "model": lambda point: point.model,
        "strategy": lambda point: point.series,
        "nodes x ranks": layout_text,
        "NIC": lambda point: _setting_cells(point.setting)[2],
    }
    groups = {
        f"{kind} {value}": [point for point in points if key(point) == value]
        for kind, key in kinds.items()
        for value in dict.fromkeys(key(point) for point in sorted(points, key=_order))
    }
    return _errors_table("by", "inside", groups)


def _errors_table(head: str, inside: str, groups: Mapping[str, Sequence[TrainedPoint]]) -> Table:
    """Return the errors of groups of points, with how many are inside their intervals if that has a head."""
    rows = []
    for name, points in groups.items():
        signed = percent(mean_signed_error(points), "+.1")
        cells = (name, str(len(points)), percent(mean_error(points)), signed, percent(worst_error(points)))
        rows.append((*cells, f"{coverage(points)[0]} of {len(points)}") if inside else cells)
    heads = (head, "points", "mean error", "mean of signed errors", "worst", *([inside] if inside else []))
    return Table(heads, rows)


def _winners(won: Iterable[Winner]) -> Table:
    rows = [
        (*_setting_cells(win.fastest.setting), win.fastest.series, win.predicted_fastest.series, percent(win.regret))
        for win in won
    ]
    return Table((*HEADS, "fastest measured", "predicted", "which is slower by"), rows)


def _crossings(sweeps: Iterable[BandwidthSweep]) -> Table:
    heads = (
        *HEADS[:2], "faster", "than", "up to, measured", "up to, predicted", "speedup measured", "speedup predicted"
    )  # fmt: skip
    rows = []
    for sweep in sweeps:
        faster, slower = sweep.pairs[0]
        crossings = _crossing(sweep.measured), _crossing(sweep.predicted)
        ranges = _range(sweep.measured), _range(sweep.predicted)
        rows.append((*_setting_cells(faster.setting)[:2], faster.series, slower.series, *crossings, *ranges))
    return Table(heads, rows)


def _crossing(speedups: Speedups) -> str:
    if (bytes_per_s := decisions.crossing_bandwidth(speedups)) is not None:
        return _rate(float(f"{bytes_per_s * 8:.2g}") / 8)
    values = [speedup for _, speedup in speedups]
    return "all" if min(values) >= 1 else "none" if max(values) < 1 else "not monotonic"


def _range(speedups: Speedups) -> str:
    values = [speedup for _, speedup in speedups]
    return f"{min(values):.2f} to {max(values):.2f}"


def _efficiency(fit: LayoutFit) -> str:
    efficiency = fit.calibration.inter_node.efficiency
    return f"{efficiency:.3f}" if isinstance(efficiency, float) else "by size"


FITS = (
    Column("nodes x ranks", cell=lambda fit: f"{fit.layout.num_nodes} x {fit.layout.ranks_per_node}"),
    Column("NIC efficiency", cell=_efficiency),
    Column("to many", cell=lambda fit: f"{fit.calibration.all_to_all_efficiency:.3f}"),
    Column("round", cell=lambda fit: format_seconds(fit.calibration.host.round_s)),
    Column("message", cell=lambda fit: format_seconds(fit.calibration.host.message_s)),
    Column("a byte", cell=lambda fit: f"{fit.calibration.host.s_per_byte * 1e9:.2f} ns"),
    Column("backward", cell=lambda fit: f"{fit.calibration.backward_slowdown:.2f} x"),
    Column("mean residual", cell=lambda fit: percent(mean_error(fit.residuals))),
)
"""Of every layout whose links were fitted."""


def _poor_kernels(campaign: CampaignResult) -> str:
    """Return the kernels whose fits are above the bound, by layout; "" if none is."""
    return "; ".join(
        f"{fit.layout.num_nodes} x {fit.layout.ranks_per_node}, "
        + " and ".join(f"{series} {percent(error)}" for series, error in fit.poor_kernels.items())
        for fit in campaign.fits
        if fit.poor_kernels
    )


def _points(points: Iterable[TrainedPoint]) -> Table:
    heads = (*HEADS, "strategy", "measured", "predicted", "error", "90 % interval", "notes")
    rows = []
    for point in sorted(points, key=_order):
        marks = ["outside"] if point.is_inside is False else []
        marks += [] if _depends_on_network(point) else ["c"]
        rows.append((*_setting_cells(point.setting), *comparison_cells(point), " ".join(marks)))
    return Table(heads, rows)


def _setting_cells(setting: Setting) -> tuple[str, str, str]:
    model, nodes, ranks, rate, latency_s = setting
    return model, f"{nodes} x {ranks}", _rate(rate) + (f", {format_seconds(latency_s)}" if latency_s else "")


def _rate(bytes_per_s: float) -> str:
    mbit = bytes_per_s * 8 / 1e6
    return f"{mbit / 1e3:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s"


def _order(point: TrainedPoint) -> tuple[str, int, int, float, float, str]:
    return (*point.setting, point.series)
