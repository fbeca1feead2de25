"""The page of a campaign: how well it was predicted, what follows, and where it proves nothing."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from simnet.compare.verdict import PAYS
from simnet.comparison import mean_error as residual_error
from simnet.files import write_file
from simnet.lab.campaign import file_part
from simnet.units import format_seconds
from simnet.validate import campaign_figures as figures
from simnet.validate import measured, ranking, verdict
from simnet.validate.campaign import BOUND, Fit, Found
from simnet.validate.measured import Point
from simnet.validate.outcome import mean_error, worst_error
from simnet.validate.ranking import Pair
from simnet.validate.text import percent
from simnet.validate.verdict import Crossover, Winner

LEAST_SHARE = 0.1
"""A step of which the network is a smaller part says nothing about a network."""
PAIRS = (
    ("binsgdm flat", "all_reduce"),
    ("binsgdm hierarchical", "all_reduce"),
    ("binsgdm hierarchical", "binsgdm flat"),
)


def summary(found: Found) -> str:
    """Return the outcome in a few lines for a terminal, with every point above."""
    return "\n\n".join([measured.table(found.points), *found.proofs, "\n".join(_verdict(found))])


def write(found: Found, folder: Path) -> list[Path]:
    """Write the page, its figures, and the fitted calibrations and workloads.

    Raises:
        SimnetError: the folder cannot be written.
    """
    of = "" if found.campaign.page == "campaign" else f"{found.campaign.page}_"
    files = {f"lab-{found.campaign.page}.md": page(found).encode()}
    files |= {f"figures/{name}": png for name, png in drawn(found).items()}
    files |= {f"lab/{of}calibration_{fit.layout.text()}.toml": fit.text.encode() for fit in found.fits}
    files |= {f"lab/{of}workload_{name}.toml": text.encode() for name, text in found.workloads.items()}
    for name, content in files.items():
        write_file(folder / name, content, inside=folder)
    return [folder / name for name in files]


def drawn(found: Found) -> dict[str, bytes]:
    """Return the figures as PNG by file name."""
    pictures = {_picture(found, "predicted"): figures.scatter(found.points)}
    for model in found.campaign.models:
        mine = [point for point in found.points if point.model == model]
        pictures[_picture(found, model)] = figures.curves(mine, model)
    return pictures


def _picture(found: Found, what: str) -> str:
    page = "" if found.campaign.page == "campaign" else f"{found.campaign.page}_"
    return f"lab_{page}{file_part(what)}.png"


def page(found: Found) -> str:
    """Return the page as Markdown."""
    blocks = [
        "# A campaign in the lab: predicted, then measured",
        _about(found),
        "## Outcome",
        "\n".join(f"- {line}" for line in _verdict(found)),
        _groups(found.points),
        f"![Predicted against measured time of a step](figures/{_picture(found, 'predicted')})",
        *(
            f"![{model}: time of a step over bandwidth](figures/{_picture(found, model)})"
            for model in found.campaign.models
        ),
        "## Which strategy wins, and from where on",
        _winners(verdict.winners(found.points)),
        *([_ranking(ranking.pairs(found.points))] if _is_of_systems(found) else []),
        _crossovers(found),
        "## Where this lab proves nothing",
        _no_proof(found.points),
        "## What was fitted",
        _fits(found),
        "## Unseen",
        "\n".join(f"- {proof}" for proof in found.proofs),
        "## Every point",
        _points(found.points),
    ]
    return "\n\n".join(blocks) + "\n"


def _about(found: Found) -> str:
    campaign = found.campaign
    return (
        f"{campaign.title}. Models {', '.join(campaign.models)}, {campaign.batch} samples and {campaign.threads} "
        "thread a rank; each point is the median of at least 8 steps of real training. The network was calibrated on "
        f"{' and '.join(text.replace('x', ' x ') for text in campaign.links.layouts)} ranks at "
        f"{' and '.join(rate.text() for rate in campaign.links.bandwidths)}; compute, kernels and what cores take for "
        "messages in place, that is by as many ranks on the machine as train, without a limit on the network. Nothing "
        "was tuned to the points. Intervals are 90 %, of calibrations and compute times drawn from their own."
    )


def _is_of_systems(found: Found) -> bool:
    """Tell whether there are systems besides dense DDP and BinSGDM."""
    return any(spec.kernels_argument for spec in found.campaign.specs)


def _verdict(found: Found) -> list[str]:
    """Return the headline numbers."""
    points = found.points
    judged = [point for point in points if point.network_share >= LEAST_SHARE]
    won = verdict.winners(points)
    lines = [_line(points, "all points")]
    lines += [_line(judged, f"points of which the network is {percent(LEAST_SHARE)} or more")] if judged else []
    same = sum(winner.measured == winner.predicted for winner in won)
    close = sum(winner.is_close for winner in won)
    lines.append(
        f"the fastest strategy is predicted in {same} of {len(won)} places; in {close} what is predicted to be "
        f"fastest is within {percent(PAYS - 1)} of the fastest"
    )
    return lines + (_ranked(ranking.pairs(points)) if _is_of_systems(found) else [])


def _ranked(pairs: Sequence[Pair]) -> list[str]:
    """Return how many pairs of strategies are ranked as measured."""
    apart = [pair for pair in pairs if pair.is_measured_apart]
    sure = [pair for pair in apart if pair.is_predicted_apart]
    right, surely = (sum(pair.is_right for pair in some) for some in (apart, sure))
    return [
        f"of {len(pairs)} pairs of strategies at one place, measurements tell {len(apart)} apart (the 95 % intervals "
        f"of their medians do not overlap); {right} of these are predicted in that order",
        f"of those, the predicted intervals tell {len(sure)} apart; {surely} of these are predicted in that order",
    ]


def _ranking(pairs: Sequence[Pair]) -> str:
    wrong = [pair for pair in pairs if pair.is_measured_apart and not pair.is_right]
    if not wrong:
        return "Wherever measurements tell two strategies apart, the one predicted to be faster was."
    rows = [("model", "nodes x ranks", "NIC", "faster measured", "than", "by", "predicted intervals")]
    for pair in wrong:
        model, nodes, ranks, rate = verdict.place(pair.faster)
        said = "do not overlap" if pair.is_predicted_apart else "overlap"
        two = pair.faster.strategy, pair.slower.strategy
        rows.append((model, f"{nodes} x {ranks}", _rate(rate), *two, percent(pair.difference), said))
    return f"Pairs that measurements tell apart and that were predicted the other way round:\n\n{_markdown(rows)}"


def _line(points: Sequence[Point], name: str) -> str:
    inside = [point.is_inside for point in points if point.is_inside is not None]
    text = f"{name}: {len(points)}, mean error {percent(mean_error(points))}, worst {percent(worst_error(points))}"
    if not inside:
        return text
    return f"{text}, {sum(inside)} of {len(inside)} inside the interval ({percent(sum(inside) / len(inside))})"


def _groups(points: Sequence[Point]) -> str:
    kinds: dict[str, Callable[[Point], str]] = {
        "model": lambda point: point.model,
        "strategy": lambda point: point.strategy,
        "nodes x ranks": lambda point: f"{point.setup.num_nodes} x {point.setup.ranks_per_node}",
        "NIC": _nic,
    }
    rows = [("by", "", "points", "mean error", "mean of signed errors", "worst", "inside")]
    for kind, key in kinds.items():
        for value in sorted({key(point) for point in points}, key=_natural):
            mine = [point for point in points if key(point) == value]
            signed = sum(point.error for point in mine) / len(mine)
            inside = sum(bool(point.is_inside) for point in mine)
            rows.append(
                (
                    kind, value, str(len(mine)), percent(mean_error(mine)), f"{100 * signed:+.1f} %",
                    percent(worst_error(mine)), f"{inside} of {len(mine)}",
                )
            )  # fmt: skip
    return _markdown(rows)


def _winners(won: Sequence[Winner]) -> str:
    wrong = [winner for winner in won if winner.measured != winner.predicted]
    if not wrong:
        return f"In all {len(won)} places (model, layout, bandwidth) the strategy predicted to be fastest was."
    rows = [("model", "nodes x ranks", "NIC", "fastest measured", "predicted", "which is slower by")]
    for winner in wrong:
        model, nodes, ranks, rate = winner.place
        rows.append(
            (model, f"{nodes} x {ranks}", _rate(rate), winner.measured, winner.predicted, percent(winner.regret))
        )
    return f"Where the fastest strategy was another than predicted ({len(wrong)} of {len(won)}):\n\n{_markdown(rows)}"


def _crossovers(found: Found) -> str:
    kinds = dict.fromkeys(point.strategy for point in sorted(found.points, key=_order))
    others = tuple((kind, "all_reduce") for kind in kinds if kind.partition(" ")[0] not in {"all_reduce", "binsgdm"})
    how = "Without overlap; the dense step overlaps as DDP always does."
    if others:
        how = "BinSGDM and 1-bit Adam exchange after backward; all others overlap, in DDP or in its hook."
    return f"{how}\n\n{_crossing_table(verdict.crossovers(found.points, PAIRS + others))}"


def _crossing_table(found: Sequence[Crossover]) -> str:
    head = ("model", "nodes x ranks", "faster", "than", "up to, measured", "predicted", "speedup measured", "predicted")
    rows: list[tuple[str, ...]] = [head]
    rows += [
        (
            one.model, "{} x {}".format(*one.layout), one.faster, one.slower,
            _crossing(one.measured_bytes_per_s, one.measured_speedups),
            _crossing(one.predicted_bytes_per_s, one.predicted_speedups),
            "{:.2f} to {:.2f}".format(*one.measured_speedups), "{:.2f} to {:.2f}".format(*one.predicted_speedups),
        )
        for one in found
    ]  # fmt: skip
    return _markdown(rows)


def _crossing(bytes_per_s: float | None, speedups: tuple[float, float]) -> str:
    if bytes_per_s is not None:
        return _rate(float(f"{bytes_per_s * 8:.2g}") / 8)
    return "all" if speedups[0] >= 1 else "none" if speedups[1] < 1 else "not monotonic"


def _no_proof(points: Sequence[Point]) -> str:
    bound = [point for point in points if point.network_share < LEAST_SHARE]
    text = (
        "All nodes share the cores of one machine, so that where cores are the limit, a point tells about cores and "
        "not about a network. By the prediction itself, a network of infinite bandwidth would save less than "
        f"{percent(LEAST_SHARE)} of the step at {len(bound)} of the {len(points)} points; these are marked with c "
        "below. They are in all numbers above. No point tells anything about the latency of a real network (here it is "
        "the scheduler's), about switches, RDMA, NCCL or GPUs."
    )
    rows = [("nodes x ranks", "NIC", "strategy", "points")]
    groups = dict.fromkeys((_layout(point), _nic(point), point.strategy) for point in sorted(bound, key=_order))
    for layout, nic, strategy in groups:
        mine = [p.model for p in bound if (_layout(p), _nic(p), p.strategy) == (layout, nic, strategy)]
        rows.append((layout, nic, strategy, ", ".join(mine)))
    return f"{text}\n\n{_markdown(rows)}" if bound else text


def _fits(found: Found) -> str:
    head = ("nodes x ranks", "NIC efficiency", "to many", "round", "message", "a byte", "backward", "mean residual")
    rows: list[tuple[str, ...]] = [head]
    rows += [_fit_row(fit) for fit in found.fits]
    return (
        "By layout: the fraction of a NIC that messages reach (what is left is headers), the further fraction of "
        "all-to-all, what cores take for a round, a message and a byte beside the wire, and by how much communication "
        f"slows backward. Kernels and compute times: `lab/`. A fit is refused from {percent(BOUND)} on.\n\n"
        + _markdown(rows)
    )


def _fit_row(fit: Fit) -> tuple[str, ...]:
    calibration, host = fit.calibration, fit.calibration.host
    efficiency = calibration.inter_node.efficiency
    return (
        f"{fit.layout.num_nodes} x {fit.layout.ranks_per_node}",
        f"{efficiency:.3f}" if isinstance(efficiency, float) else "by size",
        f"{calibration.all_to_all_efficiency:.3f}",
        format_seconds(host.round_s),
        format_seconds(host.message_s),
        f"{host.s_per_byte * 1e9:.2f} ns",
        f"{calibration.backward_slowdown:.2f} x",
        percent(residual_error(fit.residuals)),
    )


def _points(points: Sequence[Point]) -> str:
    rows = [("model", "nodes x ranks", "NIC", "strategy", "measured", "predicted", "error", "90 % interval", "")]
    for point in sorted(points, key=_order):
        interval = " to ".join(map(format_seconds, point.interval_s)) if point.interval_s else ""
        marks = [{None: "", True: "", False: "outside"}[point.is_inside]]
        marks += ["c"] if point.network_share < LEAST_SHARE else []
        rows.append(
            (
                point.model,
                _layout(point),
                _nic(point),
                point.strategy,
                format_seconds(point.measured_s),
                format_seconds(point.predicted_s),
                f"{100 * point.error:+.1f} %",
                interval,
                " ".join(filter(None, marks)),
            )
        )
    return _markdown(rows)


def _layout(point: Point) -> str:
    return f"{point.setup.num_nodes} x {point.setup.ranks_per_node}"


def _nic(point: Point) -> str:
    return _rate(point.setup.nic_bytes_per_s or 0.0)


def _rate(bytes_per_s: float) -> str:
    mbit = bytes_per_s * 8 / 1e6
    return f"{mbit / 1e3:g} Gbit/s" if mbit >= 1000 else f"{mbit:g} Mbit/s"


def _order(point: Point) -> tuple[str, int, int, float, str]:
    return (*verdict.place(point), point.strategy)


def _natural(text: str) -> tuple[float, str]:
    """Order numbers with units by what they mean."""
    number, _, unit = text.partition(" ")
    scale = {"Mbit/s": 1e6, "Gbit/s": 1e9}.get(unit)
    return (float(number) * scale, "") if scale else (0.0, text)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(_lines(rows))


def _lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for number, row in enumerate(rows):
        yield f"| {' | '.join(row)} |"
        if number == 0:
            yield f"|{'---|' * len(row)}"
