"""Proofs of an advice, with results that the simulator has made of a scenario that is off by known factors."""

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec

import simnet
from simnet.calibration.measurement_file import Series
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.scenario import Scenario
from simnet.strategies.base import every_kernel
from simnet.strategies.program import Kernel
from simnet.validation import proof
from simnet.validation.proof import ALONE, PROOF, Proof
from tests.helpers.measurement_samples import measurements, setup

SCENARIO: dict[str, Any] = {
    "strategy": "all_reduce",
    "cluster": {
        "num_nodes": 2, "ranks_per_node": 1, "inter_node": {"bandwidth": "200 Mbit/s", "latency": "2 ms"},
        "intra_node": {"bandwidth": "1 GB/s", "latency": "100 us"},
    },
    "workload": {
        "tensors": [{"shape": [512, 512], "name": f"layers.{7 - layer}.weight"} for layer in range(8)],
        "dtype": "bf16", "forward": "30 ms", "backward": "60 ms", "optimizer": "3 ms",
    },
    "calibration": {"memory_bandwidth": "5 GB/s", "kind": "measured"},
}  # fmt: skip
NOISE = 0.03
"""Standard deviation over mean of a time."""


def made(folder: Path, settings: dict[str, Any] | None = None, system: str = "terngrad") -> Proof:
    """Write a proof, and beside it the scenario that it is of, pod.json."""
    (folder.parent / "pod.json").write_text(json.dumps(SCENARIO))
    advice = simnet.advise(folder.parent / "pod.json", settings, systems=[system], draws=0)
    advice.proof(folder)
    return proof.of_advice(advice)


def results(folder: Path, asked: Proof, real: Scenario, seed: int = 0) -> dict[str, Any]:
    """Return what the script measures on a cluster that is as a scenario says."""
    draws, cluster = Random(seed), real.cluster
    series: list[dict[str, Any]] = []

    def add(kind: str, name: str, seconds: float, count: int = 8, **labels: Any) -> None:
        values = [seconds * draws.gauss(1, NOISE) for _ in range(count)]
        series.append({"kind": kind, "name": name, "setup": 0, "unit": "s", "labels": labels, "values": values})

    for message in asked.messages:
        add("collective", "all_reduce", proof.message_s(real, message), group=message.group, group_size=2, num_groups=1,
            message_bytes=message.message_bytes, dtype="float32")  # fmt: skip
    last = asked.runs[-1]
    program = PreparedScenario(last.scenario(real)).plan(last.strategy).program
    for kernel in {kernel.name: kernel for kernel in program.operations if isinstance(kernel, Kernel)}.values():
        seconds = every_kernel()[kernel.name].seconds(real.calibration, kernel.num_elements, kernel.num_vectors)
        add("kernel", kernel.name, seconds, num_elements=int(kernel.num_elements / kernel.num_vectors), dtype="float32",
            kernels="cpu", num_vectors=kernel.num_vectors)  # fmt: skip
    slowest = max(proof.slowdown(real, node) for node in range(cluster.num_nodes))
    for run in asked.runs:
        kind, step_s = "own_work" if run.name == ALONE else "training", run.step_s(real)
        empty = dict.fromkeys(("topology", "intra_node_dtype", "average", "rounding"), "")
        labels = {"model": "mine:make", "batch": 1, "strategy": run.strategy.kind, "overlap": 1, "bucket_cap_mb": 25.0}
        labels |= {**empty, "run": run.name}
        add(kind, "step", step_s, run.steps, **labels)
        for rank in range(cluster.world_size):
            part = proof.slowdown(real, rank // cluster.ranks_per_node) / slowest if run.name == ALONE else 1.0
            add(kind, "rank_step", step_s * part, run.steps, **labels, rank=rank)
    digest = hashlib.sha256((folder / PROOF).read_bytes()).hexdigest()[:32]
    layout = setup(cluster.num_nodes, cluster.ranks_per_node, 2.5e7)
    whole = msgspec.to_builtins(measurements(msgspec.convert(series, tuple[Series, ...]), (layout,)))
    return {**whole, "setups": list(whole["setups"]), "series": series, "notes": [f"proof {digest}"]}
