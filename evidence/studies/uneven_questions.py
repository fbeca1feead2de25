"""Four questions of a sceptic on clusters as they are, for docs/how-to/stragglers.md: sweeps of shipped experiments."""

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from evidence import RESULTS, ROOT
from evidence.axes import log_numbers, plain_numbers
from evidence.studies.page import FIGURES
from simnet.analysis import sweeps
from simnet.analysis.verdict import PAYS
from simnet.engine.result import RunResult
from simnet.engine.scenario import load_experiment
from simnet.report import figure as figures

EXPERIMENTS = ("slow_rank", "neighbour", "jitter", "flapping_nic")
FILE = RESULTS / "uneven_questions.json"
NODES, BANDWIDTH = "cluster.num_nodes", "cluster.inter_node.bandwidth"
PAGE = ROOT / "docs" / "how-to" / "stragglers.md"
RATES = (10.0, 25.0, 100.0)
LOOKS = dict(zip(RATES, ((figures.BLUE, "o"), (figures.VERMILION, "s"), (figures.GREEN, "D")), strict=True))
SYSTEMS = {"binsgdm": ("BinSGDM", "-"), "ddp": ("DDP", "--")}
HEIGHT_IN = 3.0

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Times(Struct, frozen=True, kw_only=True):
    """Times of an iteration of one strategy [s]."""

    mean_s: float
    p50_s: float
    p95_s: float
    longest_s: float


class Row(Struct, frozen=True, kw_only=True):
    """One point of an experiment.

    Attributes:
        gbit_per_s: rate of a node's NIC [Gbit/s].
        amount: the swept number of the fault: a slowdown, a share, a coefficient of variation, a rate.
        ddp: the baseline, DDP in bf16 by NCCL's fastest algorithm.
    """

    experiment: str
    nodes: int
    gbit_per_s: float
    amount: float
    binsgdm: Times
    ddp: Times

    def speedup(self, name: str = "p50_s") -> float:
        """Return how many times as long DDP takes, of medians or of another time by its name."""
        return float(getattr(self.ddp, name) / getattr(self.binsgdm, name))


def run(_options: Namespace) -> None:
    """Sweep every experiment, a minute, and write what was found, with 6 digits of each time."""
    rows = json.loads(msgspec.json.encode([row for name in EXPERIMENTS for row in sweep(name)]))
    for row in rows:
        for system in SYSTEMS:
            # Six digits show any change, and the committed file stays small.
            row[system] = {key: float(f"{seconds:.6g}") for key, seconds in row[system].items()}
    lines = ",\n".join(map(json.dumps, rows))
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def sweep(name: str, axes: Mapping[str, Sequence[object]] | None = None) -> list[Row]:
    """Return the points of an experiment, with other values for some of its axes."""
    points = sweeps.expand(load_experiment(name, axes=axes))
    rows = []
    for point, result in zip(points, sweeps.run(points), strict=True):
        if isinstance(result, RunResult):
            (amount,) = (value for key, value in point.values.items() if key not in (NODES, BANDWIDTH))
            assert result.baseline is not None
            times: dict[str, Any] = {
                system: Times(
                    mean_s=strategy.iteration_s,
                    p50_s=strategy.p50_s,
                    p95_s=strategy.p95_s,
                    longest_s=strategy.longest_s,
                )
                for system, strategy in {"binsgdm": result.result, "ddp": result.baseline}.items()
            }
            place: dict[str, Any] = {
                "nodes": result.num_nodes,
                "gbit_per_s": result.nic_gbit_per_s,
                "amount": float(amount),
            }
            rows.append(Row(experiment=name, **place, **times))
    return rows


def read() -> list[Row]:
    return msgspec.json.decode(FILE.read_bytes(), type=list[Row])


def line(rows: Sequence[Row], experiment: str, gbit_per_s: float, nodes: int | None = None) -> list[Row]:
    """Return the points of an experiment at one bandwidth and, if given, one number of nodes, by their amount."""
    at_rate = [row for row in rows if row.experiment == experiment and row.gbit_per_s == gbit_per_s]
    return sorted((row for row in at_rate if nodes in (None, row.nodes)), key=lambda row: row.amount)


