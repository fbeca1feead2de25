"""The timeline as a trace of torch's profiler: what it holds, and what other programs find in it."""

import gzip
import json
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from simnet.engine.result import RunResult, StrategyResult
from simnet.engine.scenario import load_experiment
from simnet.engine.simulation import simulate
from simnet.traces import kineto, profiled_step
from simnet.traces.timeline_trace import baseline_path, write_trace
from tests.helpers.needs import needs
from tests.helpers.refusals import refused
from tests.helpers.report_samples import run_result

Event = dict[str, Any]
SHARDED = {"strategy": {"kind": "hsdp"}, "baseline": {"kind": "all_reduce"}}


@cache
def simulated(name: str = "bert_base_10gbit", fidelity: str = "auto") -> RunResult:
    return simulate(load_experiment(name, {"cluster.num_nodes": 4, "run.fidelity": fidelity, "run.draws": 0}).at({}))


def traces(run: RunResult, folder: Path, iterations: int = 3) -> tuple[Event, Event]:
    """Return the traces of the strategy and of the baseline."""
    path = folder / "trace.json"
    write_trace(run, path, iterations)
    return json.loads(path.read_bytes()), json.loads(baseline_path(path).read_bytes())


def of_kind(trace: Event, kind: str) -> list[Event]:
    return [event for event in trace["traceEvents"] if event.get("cat") == kind]


def collectives(trace: Event) -> list[Event]:
    return [event for event in of_kind(trace, "kernel") if event["name"].startswith("nccl")]


def both(run: RunResult, folder: Path) -> list[tuple[Event, StrategyResult]]:
    assert run.baseline is not None
    return list(zip(traces(run, folder), (run.result, run.baseline), strict=True))


def test_the_baseline_stands_beside_the_strategy_packed_as_it_is(tmp_path: Path) -> None:
    for name, beside in (("a.json", "a.baseline.json"), ("b.json.gz", "b.baseline.json.gz"), ("a", "a.baseline")):
        assert baseline_path(Path("out") / name) == Path("out") / beside
    plain, _ = traces(simulated(), tmp_path)
    write_trace(simulated(), tmp_path / "trace.json.gz")
    packed = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    assert packed["traceEvents"] == plain["traceEvents"]
    assert (tmp_path / "trace.baseline.json.gz").exists()


def test_the_header_names_ranks_groups_and_gpus_as_kineto_does(tmp_path: Path) -> None:
    run = simulated()
    trace, _ = traces(run, tmp_path)
    about = kineto.parse(trace, tmp_path / "trace.json").about
    assert about.distributed is not None
    assert (about.distributed.backend, about.distributed.rank) == ("nccl", 0)
    assert about.distributed.world_size == run.world_size
    assert about.distributed.pg_config[0].ranks == tuple(range(run.world_size))
    assert [device.name for device in about.devices] == [run.scenario.cluster.gpu] * run.ranks_per_node


def test_steps_follow_each_other_and_hold_their_kernels_each_with_its_launch_and_none_over_another(
    tmp_path: Path,
) -> None:
    for trace, result in both(simulated(), tmp_path):
        steps = [event for event in of_kind(trace, "user_annotation") if event["name"].startswith("ProfilerStep#")]
        assert [step["name"] for step in steps] == ["ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"]
        assert [step["dur"] for step in steps] == [pytest.approx(result.iteration_s * 1e6, abs=2e-3)] * 3
        kernels, streams = of_kind(trace, "kernel"), defaultdict(list)
        for number, step in enumerate(steps):
            inside = [kernel for kernel in kernels if step["ts"] <= kernel["ts"] < step["ts"] + step["dur"]]
            assert len(inside) == len(result.spans)
            assert step["ts"] == pytest.approx(number * step["dur"])
        launches = [event["args"]["correlation"] for event in of_kind(trace, "cuda_runtime")]
        assert len(set(launches)) == len(launches)
        assert sorted(event["args"]["correlation"] for event in kernels) == sorted(launches)
        for event in kernels:
            assert event["tid"] == event["args"]["stream"] > 0
            streams[event["tid"]].append(event)
        assert len(streams) > 1
        for events in streams.values():
            for earlier, other in pairwise(sorted(events, key=lambda event: event["ts"])):
                assert round((earlier["ts"] + earlier["dur"]) * 1000) <= round(other["ts"] * 1000)


