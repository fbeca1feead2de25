"""Small made-up results, shaped like real ones: a closed-form step without overlap."""

import json
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import simnet
from simnet.analysis import results_file
from simnet.cluster.hardware import Calibration, Cluster, Link
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.result import (
    Breakdown,
    LostTime,
    LostToFault,
    RunResult,
    Span,
    StepTimes,
    StrategyResult,
    SweepResult,
    SweptAxis,
    point_result,
    to_json,
)
from simnet.engine.scenario import Scenario
from simnet.strategies import BinSGDM, DenseAllReduce
from simnet.workload.workload import ComputeTime, Workload

# name: (title, gradient bytes, forward + backward [s], optimizer [s], samples per rank)
WORKLOADS = {
    "bert_base": ("BERT-Base", 440e6, 0.12, 0.006, 32),
    "resnet50": ("ResNet-50", 102e6, 0.10, 0.002, 64),
}
RANKS_PER_NODE = 8


def strategy_result(
    name: str, workload: str, num_nodes: int, gbit_per_s: float, *, spans: tuple[Span, ...] = ()
) -> StrategyResult:
    _, num_bytes, compute_s, optimizer_s, batch = WORKLOADS[workload]
    one_bit = name == "binsgdm"
    nic_bytes = 2 * (num_nodes - 1) / num_nodes * num_bytes / (32 if one_bit else 1)
    comm_s = nic_bytes / (gbit_per_s * 1e9 / 8) + 1e-3
    breakdown = Breakdown(
        forward_s=compute_s / 3,
        backward_s=compute_s * 2 / 3,
        encode_s=num_bytes / 1e11 if one_bit else 0.0,
        decode_s=num_bytes / 2e11 if one_bit else 0.0,
        exposed_comm_s=comm_s * 0.8,
        optimizer_s=optimizer_s,
    )
    return StrategyResult(
        strategy=name,
        fidelity="folded",
        algorithm="hierarchical" if one_bit else "ring",
        iterations_s=(breakdown.total_s,),
        samples_per_s=batch * num_nodes * RANKS_PER_NODE / breakdown.total_s,
        breakdown=breakdown,
        comm_s=comm_s,
        overlap=0.2,
        nic_bytes_per_node=nic_bytes,
        compression_ratio=32.0 if one_bit else 1.0,
        num_buckets=17,
        spans=spans,
    )


def scenario(workload: str = "bert_base", num_nodes: int = 8, gbit_per_s: float = 10.0) -> Scenario:
    title, num_bytes, compute_s, optimizer_s, batch = WORKLOADS[workload]
    return Scenario(
        name="sample",
        question="Does 1-bit communication make training faster?",
        cluster=Cluster(
            name="made_up",
            title="Made-up cluster",
            num_nodes=num_nodes,
            ranks_per_node=RANKS_PER_NODE,
            gpu="A100",
            intra_node=Link(bytes_per_s=Bandwidth(300e9), alpha_s=Duration(5e-7)),
            inter_node=Link(bytes_per_s=Bandwidth(gbit_per_s * 1e9 / 8), alpha_s=Duration(5e-6)),
        ),
        workload=Workload(
            name=workload,
            title=title,
            gradient_bytes=Size(num_bytes),
            compute=(
                ComputeTime(
                    gpu="A100",
                    precision="fp16",
                    batch=batch,
                    step_s=Duration(compute_s + optimizer_s),
                    optimizer="adam",
                    source="made up",
                ),
            ),
            precision="fp16",
            batch_per_rank=batch,
        ),
        calibration=Calibration(name="made_up_2020", kind="estimate"),
        strategy=BinSGDM(),
        baseline=DenseAllReduce(),
    )


