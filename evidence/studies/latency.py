"""All-reduces of gloo over links with a latency, predicted from calibrations without one, then run in the lab."""

import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import evidence
from evidence.lab import campaign as campaigns
from evidence.lab.campaign import Launch
from evidence.studies import page
from evidence.studies.in_lab.campaign import errors_text, mbit, read, signed, write
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
STARTS = 2
"""Launches of a setting, the second after all others: the shorter median counts, since other programs only lengthen."""
FORMS = {"predicted_s": "window of 2 MiB", "unlimited_s": "no window, one latency a round"}


def run(folder: Path) -> None:
    from evidence.lab import run_campaign

    if not (folder / "predictions.json").exists():
        write(folder, "predictions", {"written_s": time.time(), "rows": predict()})
    run_campaign.run(launches(), folder, print, max_wait_s=0)


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


def launches() -> list[Launch]:
    """Return the launches of each layout, bandwidth and latency, with the names of their files."""
    sizes = ("--min-size", str(round(min(SIZES))), "--max-size", str(round(max(SIZES))))
    stop = ("--max-seconds", "12", "--max-repetitions", "15")
    return [
        Launch(
            name=f"{layout.text()}_{rate * 8 / 1e6:g}mbit_{latency * 1e3:g}ms_{start + 1}",
            part="all_reduces",
            layout=layout,
            bandwidth=rate,
            latency=latency,
            arguments=(
                *("collectives", "--only", "all_reduce", *sizes, *stop, "--threads", "1"),
                *("--nic-gbit-per-s", f"{rate * 8 / 1e9:g}", "--nic-latency-ms", f"{latency * 1e3:g}"),
            ),
        )
        for start, (layout, rate, latency) in product(range(STARTS), CAMPAIGN.settings)
    ]


def points(folder: Path, form: str = "predicted_s") -> list[Comparison]:
    found = []
    paths = {launch.name: launch.path(folder) for launch in launches()}
    # A run that was stopped lacks some second launches.
    files = {name: read(path.parent, path.stem) for name, path in paths.items() if path.exists()}
    for row in read(folder, "predictions")["rows"]:
        name = f"{row['ranks']}x1_{row['mbit_per_s']}mbit_{row['latency_ms']}ms"
        starts = [f"{name}_{start + 1}" for start in range(STARTS)]
        mine = [series for start in starts if start in files for series in files[start]["series"]]
        medians = [statistics.median(s["values"]) for s in mine if s["labels"]["message_bytes"] == row["mib"] * 2**20]
        label = f"{row['ranks']} ranks | {row['mbit_per_s']} Mbit/s | {row['latency_ms']} ms | {row['mib']} MiB"
        found.append(
            Comparison(series=f"{row['latency_ms']} ms", label=label, measured=min(medians), predicted=row[form])
        )
    return found


def regions(folder: Path) -> dict[str, str]:
    """Return the errors with the window and without it, all and by latency."""
    texts = []
    for form, text in FORMS.items():
        found = points(folder, form)
        parts = {f"all {len(found)} points": found, **by_series(found)}
        told = "; ".join(errors_text(name, mine) for name, mine in parts.items())
        texts.append(f"*{text[0].upper()}{text[1:]}*: {told}.")
    return {"lab latency": page.paragraph("Mean errors (asked: 8 %, worst 20 %).", *texts)}


def data(folder: Path) -> dict[str, Table]:
    heads = ["ranks", "NIC", "latency", "message", "measured", "predicted", "error"]
    rows = [
        (*one.label.split(" | "), format_seconds(one.measured), format_seconds(one.predicted), signed(one.error))
        for one in points(folder)
    ]
    return {"lab-latency": Table(heads, rows)}