def test_collectives_say_their_message_as_kineto_names_it(tmp_path: Path) -> None:
    run = simulated()
    _, baseline = traces(run, tmp_path)
    first = collectives(baseline)[0]["args"]
    elements = first["Message bytes"] / 4
    assert first | {"correlation": 0, "Message bytes": 0} == {
        "device": 0,
        "context": 1,
        "stream": 20,
        "correlation": 0,
        "bucket": 0,
        "Collective name": "allreduce",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": run.world_size,
        "dtype": "Float",
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": f"[{', '.join(map(str, range(min(30, run.world_size))))}"
        f"{', ...' if run.world_size > 30 else ''}]",
        "Algorithm": first["Algorithm"],
        "Message bytes": 0,
    }


def test_messages_of_codes_are_bytes_and_gathers_hand_out_all_parts(tmp_path: Path) -> None:
    trace, _ = traces(simulated(), tmp_path)
    gathers = [event["args"] for event in collectives(trace) if event["args"]["Collective name"] == "_allgather_base"]
    assert gathers
    for sent in gathers:
        assert sent["dtype"] == "Byte"
        assert sent["Out msg nelems"] == round(sent["Message bytes"])
        assert sent["In msg nelems"] == round(sent["Message bytes"] / sent["Group size"])


def test_groups_of_a_mesh_are_named_in_the_header(tmp_path: Path) -> None:
    run = simulate(load_experiment("bert_base_10gbit", {"cluster.num_nodes": 4, "run.draws": 0, **SHARDED}).at({}))
    trace, _ = traces(run, tmp_path)
    known = {group["pg_name"]: group for group in trace["distributedInfo"]["pg_config"]}
    used = {event["args"]["Process Group Name"] for event in collectives(trace)}
    assert len(used) == 2
    for event in collectives(trace):
        group = known[event["args"]["Process Group Name"]]
        assert event["args"]["Process Group Ranks"] == str(group["ranks"])
        assert event["args"]["Group size"] == group["pg_size"] == len(group["ranks"])


def test_what_leaves_the_node_under_the_counter_is_what_the_result_says(tmp_path: Path) -> None:
    for trace, result in both(simulated(), tmp_path):
        counters = [event for event in trace["traceEvents"] if event["ph"] == "C" and event["name"].startswith("NIC")]
        sent_bytes = sum(
            counter["args"]["sent"] * 1e9 / 8 * (other["ts"] - counter["ts"]) * 1e-6
            for counter, other in pairwise(counters)
        )
        assert sent_bytes == pytest.approx(3 * result.nic_bytes_per_node, rel=1e-4)
        assert counters[-1]["args"]["sent"] == 0


@pytest.mark.parametrize("name", ["bert_base_10gbit", "reference_ddp_step"])
def test_a_trace_read_back_is_the_step_that_was_simulated(name: str, tmp_path: Path) -> None:
    run = simulated(name)
    write_trace(run, tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_bytes())
    traced = kineto.parse(trace, tmp_path / "trace.json")
    shape = profiled_step.world_of(traced, None, None)
    assert (shape.num_nodes, shape.ranks_per_node) == (run.num_nodes, run.ranks_per_node)
    layout = profiled_step.layout_of(traced, shape, None)
    operations = [operation for stream in layout.streams for operation in stream.operations]
    sent = [operation for operation in operations if operation.kind != "compute"]
    spans = [span for span in run.result.spans if span.stream == "communication"]
    read_back, expected = (
        sorted((operation.kind, operation.message_bytes) for operation in sent),
        sorted((span.name, span.message_bytes) for span in spans),
    )
    assert [kind for kind, _ in read_back] == [kind for kind, _ in expected]
    assert [size for _, size in read_back] == pytest.approx([size for _, size in expected], abs=4)
    computed_s = sum(operation.seconds for operation in operations if operation.kind == "compute")
    parts = run.result.breakdown
    assert computed_s == pytest.approx(
        sum(span.end_s - span.start_s for span in run.result.spans if span.stream == "compute"), rel=1e-4
    )
    assert computed_s >= parts.total_s - parts.exposed_comm_s - 1e-6
    assert not any("follows from its times" in note for note in layout.notes)


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_holistic_trace_analysis_finds_our_numbers(
    is_exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("hta")
    import hta.trace_analysis as analysis

    monkeypatch.setenv("HTA_DISABLE_NS_ROUNDING", "1")
    run = simulated(fidelity="exact" if is_exact else "auto")
    assert run.baseline is not None
    traces(run, tmp_path)
    for path, result in (("trace.json", run.result), ("trace.baseline.json", run.baseline)):
        analysed = analysis.TraceAnalysis(trace_files={0: str(tmp_path / path)}, trace_dir=str(tmp_path))
        split = analysed.get_temporal_breakdown(visualize=False).iloc[0]
        # HTA leaves out the last of three iterations.
        waiting_us = split["idle_time(us)"] + split["non_compute_time(us)"]
        exposed_us, total_us = result.breakdown.exposed_comm_s * 1e6, result.iteration_s * 1e6
        assert split["kernel_time(us)"] / 2 == pytest.approx(total_us, rel=1e-3)
        assert split["compute_time(us)"] / 2 == pytest.approx(total_us - exposed_us, rel=1e-3)
        assert waiting_us / 2 == pytest.approx(exposed_us, rel=1e-2)
        overlap = analysed.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
        assert overlap == pytest.approx(100 * result.overlap, abs=0.1)
        kinds, kernels = analysed.get_gpu_kernel_breakdown(visualize=False, num_kernels=100)
        sent_us = kernels[kernels["kernel_type"] == "COMMUNICATION"]["sum (us)"].sum()
        assert sent_us / 2 == pytest.approx(result.comm_s * 1e6, rel=1e-3)
        assert set(kinds["kernel_type"]) >= {"COMPUTATION", "COMMUNICATION"}


def test_what_cannot_be_a_trace_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for iterations in (0, -1, 1001):
        with refused(f"trace: {iterations} iterations: must be 1 to 1000; give"):
            write_trace(simulated(), tmp_path / "trace.json", iterations)
    for run in (simulated().without_spans(), run_result()):
        with refused("a result without a timeline, as files hold it: simulate the scenario again"):
            write_trace(run, tmp_path / "trace.json")
    monkeypatch.setattr("simnet.traces.timeline_trace.MAX_EVENTS", 2 * len(simulated().result.spans))
    with refused("operations in a file; write at most 2 iterations"):
        write_trace(simulated(), tmp_path / "trace.json", 3)
    assert list(tmp_path.iterdir()) == []
