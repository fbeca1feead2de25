"""`simnet init`: a first scenario file, with comments."""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from simnet.cli import options
from simnet.cli.output import check_file, emit, tell
from simnet.cluster.hardware import full_gpu_name
from simnet.core import files, templates
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth

MOST = 100_000
LATENCIES = {"tcp": "14 us", "roce": "4 us", "infiniband": "4 us"}
INSIDE = "2 us"
"""Latencies between nodes, and of NVLink, as the shipped clusters have them."""
INSIDE_RATES = {
    "V100": "150 GB/s", "A100-PCIe": "32 GB/s", "A100": "300 GB/s", "H100-PCIe": "64 GB/s", "H100": "450 GB/s",
    "H200": "450 GB/s", "B200": "900 GB/s", "MI250X": "50 GB/s", "MI300X": "448 GB/s", "T4": "16 GB/s",
}  # fmt: skip
"""What a GPU sends to the others of its node, one direction, by how its name begins: NVLink, PCIe x16 or Infinity
Fabric, by the makers' data sheets; others have PCIe 4.0."""
PCIE = "32 GB/s"
OVER_TCP, OVER_RDMA = {"V100": "v100_tcp_estimate"}, {"V100": "azure_nd_a100_v4", "A100": "azure_nd_a100_v4"}
OTHER_OVER_TCP, OTHER_OVER_RDMA = "a100_tcp_estimate", "h100_infiniband"
"""Shipped calibrations by how the name of a GPU begins, and those of all others."""
RDMA_BYTES_PER_S = 200e9 / 8
"""NICs from this rate on are taken to be InfiniBand, if nobody says: TCP does not fill them."""


@options.command(
    "init",
    help="Write a first scenario of your cluster and model to FILE, with comments; what no option says is asked on a "
    "terminal.",
    epilog="\b\nExamples:\n  simnet init mine.toml\n"
    "  simnet init mine.toml --nodes 4 --gpus 8 --gpu A100-80GB --nic '25 Gbit/s' --workload bert_base --yes",
)
@click.argument("file", type=options.OUTPUT_PATH, default="scenario.toml")
@click.option("--nodes", type=click.IntRange(1, MOST), help="Nodes of the cluster.  [default: 4]")
@click.option("--gpus", type=click.IntRange(1, 1024), help="GPUs of a node.  [default: 8]")
@click.option(
    "--gpu",
    shell_complete=options.complete_names("gpus"),
    help="Name of the GPU (simnet show gpus).  [default: A100-80GB]",
)
@click.option("--nic", help="Bandwidth of a NIC.  [default: 25 Gbit/s]")
@options.rare("--nics", type=click.IntRange(1, 64), help="NICs of a node.  [default: 1]")
@options.rare(
    "--network", type=click.Choice(list(LATENCIES)), help="What NICs speak.  [default: infiniband from 200 Gbit/s on]"
)
@options.rare("--inside", help="Bandwidth of a GPU inside its node, one direction.  [default: by the GPU]")
@click.option(
    "--workload",
    shell_complete=options.complete_names("workloads"),
    help="A shipped model (simnet show workloads) or a file.  [default: bert_base]",
)
@click.option("--batch", type=click.IntRange(1, 10**6), help="Samples of a GPU in a micro-batch.  [default: 32]")
@options.rare("--accumulation", type=click.IntRange(1, 10**4), help="Micro-batches of a step.  [default: 1]")
@click.option(
    "--strategy",
    shell_complete=options.complete_names("strategies"),
    help="What is asked about (simnet show strategies).  [default: what simnet advise would use]",
)
@options.rare(
    "--calibration",
    shell_complete=options.complete_names("calibrations"),
    help="What the hardware takes (simnet show calibrations).  [default: by the GPU and the network]",
)
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: take the default of what no option says.")
def command(file: Path, *, yes: bool, **named: Any) -> None:
    """Run `simnet init`."""
    if file.suffix != ".toml":
        raise SimnetError(f"{str(file)!r}: is no name of a scenario file: must end in .toml; try {file.name}.toml")
    if os.path.lexists(file):
        raise SimnetError(f"{file}: is there already: nothing is overwritten; name another file, or remove it")
    check_file(file, "FILE")
    named = {key: value for key, value in named.items() if value is not None}
    answers = _answers(named, file.absolute().parent, asks=not yes)
    text = templates.page("init.toml", _template_values(answers, file))
    notes = _checked(text, file)
    emit(text, file)
    if answers["gpu"] != named.get("gpu", answers["gpu"]):
        tell(f"note: {named['gpu']!r} is taken as {answers['gpu']}; others: simnet show gpus")
    for note in notes:
        tell(f"note: {note}")
    tell(f"wrote {file}; try: simnet advise {file}")


