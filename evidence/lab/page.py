"""The page of a campaign: how well it was predicted, what follows, and where it proves nothing."""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path

from evidence.lab.campaign import file_stem
from evidence.lab.prediction import BOUND, CampaignResult, LayoutFit
from simnet.analysis.verdict import PAYS
from simnet.calibration.comparison import coverage, mean_error, mean_signed_error, worst_error
from simnet.core import templates
from simnet.core.files import write_file
from simnet.core.units import format_seconds
from simnet.report import figures, measured_steps
from simnet.report.measured_steps import comparison_cells, layout_text
from simnet.report.page import Page
from simnet.report.table import Column, Table
from simnet.report.text import percent
from simnet.validation import decisions
from simnet.validation.decisions import BandwidthSweep, Speedups, StrategyPair, Winner
from simnet.validation.training_steps import Setting, TrainedPoint

TEMPLATES = templates.environment(Path(__file__).parent / "templates")
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


def summary(found: CampaignResult) -> Page:
    """Return the outcome in a few lines for a terminal, with every point above."""
    proofs = [line for proof in _proofs(found) for line in ("", proof)]
    return measured_steps.steps_page(found.points, [*proofs, "", *_headlines(found)])


def write(found: CampaignResult, folder: Path) -> list[Path]:
    """Write the page, its data, its figures, and the fitted calibrations and workloads."""
    of = "" if found.campaign.page == "campaign" else f"{found.campaign.page}_"
    files = {f"lab-{found.campaign.page}.md": page(found).encode()}
    files |= {name: text.encode() for name, text in data(found).items()}
    files |= {f"figures/{name}": png for name, png in drawn(found).items()}
    files |= {
        f"lab/{of}calibration_{fit.layout.text()}{f'_{number}' if number > 1 else ''}.toml": one.text.encode()
        for fit in found.fits
        for number, one in enumerate(fit.by_strategies, 1)
    }
    files |= {f"lab/{of}workload_{name}.toml": text.encode() for name, text in found.workloads.items()}
    for name, content in files.items():
        write_file(folder / name, content, inside=folder)
    return [folder / name for name in files]


def data(found: CampaignResult) -> dict[str, str]:
    """Return the files that the page links to, by name: every point, and what follows from them."""
    pairs = (*PAIRS, *_systems(found), *_variants(found))
    tables = {
        "": _points(found.points),
        "-winners": _winners(decisions.find_winners(found.points)),
        "-fits": Table.of(FITS, found.fits),
        "-speedups": _crossings(decisions.bandwidth_sweeps(found.points, pairs)),
    }
    return {f"data/lab-{found.campaign.page}{part}.csv": table.csv() for part, table in tables.items()}


def drawn(found: CampaignResult) -> dict[str, bytes]:
    """Return the figures as PNG by file name."""
    pictures = {_picture(found, "predicted"): figures.steps(found.points)}
    by_system = _by_system(found)
    for model in found.campaign.models:
        mine = [point for point in found.points if point.model == model]
        pictures[_picture(found, model)] = figures.campaign(mine, model, by_system)
    return pictures


def _picture(found: CampaignResult, what: str) -> str:
    page = "" if found.campaign.page == "campaign" else f"{found.campaign.page}_"
    return f"lab_{page}{file_stem(what)}.png"


def page(found: CampaignResult) -> str:
    """Return the page as Markdown."""
    bound = [point for point in found.points if not _depends_on_network(point)]
    won = decisions.find_winners(found.points)
    given = {
        "found": found,
        "campaign": found.campaign,
        "layouts": " and ".join(text.replace("x", " x ") for text in found.campaign.links.layouts),
        "bandwidths": " and ".join(rate.text() for rate in found.campaign.links.bandwidths),
        "headlines": _headlines(found),
        "groups": _groups(found.points),
        "picture": lambda what: _picture(found, what),
        "won": won,
        "wrong": [winner for winner in won if not winner.is_right],
        "most_regret": percent(max((winner.regret for winner in won), default=0.0)),
        "has_systems": bool(_systems(found)),
        "ranking": _ranking(decisions.pairs(found.points)),
        "least_share": percent(LEAST_SHARE),
        "latency": _latency(found),
        "bound": bound,
        "fit_bound": percent(BOUND),
        "poor_kernels": _poor_kernels(found),
        "alternatives": _alternatives(found),
        "slowness": _slowness(found),
        "spread": percent(found.speeds.launches.spread) if found.speeds else "",
        "own_spread": percent(found.speeds.own_work.spread) if found.speeds else "",
        "proofs": _proofs(found),
    }
    return TEMPLATES.get_template("page.md.jinja").render(given)


def _proofs(found: CampaignResult) -> list[str]:
    """Return why the points are held out, a sentence for each layout."""
    return [f"{layout.text()}, {measured_steps.proof_text(proof)}" for layout, proof in found.proofs]


def _depends_on_network(point: TrainedPoint) -> bool:
    return point.network_share >= LEAST_SHARE


def _systems(found: CampaignResult) -> tuple[tuple[str, str], ...]:
    """Return the pair of every strategy but dense DDP and BinSGDM with dense DDP."""
    kinds = dict.fromkeys(point.series for point in sorted(found.points, key=_order))
    others = (kind for kind in kinds if kind.partition(" ")[0] not in {"all_reduce", "binsgdm"})
    return tuple((kind, "all_reduce") for kind in others)


def _by_system(found: CampaignResult) -> dict[str, list[str]]:
    """Return all strategies that are no compressing system, and the variants of one, by its name.

    Empty where no system has several variants.
    """
    compressing = [spec for spec in found.campaign.specs if spec.kernels_argument]
    names = [spec.system for spec in compressing]
    if len(set(names)) == len(names):
        return {}
    others = [spec.label for spec in found.campaign.specs if not spec.kernels_argument]
    return {name: [*others, *(one.label for one in compressing if one.system == name)] for name in dict.fromkeys(names)}


