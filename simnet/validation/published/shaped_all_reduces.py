"""All-reduces and sends of gloo and NCCL over links with a shaped rate and latency, one rank a node."""

from collections.abc import Iterator, Mapping

from simnet.cluster import topology
from simnet.cluster.hardware import GLOO_WINDOW, Calibration, Cluster, Link, LinkCalibration
from simnet.collectives import link_loads, ring
from simnet.core.units import Bandwidth, Duration, Size
from simnet.validation import published_rows
from simnet.validation.outcome import Alternative, Limit, Outcome
from simnet.validation.published_rows import PublishedRow
from simnet.validation.study import FreeNumber, Study

CLOUD, OWN_RUNS = "BinhangYuan/tc_cluster_setting", "own runs of torch over TUN devices"
LIBRARIES = ("gloo", "nccl")
ALL_REDUCE, SEND, SYNCHRONIZATION = "all-reduce", "send-recv", "synchronization"
UNSHAPED = "10 Gbit/s"
RATES = (1e8, 1.25e9)
"""Bounds of what a library carries by itself, where the link is not the limit [B/s]."""


def evaluate() -> Outcome:
    """Take the libraries' own rates from the rows without latency, predict all others."""
    study = _study()
    return Outcome(
        title="All-reduces over shaped links",
        unit="ms",
        bound=Limit(mean=0.065, worst=0.2),
        target=Limit(mean=0.065, worst=0.2),
        parameters=study.parameters,
        predictions=study.predictions,
        tells_of_others=False,
        make_alternatives=_alternatives,
    )


def _study(window: Size | None = GLOO_WINDOW, *, hops_hide: bool = True) -> Study:
    """Return the rows and what is fitted to the first of them.

    Args:
        window: of gloo.
        hops_hide: whether latencies of NCCL's rings hide behind bytes.
    """
    rows = published_rows.load()
    # Without latency, where only the library limits.
    known = {name: rows.select(CLOUD, method=name, network=UNSHAPED, metric=ALL_REDUCE) for name in LIBRARIES}
    others = [row for row in rows.select(CLOUD) if row.network != UNSHAPED or row.metric != ALL_REDUCE]
    return Study(
        initial={},
        fits=tuple(
            FreeNumber(
                key=name,
                rows=known[name],
                how="mean signed error zero",
                bounds=RATES,
                text=lambda rate: f"{8 * rate / 1e9:.2f} Gbit/s",
                name=f"rate of {name} by itself",
            )
            for name in LIBRARIES
        ),
        predict=lambda rates, row: _seconds(rates, row, window, hops_hide=hops_hide),
        measured=lambda row: row.value / 1e3,
        series=_series,
        label=lambda row: f"{_series(row)}, {row.gpus} ranks, {row.network}, {row.model}",
        held_out=(*others, *rows.select(OWN_RUNS)),
    )


def _series(row: PublishedRow) -> str:
    if not row.source.startswith(CLOUD):
        return f"{row.method}, own runs"
    return row.method if row.metric == ALL_REDUCE else f"{_library(row)}, {row.metric}"


def _library(row: PublishedRow) -> str:
    return row.method.partition(" ")[0]


def _seconds(rates: Mapping[str, float], row: PublishedRow, window: Size | None, *, hops_hide: bool) -> float:
    """Return the time of a ring, or of one send, over links of the row's rate and one-way latency [s]."""
    rate, _, latency = row.network.partition(", ")
    nominal, library = float(Bandwidth.parse(rate)), _library(row)
    # Own runs have processes on CPUs alone, which carry what the shaped links do.
    least = min(nominal, rates[library]) if row.source.startswith(CLOUD) else nominal
    cluster = Cluster(
        num_nodes=row.nodes,
        ranks_per_node=1,
        intra_node=Link(bytes_per_s=Bandwidth(1e11), alpha_s=Duration(0)),
        inter_node=Link(bytes_per_s=Bandwidth(least), alpha_s=Duration.parse(latency) if latency else Duration(0)),
    )
    link = LinkCalibration(window=window if library == "gloo" else None)
    nodes = topology.build(cluster, Calibration(inter_node=link, hops_hide=hops_hide))
    # The synchronization all-reduces as many equal parts as there are ranks (pytorch_group_collective_test.py).
    parts = row.nodes if row.metric == SYNCHRONIZATION else 1
    make = ring.hop if row.metric == SEND else ring.all_reduce
    return parts * link_loads.duration_s(nodes, make(nodes.group("world")), float(Size.parse(row.model)) / parts)


def _alternatives() -> Iterator[Alternative]:
    yield Alternative(
        "gloo without a window: bytes follow each other whatever the latency", "as above", _study(None).predictions
    )
    yield Alternative(
        "NCCL with every hop's latency in full, 2(P-1)(a + S/(P B))", "as above", _study(hops_hide=False).predictions
    )