def run_result(
    workload: str = "bert_base", num_nodes: int = 8, gbit_per_s: float = 10.0, *, baseline: bool = True
) -> RunResult:
    spans = (
        Span(stream="compute", name="forward", start_s=0.0, end_s=0.04),
        Span(stream="compute", name="backward", start_s=0.04, end_s=0.12),
        Span(stream="communication", name="all_reduce", start_s=0.08, end_s=0.16, bucket=0, message_bytes=1e6),
    )
    result = strategy_result("binsgdm", workload, num_nodes, gbit_per_s, spans=spans)
    dense = strategy_result("all_reduce", workload, num_nodes, gbit_per_s, spans=spans)
    return RunResult(
        scenario=scenario(workload, num_nodes, gbit_per_s),
        world_size=num_nodes * RANKS_PER_NODE,
        result=result,
        baseline=dense if baseline else None,
        speedup=dense.iteration_s / result.iteration_s if baseline else None,
        gradient_bytes=WORKLOADS[workload][1],
        version="0.1.0",
        notes=("kernel times are estimates",),
    )


def sweep_document(
    workloads: tuple[str, ...] = ("bert_base", "resnet50"),
    bandwidths: tuple[float, ...] = (10, 25, 40, 100, 400),
    nodes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64),
    *,
    baseline: bool = True,
) -> dict[str, Any]:
    """Return what `simnet sweep` writes, for made-up times, as plain data to be changed."""
    points = []
    for workload, gbit_per_s, num_nodes in product(workloads, bandwidths, nodes):
        values: dict[str, object] = {
            "workload": workload,
            "cluster.inter_node.bandwidth": f"{gbit_per_s} Gbit/s",
            "cluster.num_nodes": num_nodes,
        }
        result = run_result(workload, num_nodes, gbit_per_s, baseline=baseline)
        points.append(point_result(values, result.without_spans()))
    axes = (
        SweptAxis(key="workload", values=workloads),
        SweptAxis(key="cluster.inter_node.bandwidth", values=tuple(f"{rate} Gbit/s" for rate in bandwidths)),
        SweptAxis(key="cluster.num_nodes", values=nodes),
    )
    question = "How much faster does BinSGDM train than fp32 DDP, by nodes and bandwidth?"
    document: dict[str, Any] = json.loads(
        to_json(SweepResult(name="sample", question=question, axes=axes, points=tuple(points)))
    )
    return document


def sweep_of(document: dict[str, Any]) -> SweepResult:
    """Return the results that plain data hold."""
    return results_file.decode(json.dumps(document).encode())


def with_value(document: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """Put a value into every point of a document."""
    *parents, key = path.split(".")
    for point in document["points"]:
        holder = point
        for parent in parents:
            holder = holder[parent]
        holder[key] = value
    return document


def write_results(folder: Path, document: dict[str, Any]) -> Path:
    """Write the results.json of a sweep."""
    path = folder / results_file.NAME
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


FAULTS = [{"kind": "slow_rank", "node": 1, "compute_slowdown": 1.5}, {"kind": "compute_jitter", "cv": 0.1}]


def lost_time(scale: float) -> LostTime:
    def times(mean_s: float, p95_s: float) -> StepTimes:
        return StepTimes(mean_s=mean_s, p50_s=mean_s / 2, p95_s=p95_s)

    faults = tuple(
        LostToFault(key=f"cluster.faults.{place}", lost=times(scale * mean_s, scale * 0.04))
        for place, mean_s in enumerate((0.02, 0.01))
    )
    return LostTime(faults=faults, together=times(scale * 0.05, scale * 0.09), interaction=times(scale * 0.02, 0.0))


@cache
def uneven_run() -> RunResult:
    """Return a run of 100 iterations of 1 to 100 ms, and its baseline's of 2 to 200 ms, that says what faults cost."""
    found = simnet.simulate("bert_base_10gbit", {"cluster.faults": FAULTS, "run.iterations": 2}, draws=0)
    assert found.baseline is not None
    steps = tuple(place / 1e3 for place in range(1, 101))
    own = replace(found.result, iterations_s=steps, lost_time=lost_time(1.0))
    other = replace(found.baseline, iterations_s=tuple(2 * one for one in steps), lost_time=lost_time(-1.0))
    return replace(found, result=own, baseline=other)