def regions(rows: Sequence[Row]) -> dict[str, str]:
    """Return the sentences with numbers, by region."""
    slow_rank, neighbour, flaps = [], [], []
    for rate in RATES:
        healthy, *_, slow = line(rows, "slow_rank", rate)
        lost = [_lost(slow, healthy, system) for system in SYSTEMS]
        binsgdm, other = (f"{seconds * 1e3:.0f} ms ({share:.0f} %)" for seconds, share in lost)
        slow_rank.append(f"{binsgdm} and {other} at {rate:g} Gbit/s, which leaves {slow.speedup():.2f}x")
        alone, half = (_at(line(rows, "neighbour", rate), share) for share in (0.001, 0.5))
        neighbour.append(f"from {alone.speedup():.2f}x to {half.speedup():.2f}x at {rate:g} Gbit/s")
    jitter = [row for rate in (10.0, 25.0) for nodes in (8, 64) for row in line(rows, "jitter", rate, nodes)]
    most, least = max(row.amount for row in jitter), min(row.speedup() for row in jitter)
    few, many = (_pays_up_to(line(rows, "jitter", 100.0, nodes)) for nodes in (8, 64))
    flapping = line(rows, "flapping_nic", 10.0)
    healthy, worst = flapping[-1], flapping[0]
    for rate in (0.5, 0.01):
        own_share, other_share = (_lost(_at(flapping, rate), healthy, system)[1] for system in SYSTEMS)
        flaps.append(f"{own_share:.1f} and {other_share:.1f} % at {rate:g} of its rate")
    tails = [getattr(worst, system).longest_s / getattr(healthy, system).p50_s for system in SYSTEMS]
    return {
        "slow_rank": f"A rank that computes half as fast costs a step of BinSGDM and of DDP {'; '.join(slow_rank)}.",
        "neighbour": f"Background traffic on half of one node's NIC raises the speedup {', '.join(neighbour)}.",
        "jitter": f"Up to a jitter of {most * 100:.0f} % the median speedup stays at least {least:.2f}x at 10 and 25 "
        f"Gbit/s; at 100 Gbit/s it is {PAYS:g}x or more {few} on 64 ranks and {many} on 512.",
        "flapping_nic": f"One NIC of 64 nodes that is slow for one second in ten costs BinSGDM and DDP "
        f"{', '.join(flaps)}; the longest step is then {tails[0]:.1f} and {tails[1]:.1f} healthy ones.",
    }


def _pays_up_to(rows: Sequence[Row]) -> str:
    """Return the largest jitter up to which medians are far enough apart, in words."""
    paying = [row.amount for row in rows if row.speedup() >= PAYS]
    return f"up to {max(paying) * 100:.0f} %" if paying else "at no jitter tried"


def _at(rows: Sequence[Row], amount: float) -> Row:
    return next(row for row in rows if row.amount == amount)


def _lost(row: Row, healthy: Row, system: str) -> tuple[float, float]:
    """Return what the mean step of a system loses [s], and in per cent of its healthy one."""
    usual_s = getattr(healthy, system).mean_s
    seconds = getattr(row, system).mean_s - usual_s
    return seconds, seconds / usual_s * 100


def draw(rows: Sequence[Row]) -> None:
    with figures.styled():
        for name, (title, fill, options) in FIGURE_PARTS.items():
            figure = figures.new(figures.PAGE_IN, HEIGHT_IN)
            panels = list(figure.subplots(1, 2))
            fill(rows, panels)
            handles, labels = panels[0].get_legend_handles_labels()
            drop, columns = options
            texts = [label.replace(drop, "") if drop else label for label in labels]
            figure.legend(handles, texts, loc="outside lower center", ncols=columns)
            figure.suptitle(f"{title}: BERT-Base, DDP in bf16 by NCCL's fastest algorithm", x=0.01, ha="left")
            figures.write(figure, FIGURES / f"uneven_{name}.png")


def _slow_rank(rows: Sequence[Row], panels: Sequence["Axes"]) -> None:
    for rate in RATES:
        points = line(rows, "slow_rank", rate)
        for system in SYSTEMS:
            lost = [_lost(row, points[0], system) for row in points]
            for axes, values in zip(panels, ([s * 1e3 for s, _ in lost], [share for _, share in lost]), strict=True):
                axes.plot([row.amount for row in points], values, **_look(rate, system))
    for axes, label in zip(panels, ("lost in a step [ms]", "lost of its own healthy step [%]"), strict=True):
        axes.set(xlabel="factor on the compute of one of 64 ranks", ylabel=label, ylim=(0, None))


