"""All-reduces of gloo over links with a latency, predicted from calibrations without one, then run in the lab."""

import json
import statistics
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from simnet.calibration.comparison import Comparison, by_series, mean_error, mean_signed_error, worst_error
from simnet.cluster import topology
from simnet.cluster.hardware import Calibration, Cluster, Link
from simnet.collectives import link_loads, ring
from simnet.core.files import read_file
from simnet.core.schema import build
from simnet.core.units import Bandwidth, Duration, Size, format_seconds
from simnet.report.table import Table
from simnet.report.text import percent
from simnet.validation.lab import campaign as campaigns
from simnet.validation.lab.campaign import Launch, Layout
from studies import page

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "tests" / "golden" / "lab_latency"
PAGE, REGION = page.SIMULATOR, "lab latency"
CAMPAIGN = campaigns.load(ROOT / "scenarios" / "lab" / "latency.toml")
SIZES = Size(2**22), Size(2**24)
STARTS = 2
"""Launches of a setting, the second after all others: the shorter median counts, since other programs only lengthen."""
FORMS = {"predicted_s": "window of 2 MiB", "unlimited_s": "no window, one latency a round"}


def run(folder: Path) -> None:
    """Write predictions.json, if it is not there yet, then run in the lab."""
    from simnet.validation.lab import run_campaign

    predictions = folder / "predictions.json"
    if not predictions.exists():
        text = json.dumps({"written_s": time.time(), "rows": predict()}, indent=1)
        predictions.write_text(text + "\n", encoding="utf-8")
    run_campaign.run(CAMPAIGN, launches(), folder, print, max_wait_s=0)


def predict() -> list[dict[str, Any]]:
    """Return what each all-reduce takes, with gloo's window and without [s]."""
    return [
        {
            "ranks": layout.num_nodes,
            "mbit_per_s": round(rate * 8 / 1e6),
            "latency_ms": round(latency * 1e3),
            "mib": round(size / 2**20),
            "predicted_s": _seconds(layout, rate, latency, size, _calibration(layout)),
            "unlimited_s": _seconds(layout, rate, latency, size, _without_window(_calibration(layout))),
        }
        for (layout, rate, latency), size in product(CAMPAIGN.settings, SIZES)
    ]


def _calibration(layout: Layout) -> Calibration:
    """Return what the campaign of docs/evidence/simulator.md fitted on NICs without a latency."""
    path = page.EVIDENCE / "lab" / f"calibration_{layout.text()}.toml"
    return build(Calibration, read_file(path), path.name)


def _without_window(calibration: Calibration) -> Calibration:
    return replace(calibration, inter_node=replace(calibration.inter_node, window=None))


def _seconds(layout: Layout, rate: Bandwidth, latency: Duration, size: Size, calibration: Calibration) -> float:
    link = Link(bytes_per_s=rate, alpha_s=latency)
    cluster = Cluster(num_nodes=layout.num_nodes, ranks_per_node=1, intra_node=link, inter_node=link)
    over = replace(calibration, inter_node=replace(calibration.inter_node, alpha_s=latency))
    nodes = topology.build(cluster, over)
    return link_loads.duration_s(nodes, ring.all_reduce(nodes.group("world")), float(size))


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
    """Return every all-reduce, predicted in a form and measured."""
    found = []
    paths = {launch.name: launch.path(folder) for launch in launches()}
    # A run that was stopped lacks some second launches.
    files = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in paths.items() if path.exists()}
    for row in read_predictions(folder)["rows"]:
        name = f"{row['ranks']}x1_{row['mbit_per_s']}mbit_{row['latency_ms']}ms"
        starts = [f"{name}_{start + 1}" for start in range(STARTS)]
        mine = [series for start in starts if start in files for series in files[start]["series"]]
        medians = [statistics.median(s["values"]) for s in mine if s["labels"]["message_bytes"] == row["mib"] * 2**20]
        label = f"{row['ranks']} ranks | {row['mbit_per_s']} Mbit/s | {row['latency_ms']} ms | {row['mib']} MiB"
        found.append(
            Comparison(series=f"{row['latency_ms']} ms", label=label, measured=min(medians), predicted=row[form])
        )
    return found


def read_predictions(folder: Path) -> dict[str, Any]:
    """Return what was written before the runs."""
    found: dict[str, Any] = json.loads((folder / "predictions.json").read_text(encoding="utf-8"))
    return found


def regions(folder: Path) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    return {REGION: page.paragraph(_outcome(folder))}


def data(folder: Path) -> dict[str, Table]:
    """Return the table that the page links to, by name."""
    return {"lab-latency": _table(points(folder))}


def _outcome(folder: Path) -> str:
    """Return the errors with the window and without it, all and by latency."""
    texts = []
    for form, text in FORMS.items():
        found = points(folder, form)
        told = [
            f"{name} {percent(mean_error(mine))} ({100 * mean_signed_error(mine):+.1f} %, worst "
            f"{percent(worst_error(mine))})"
            for name, mine in {f"all {len(found)} points": found, **by_series(found)}.items()
        ]
        texts.append(f"*{text[0].upper()}{text[1:]}*: {'; '.join(told)}.")
    return "Mean errors (asked: 8 %, worst 20 %). " + " ".join(texts)


def _table(found: Iterable[Comparison]) -> Table:
    return Table(
        ["ranks", "NIC", "latency", "message", "measured", "predicted", "error"],
        [
            (
                *one.label.split(" | "),
                format_seconds(one.measured),
                format_seconds(one.predicted),
                f"{100 * one.error:+.1f} %",
            )
            for one in found
        ],
    )