def _variants(found: CampaignResult) -> tuple[tuple[str, str], ...]:
    """Return the pairs of two variants of one compressing system, the later one first."""
    specs = [spec for spec in found.campaign.specs if spec.kernels_argument]
    return tuple((two.label, one.label) for one, two in combinations(specs, 2) if one.system == two.system)


def _headlines(found: CampaignResult) -> list[str]:
    """Return the headline numbers, a line each."""
    pairs = decisions.pairs(found.points)
    apart = [pair for pair in pairs if pair.measured_intervals_are_disjoint]
    given = {
        "points": found.points,
        "judged": [point for point in found.points if _depends_on_network(point)],
        "errors": _errors,
        "least_share": percent(LEAST_SHARE),
        "won": decisions.find_winners(found.points),
        "close": percent(PAYS - 1),
        "has_systems": bool(_systems(found)),
        "pairs": pairs,
        "apart": apart,
        "sure": [pair for pair in apart if pair.predicted_intervals_are_disjoint],
    }
    text = TEMPLATES.get_template("headlines.md.jinja").render(given).strip()
    return [" ".join(line.split()) for line in text.split("\n\n")]


def _errors(points: Sequence[TrainedPoint]) -> str:
    inside, judged = coverage(points)
    text = f"{len(points)}, mean error {percent(mean_error(points))}, worst {percent(worst_error(points))}"
    return f"{text}, {inside} of {judged} inside the interval ({percent(inside / judged)})" if judged else text


def _ranking(pairs: Sequence[StrategyPair[TrainedPoint]]) -> str:
    """Return the pairs with disjoint measured intervals that were predicted the other way round; "" if none."""
    rows = [
        (
            *_setting_cells(pair.faster.setting), pair.faster.series, pair.slower.series, percent(pair.difference),
            "do not overlap" if pair.predicted_intervals_are_disjoint else "overlap",
        )
        for pair in pairs
        if pair.measured_intervals_are_disjoint and not pair.is_right
    ]  # fmt: skip
    return Table((*HEADS, "faster measured", "than", "by", "predicted intervals"), rows).markdown() if rows else ""


def _groups(points: Sequence[TrainedPoint]) -> str:
    kinds: dict[str, Callable[[TrainedPoint], str]] = {
        "model": lambda point: point.model,
        "strategy": lambda point: point.series,
        "nodes x ranks": layout_text,
        "NIC": _nic,
    }
    rows = [
        (kind, value, *_group_cells([point for point in points if key(point) == value]))
        for kind, key in kinds.items()
        for value in sorted({key(point) for point in points}, key=_natural)
    ]
    return Table(("by", "", "points", "mean error", "mean of signed errors", "worst", "inside"), rows).markdown()


def _group_cells(mine: Sequence[TrainedPoint]) -> tuple[str, ...]:
    signed = percent(mean_signed_error(mine), "+.1")
    inside = f"{coverage(mine)[0]} of {len(mine)}"
    return str(len(mine)), percent(mean_error(mine)), signed, percent(worst_error(mine)), inside


def _winners(won: Iterable[Winner]) -> Table:
    rows = [
        (*_setting_cells(one.fastest.setting), one.fastest.series, one.predicted_fastest.series, percent(one.regret))
        for one in won
    ]
    return Table((*HEADS, "fastest measured", "predicted", "which is slower by"), rows)


def _crossings(found: Iterable[BandwidthSweep]) -> Table:
    heads = (
        *HEADS[:2], "faster", "than", "up to, measured", "up to, predicted", "speedup measured", "speedup predicted"
    )  # fmt: skip
    rows = []
    for one in found:
        faster, slower = one.pairs[0]
        crossings = _crossing(one.measured), _crossing(one.predicted)
        ranges = _range(one.measured), _range(one.predicted)
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


def _poor_kernels(found: CampaignResult) -> str:
    """Return the kernels whose fits are above the bound, by layout; "" if none is."""
    return "; ".join(
        f"{fit.layout.num_nodes} x {fit.layout.ranks_per_node}, "
        + " and ".join(f"{series} {percent(error)}" for series, error in fit.poor_kernels.items())
        for fit in found.fits
        if fit.poor_kernels
    )


def _alternatives(found: CampaignResult) -> str:
    heads = ("form", "mean error", "mean of signed errors", "worst")
    rows = [(form, *_group_cells(points)[1:4]) for form, points in found.alternatives.items()]
    return Table(heads, rows).markdown()


def _slowness(found: CampaignResult) -> str:
    """Return how slow the machine was in the launches that trained, as a range; "" where it was not probed."""
    ratios = [point.slowness for point in found.points if point.slowness is not None]
    return f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""


def _latency(found: CampaignResult) -> str:
    added = [format_seconds(points.latency) for points in found.campaign.points if points.latency]
    more = f", and {', '.join(dict.fromkeys(added))} that the lab adds" if added else ""
    return f"the latency here is that of the scheduler{more}"


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


def _nic(point: TrainedPoint) -> str:
    return _setting_cells(point.setting)[2]


def _rate(bytes_per_s: float) -> str:
    mbit = bytes_per_s * 8 / 1e6
    return f"{mbit / 1e3:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s"


def _order(point: TrainedPoint) -> tuple[str, int, int, float, float, str]:
    return (*point.setting, point.series)


def _natural(text: str) -> tuple[float, str]:
    """Order numbers with units by what they mean."""
    number, _, unit = text.partition(" ")
    scale = {"Mbit/s": 1e6, "Gbit/s": 1e9}.get(unit)
    return (float(number) * scale, "") if scale else (0.0, text)
