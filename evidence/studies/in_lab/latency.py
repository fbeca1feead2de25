"""All-reduces of gloo over links with a latency, predicted from calibrations without one, then run in the lab."""

import statistics
from itertools import product
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import evidence
from evidence.lab import campaign as campaigns
from evidence.studies import page
from evidence.studies.in_lab.campaign import errors_text, mbit, read, signed
from simnet.calibration.comparison import Comparison, by_series
from simnet.cluster import topology
from simnet.cluster.hardware import Calibration, Cluster, Link
from simnet.collectives import link_loads, ring
from simnet.core.files import read_file
from simnet.core.schema import build
from simnet.core.units import Size, format_seconds
from simnet.report.table import Table

RESULTS = evidence.RESULTS / "lab_latency"
PAGE = page.SIMULATOR
CAMPAIGN = campaigns.load(evidence.CAMPAIGNS / "latency.toml")
SIZES = Size(2**22), Size(2**24)
FORMS = {"predicted_s": "window of 2 MiB", "unlimited_s": "no window, one latency a round"}


def predict() -> list[dict[str, Any]]:
    """Return what each all-reduce takes, with gloo's window and without [s]."""
    rows = []
    for (layout, rate, latency), size in product(CAMPAIGN.settings, SIZES):
        # What the campaign of docs/evidence/simulator.md fitted on NICs without a latency.
        path = page.EVIDENCE / "lab" / f"calibration_{layout.text()}.toml"
        known = build(Calibration, read_file(path), path.name)
        link = Link(bytes_per_s=rate, alpha_s=latency)
        cluster = Cluster(num_nodes=layout.num_nodes, ranks_per_node=1, intra_node=link, inter_node=link)
        row: dict[str, Any] = {
            "ranks": layout.num_nodes,
            "mbit_per_s": mbit(rate),
            "latency_ms": round(latency * 1e3),
            "mib": round(size / 2**20),
        }
        for form, changes in {"predicted_s": {}, "unlimited_s": {"window": None}}.items():
            over = replace(known, inter_node=replace(known.inter_node, alpha_s=latency, **changes))
            nodes = topology.build(cluster, over)
            row[form] = link_loads.duration_s(nodes, ring.all_reduce(nodes.group("world")), float(size))
        rows.append(row)
    return rows


def points(folder: Path, form: str = "predicted_s") -> list[Comparison]:
    """Return the all-reduces: of two launches the shorter median counts, since other programs only lengthen."""
    compared = []
    for row in read(folder, "predictions")["rows"]:
        # A run that was stopped lacks some second launches.
        files = folder.glob(f"{row['ranks']}x1_{row['mbit_per_s']}mbit_{row['latency_ms']}ms_*.json")
        series = [each for path in files for each in read(folder, path.stem)["series"]]
        medians = [statistics.median(s["values"]) for s in series if s["labels"]["message_bytes"] == row["mib"] * 2**20]
        label = f"{row['ranks']} ranks | {row['mbit_per_s']} Mbit/s | {row['latency_ms']} ms | {row['mib']} MiB"
        compared.append(
            Comparison(series=f"{row['latency_ms']} ms", label=label, measured=min(medians), predicted=row[form])
        )
    return compared


def regions(folder: Path) -> dict[str, str]:
    """Return the errors with the window and without it, all and by latency."""
    texts = []
    for form, text in FORMS.items():
        compared = points(folder, form)
        parts = {f"all {len(compared)} points": compared, **by_series(compared)}
        errors = "; ".join(errors_text(name, group) for name, group in parts.items())
        texts.append(f"*{text[0].upper()}{text[1:]}*: {errors}.")
    return {"lab latency": page.paragraph("Mean errors (asked: 8 %, worst 20 %).", *texts)}


def data(folder: Path) -> dict[str, Table]:
    heads = ["ranks", "NIC", "latency", "message", "measured", "predicted", "error"]
    rows = [
        (*at.label.split(" | "), format_seconds(at.measured), format_seconds(at.predicted), signed(at.error))
        for at in points(folder)
    ]
    return {"lab-latency": Table(heads, rows)}