def _is_watched() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _answers(named: dict[str, Any], folder: Path, *, asks: bool) -> dict[str, Any]:
    """Return what options say, and what they leave open as it is answered; paths as from the folder of the scenario."""

    def say(key: str, default: Any, question: str) -> Any:
        if key in named or not asks:
            return named.get(key, default)
        if not _is_watched():
            raise SimnetError(f"init: --{key}: missing, and there is no terminal to ask on; give it, or --yes")
        return click.prompt(question, default=default, type=type(default), err=True)

    gpu = full_gpu_name(str(say("gpu", "A100-80GB", "GPU (simnet show gpus)")))
    rate = _of_gpu(INSIDE_RATES, gpu, PCIE)
    nodes, gpus = say("nodes", 4, "Nodes"), say("gpus", 8, "GPUs of a node")
    nic = _rate("nic", say("nic", "25 Gbit/s", "Bandwidth of a NIC"))
    usual = "infiniband" if Bandwidth.parse(nic) >= RDMA_BYTES_PER_S else "tcp"
    network = _network(say("network", usual, f"Network ({', '.join(LATENCIES)})"))
    return {
        "nodes": nodes,
        "gpus": gpus,
        "gpu": gpu,
        "nic": nic,
        "nics": say("nics", 1, "NICs of a node"),
        "network": network,
        "inside": _rate("inside", say("inside", rate, "Bandwidth of a GPU inside its node, one direction")),
        "workload": _from(folder, say("workload", "bert_base", "Model (simnet show workloads, or a file)")),
        "batch": say("batch", 32, "Samples of a GPU in a micro-batch"),
        "accumulation": say("accumulation", 1, "Micro-batches of a step"),
        "strategy": named.get("strategy"),
        "calibration": _from(folder, named.get("calibration") or _calibration(gpu, network)),
    }


def _network(name: str) -> str:
    """Return a network that was asked for on a terminal."""
    if name not in LATENCIES:
        raise SimnetError(f"--network: {name!r}: must be one of {', '.join(LATENCIES)}; give one of them")
    return name


def _calibration(gpu: str, network: str) -> str:
    """Return the shipped calibration that is the nearest."""
    if network == "tcp":
        return _of_gpu(OVER_TCP, gpu, OTHER_OVER_TCP)
    return _of_gpu(OVER_RDMA, gpu, OTHER_OVER_RDMA)


def _from(folder: Path, name: str) -> str:
    """Return a name as it is, and a path as it is from a folder."""
    return os.path.relpath(name, folder) if files.is_path(name) else name


def _of_gpu(known: dict[str, str], gpu: str, otherwise: str) -> str:
    """Return what is known of GPUs whose name begins like this one's."""
    return next((value for start, value in known.items() if gpu.startswith(start)), otherwise)


def _rate(key: str, text: object) -> str:
    """Return a bandwidth as a file writes it."""
    try:
        return Bandwidth.parse(str(text)).text()
    except ValueError as error:
        raise SimnetError(f"--{key}: {error}") from error


def _template_values(answers: dict[str, Any], file: Path) -> dict[str, object]:
    rate = Bandwidth.parse(answers["nic"])
    rates = sorted({rate, *(Bandwidth(rate * factor) for factor in (0.25, 0.5, 2.0, 4.0))})
    nodes = sorted({1, 2, answers["nodes"], 2 * answers["nodes"], 4 * answers["nodes"]})
    cluster = f"{answers['nodes']} nodes of {answers['gpus']} {answers['gpu']} at {answers['nic']}"
    asked = f"Is {answers['strategy']} faster than DDP for" if answers["strategy"] else "What should train"
    return {
        **answers,
        "file": file.name,
        "question": f"{asked} {Path(answers['workload']).stem} on {cluster}?",
        "nic_latency": LATENCIES[answers["network"]],
        "inside_latency": INSIDE,
        "precision": _precision(answers, file.absolute().parent),
        "sweep_nodes": json.dumps(nodes),
        "sweep_rates": json.dumps([rate.text() for rate in rates]),
        "toml": lambda text: json.dumps(str(text), ensure_ascii=False),
    }


def _precision(answers: dict[str, Any], folder: Path) -> str:
    """Return a number format in which the model was timed on the GPU, or that the GPU and its work have; "" if none."""
    from simnet.cluster import hardware

    part: Any = files.read("workloads", answers["workload"], folder)
    timed = [row.get("precision") for row in part.get("compute", []) if row.get("gpu") == answers["gpu"]]
    work = part.get("work", {}).get("precision")
    peaks = hardware.find_gpu(answers["gpu"]).peak_flops
    known = [*timed, *([work] if work in peaks else []), *(form for form in ("bf16", "fp16", "fp32") if form in peaks)]
    return str(known[0]) if known and ("compute" in part or "work" in part) else ""


def _checked(text: str, file: Path) -> tuple[str, ...]:
    """Check that the scenario runs, before it is written, and return how far its calibration is from its cluster."""
    from simnet.analysis.tune import with_any_strategy
    from simnet.engine.scenario import load_experiment
    from simnet.engine.simulation import calibration_notes, check

    # Beside the file, whose relative paths start there.
    folder = file.absolute().parent
    with tempfile.NamedTemporaryFile("w", suffix=".toml", prefix=".simnet-", dir=folder, encoding="utf-8") as draft:
        draft.write(text)
        draft.flush()
        try:
            scenario = with_any_strategy(load_experiment(draft.name)).at({})
            check(scenario)
        except SimnetError as error:
            raise SimnetError(str(error).replace(files.label(Path(draft.name)), file.name)) from error
    return calibration_notes(scenario.cluster, scenario.calibration)