def _neighbour(rows: Sequence[Row], panels: Sequence["Axes"]) -> None:
    for rate in RATES:
        points = line(rows, "neighbour", rate)
        shares = [row.amount * 100 for row in points]
        for system in SYSTEMS:
            panels[0].plot(shares, [getattr(row, system).mean_s * 1e3 for row in points], **_look(rate, system))
        panels[1].plot(shares, [row.speedup() for row in points], **_look(rate, "binsgdm"))
    panels[0].set_yscale("log")
    log_numbers(panels[0].yaxis, (1.0, 2.0, 5.0))
    panels[0].set_ylabel("time of a step [ms]")
    _speedups(panels[1])
    for axes in panels:
        axes.set_xlabel("of the NIC of one of 8 nodes, taken by a neighbour [%]")


def _jitter(rows: Sequence[Row], panels: Sequence["Axes"]) -> None:
    for axes, nodes in zip(panels, (8, 64), strict=True):
        for rate in RATES:
            points = line(rows, "jitter", rate, nodes)
            cvs, look = [row.amount for row in points], _look(rate, "binsgdm")
            axes.plot(cvs, [row.speedup() for row in points], **look)
            axes.plot(cvs, [row.speedup("p95_s") for row in points], color=look["color"], linestyle=":")
        axes.set_xscale("log")
        log_numbers(axes.xaxis, (1.0, 2.0, 5.0))
        axes.set_xlabel("jitter of compute: standard deviation / mean")
        axes.set_title(f"{nodes * 8} ranks")
        _speedups(axes)
    for dash, label in (("-", "of medians"), (":", "of 95th percentiles")):
        panels[0].plot([], [], color=figures.current().ink, linestyle=dash, label=label)


def _flapping(rows: Sequence[Row], panels: Sequence["Axes"]) -> None:
    points = line(rows, "flapping_nic", 10.0)
    rates = [row.amount for row in points]
    for system in SYSTEMS:
        look = _look(10.0, system)
        panels[0].plot(rates, [_lost(row, points[-1], system)[1] for row in points], **look)
        usual_s = getattr(points[-1], system).p50_s
        panels[1].plot(rates, [getattr(row, system).longest_s / usual_s for row in points], **look)
    for axes in panels:
        axes.set_xscale("log")
        axes.invert_xaxis()
        log_numbers(axes.xaxis, (1.0, 2.0, 5.0))
        axes.set_xlabel("rate of the NIC in one second of ten / its own")
    panels[0].axhline(100 / 9, color=figures.current().others, linewidth=figures.thin(), zorder=0)
    panels[0].annotate("stands still while it is down", (1.0, 100 / 9), va="bottom", color=figures.current().ink)
    panels[0].set(ylabel="lost of the healthy mean step [%]", ylim=(0, None))
    panels[1].set_yscale("log")
    log_numbers(panels[1].yaxis, (1.0, 2.0, 5.0))
    panels[1].set_ylabel("longest step / healthy step")


FIGURE_PARTS = {
    "slow_rank": ("One slow rank: time that a step loses", _slow_rank, ("", 3)),
    "neighbour": ("A neighbour on the NIC of one node", _neighbour, ("", 3)),
    "jitter": ("Jitter of compute", _jitter, (", BinSGDM", 5)),
    "flapping_nic": ("A NIC of 64 nodes that flaps", _flapping, ("", 3)),
}
"""By experiment: title, what fills both panels, and of the legend what it leaves out and its columns."""


def _look(rate: float, system: str) -> dict[str, Any]:
    """Return the line of a system at a bandwidth: colours and markers tell bandwidths, dashes systems."""
    colour, marker = LOOKS[rate]
    name, dash = SYSTEMS[system]
    return {"color": colour, "marker": marker, "linestyle": dash, "label": f"{rate:g} Gbit/s, {name}"}


def _speedups(axes: "Axes") -> None:
    axes.axhline(1.0, color=figures.current().ink, linewidth=figures.thin())
    axes.set_yscale("log", base=2)
    plain_numbers(axes.yaxis)
    axes.set_ylabel("speedup over DDP")
