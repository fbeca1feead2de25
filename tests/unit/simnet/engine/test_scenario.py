"""Scenario files to scenarios."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from simnet.cluster.hardware import Calibration, Cluster, Fabric, Link, LinkCalibration, SlowNode
from simnet.cluster.kernel_times import KernelTime
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.scenario import RunSettings, Scenario, build, check_part, load, load_experiment, to_dict
from simnet.strategies import BinSGDM, DenseAllReduce, OneBitAdam, PowerSGD
from simnet.workload.workload import ComputeTime, Gradient, Workload
from tests.helpers.refusals import refused
from tests.helpers.scenario_samples import SWEEP, pod, write

TEXT = st.text(max_size=8)
COUNT = st.integers(1, 1000)
FRACTION = st.floats(0.01, 1.0)
DURATION = st.floats(0, 1e6).map(Duration)
RATE = st.floats(1, 1e15).map(Bandwidth)
SIZE = st.floats(1, 1e12).map(Size)
LINK = st.builds(Link, bytes_per_s=RATE, alpha_s=DURATION, source=TEXT)
CURVE = st.lists(SIZE, min_size=1, max_size=4, unique=True).flatmap(
    lambda sizes: st.tuples(*(st.tuples(st.just(size), FRACTION) for size in sorted(sizes)))
)
LINK_CALIBRATION = st.builds(LinkCalibration, efficiency=FRACTION | CURVE, alpha_s=st.none() | DURATION, source=TEXT)
CLUSTER = st.builds(
    Cluster,
    name=TEXT,
    num_nodes=COUNT,
    ranks_per_node=COUNT,
    intra_node=LINK,
    inter_node=LINK,
    fabric=st.none() | st.builds(Fabric, nodes_per_leaf=COUNT, oversubscription=st.floats(1, 1000)),
    slow_nodes=st.just(()) | st.tuples(st.builds(SlowNode, node=st.just(0), nic_slowdown=st.floats(1, 10))),
)
CALIBRATION = st.builds(
    Calibration,
    kind=st.sampled_from(["measured", "ideal"]),
    intra_node=LINK_CALIBRATION,
    inter_node=LINK_CALIBRATION,
    memory_bytes_per_s=st.none() | st.floats(1e6, 1e15).map(Bandwidth),
    kernels=st.dictionaries(TEXT, st.builds(KernelTime, launch_s=DURATION, s_per_element=DURATION), max_size=2),
)
GRADIENT = st.builds(Gradient, num_elements=COUNT, count=COUNT, backward_share=st.floats(0, 10)) | st.builds(
    Gradient, num_bytes=SIZE, name=TEXT
)
COMPUTE = st.builds(ComputeTime, gpu=TEXT, precision=TEXT, batch=COUNT, step_s=DURATION, source=TEXT)
WORKLOAD = st.builds(
    Workload,
    tensors=st.lists(GRADIENT, max_size=3).map(tuple),
    gradient_bytes=st.none() | SIZE,
    forward_s=st.none() | DURATION,
    compute=st.lists(COMPUTE, max_size=2).map(tuple),
)
STRATEGY = st.one_of(
    st.builds(DenseAllReduce, bucket_cap=st.none() | SIZE, wire_dtype=st.sampled_from([None, "fp16"])),
    st.builds(BinSGDM, intra_node_dtype=st.sampled_from([None, "fp16", "one_bit"]), overlap=st.booleans()),
    st.builds(OneBitAdam, dense_steps=st.integers(0, 10)),
)
SCENARIO = st.builds(
    Scenario,
    cluster=CLUSTER,
    workload=WORKLOAD,
    strategy=STRATEGY,
    baseline=st.none() | STRATEGY,
    calibration=CALIBRATION,
    run=st.builds(RunSettings, steps=st.integers(10, 1000)),
    name=TEXT,
    question=TEXT,
)


@given(SCENARIO)
def test_a_scenario_is_read_back_from_its_file_form(scenario: Scenario) -> None:
    plain = to_dict(scenario)
    assert build(plain) == scenario
    assert build(json.loads(json.dumps(plain))) == scenario


EFFICIENCY = "calibration__inter_node__efficiency"
FLAT = {"kind": "binsgdm", "topology": "flat"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"workload__tensors": [{"num_elements": 1, "backward_share": math.inf}]},
            "backward_share: inf: must be finite",
        ),
        ({"cluster__num_node": 4}, "x: cluster: unknown key 'num_node'. Did you mean 'num_nodes'?"),
        ({"cluster__num_nodes": 0}, "x: cluster.num_nodes: 0: must be a whole number of at least 1"),
        ({"cluster__num_nodes": "8"}, "x: cluster.num_nodes: '8': write a whole number without quotes"),
        ({"cluster__num_nodes": True}, "x: cluster.num_nodes: True: write a whole number without quotes"),
        ({"cluster__num_nodes": 10**40}, f"{10**40}: must be a whole number of at least 1, at most 1000000000"),
        ({"cluster__num_nodes": 999_999}, "x: cluster.num_nodes: 999999 x 8 ranks: at most 1000000 ranks"),
        ({"cluster__inter_node__bandwidth": "25"}, "x: cluster.inter_node.bandwidth: '25': write a number and a unit"),
        (
            {"cluster__inter_node__bandwidth": "0 B/s"},
            "x: cluster.inter_node.bandwidth: '0 B/s': must be at least 1 B/s",
        ),
        ({"cluster__inter_node": 3}, "x: cluster.inter_node: 3: write a table with the keys bandwidth, latency"),
        ({"cluster__inter_node": {"latency": "1 us"}}, 'cluster.inter_node.bandwidth: missing; add bandwidth = "25 Gb'),
        ({"cluster__slow_nodes": [{"node": 7}]}, "x: cluster.slow_nodes: node 7: the cluster has nodes 0 to 1"),
        ({"cluster__slow_nodes": [{}]}, "x: cluster.slow_nodes.0.node: missing; add node = 8"),
        ({"cluster__slow_nodes": 3}, "x: cluster.slow_nodes: 3: write a list in brackets"),
        (
            {"cluster__slow_nodes": [{"kind": "flapping", "node": 0}]},
            "x: cluster.slow_nodes.0.kind: 'flapping': unknown. Known: slow_node.",
        ),
        ({"cluster__gpu": 3}, "x: cluster.gpu: 3: write text in quotes"),
        ({"cluster": {"use": 3}}, "x: cluster: 3: write the name of a cluster in quotes, or a table"),
        ({"cluster": "nonesuch"}, "x: cluster: 'nonesuch': unknown cluster."),
        ({"cluster": "./nonesuch.toml"}, "x: cluster: './nonesuch.toml': no such file"),
        ({"cluster__faults": [3]}, "x: cluster.faults.0: 3: write a table with the keys kind"),
        ({"cluster__faults": [{}]}, "x: cluster.faults.0.kind: missing; add kind = one of "),
        ({"calibration__backward_slowdown": math.nan}, "x: calibration.backward_slowdown: nan: must be finite"),
        ({"calibration__backward_slowdown": "2"}, "calibration.backward_slowdown: '2': write a number without quotes"),
        ({EFFICIENCY: [["1 B", 2]]}, "efficiency.0.1: 2: must be a number of at least 1e-06, at most 1"),
        ({EFFICIENCY: [["1 B"]]}, "efficiency.0: ['1 B']: write a list of 2 values"),
        ({EFFICIENCY: []}, "x: calibration.inter_node.efficiency: message sizes must be"),
        (
            {"calibration__kernels": {"a.b": {}}},
            "calibration.kernels.a.b.time_per_element: missing; add time_per_element",
        ),
        ({"calibration__kind": "guess"}, "x: calibration.kind: 'guess': unknown. Known: derived, estimate, ideal"),
        ({"workload__dtype": "fp8"}, "x: workload.dtype: 'fp8': unknown. Did you mean 'fp32'?"),
        ({"workload__dtype": 3}, "x: workload.dtype: 3: write a name in quotes"),
        (
            {"workload__tensors": [{"count": 2}]},
            "workload.tensors.0.num_elements: must be given once; give one of num_elements, bytes and shape",
        ),
        ({"strategy": "binsgd"}, "x: strategy.kind: 'binsgd': unknown strategy. Did you mean 'binsgdm'?"),
        ({"strategy": {}}, "x: strategy.kind: missing; add kind = one of all_reduce, atomo, binsgdm, "),
        ({"strategy": 3}, "x: strategy: 3: write a name in quotes, or a table with the keys kind"),
        ({"strategy__overlap": "no"}, "x: strategy.overlap: 'no': write true or false, without quotes"),
        ({"strategy": FLAT | {"kind": "all_reduce"}}, "key 'topology' belongs to kind 'binsgdm', not"),
        ({"strategy": FLAT | {"average": "gradients"}}, "average: gradients are averaged with topology 'hierarchical'"),
        ({"baseline": ["x"]}, "x: baseline: ['x']: write a name in quotes, or a table with the keys kind"),
        ({"strategies": 1}, "x: unknown key 'strategies'. Did you mean 'strategy'?"),
        ({"question": 3}, "x: question: 3: write text in quotes"),
        ({"run__global_batch": 1000}, "1000: must be a multiple of 16 ranks x 16 samples = 256; change it, workload"),
        ({"run__global_batch": 128}, "x: run.global_batch: 128: must be a multiple of 16 ranks x 16 samples = 256"),
        ({"run__global_batch": 256 * 10_001}, "10001 micro-batches of 16 ranks x 16 samples: at most 10000; raise wor"),
        ({"run__global_batch": 0}, "x: run.global_batch: 0: must be a whole number of at least 1"),
        ({"run__global_batch": "512"}, "x: run.global_batch: '512': write a whole number without quotes"),
        (
            {"run__global_batch": 256, "run__grad_accumulation": 1},
            "x: run.grad_accumulation: 1: follows from global_batch = 256; drop one of the two",
        ),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(changes: dict[str, Any], message: str) -> None:
    with refused(message):
        build(pod(workload__batch_per_rank=16, **changes), "x")


def test_a_whole_number_may_be_written_with_an_exponent_or_a_point(tmp_path: Path) -> None:
    file = tmp_path / "pod.toml"
    file.write_text(write(file, pod()).read_text().replace("110000000", "1.5e9"))
    changes = {"cluster.num_nodes": 4.0, "strategy": {"kind": "power_sgd", "matrix_rank": 2.0}}
    scenario = load(str(file), changes)
    assert (scenario.workload.num_elements, scenario.cluster.num_nodes) == (1_500_000_000, 4)
    assert scenario.strategy == PowerSGD(matrix_rank=2)
    assert type(scenario.workload.num_elements) is int


def test_a_scenario_without_its_global_batch_keeps_its_accumulation_on_other_ranks() -> None:
    scenario = build(pod(workload__batch_per_rank=16, run__global_batch=2048)).without_global_batch()
    other = replace(scenario, cluster=replace(scenario.cluster, num_nodes=3))
    assert (other.run.global_batch, other.grad_accumulation) == (None, 8)


def test_a_result_of_simulate_is_a_scenario_again_and_those_of_a_sweep_are_none(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    scenario = build(pod(name="pod"))
    for data in ({"scenario": to_dict(scenario), "iteration_s": 1.0}, to_dict(scenario)):
        path.write_text(json.dumps(data))
        assert load(str(path)) == scenario
    path.write_text(json.dumps({"format": 1, "axes": [], "points": []}))
    with refused("result.json: results of a sweep, not ", ": simnet report "):
        load(str(path))


@pytest.fixture
def file(tmp_path: Path) -> str:
    write(tmp_path / "wide.toml", pod()["cluster"])
    return str(write(tmp_path / "pod.toml", pod(cluster="./wide.toml")))


SLOW = {"cluster.slow_nodes": [{"node": 1}]}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"cluster.num_node": 4}, "--set: cluster: unknown key 'num_node'. Did you mean 'num_nodes'?"),
        ({"cluster.num_nodes": 0}, "--set: cluster.num_nodes: 0: must be"),
        ({"cluster.num_nodes.x": 4}, "--set: cluster.num_nodes.x: unknown key 'x': 2 there has no such key"),
        ({"cluster.slow_nodes.0.node": 1}, "--set: cluster.slow_nodes: {'0': {'node': 1}}: write a list"),
        ({"cluster.slow_nodes": [], "cluster.slow_nodes.0.node": 4}, "unknown key '0': a list of 0: there is no item"),
        (SLOW | {"cluster.slow_nodes.00.node": 0}, "unknown key '00': a list of 1"),
        (SLOW | {"cluster.slow_nodes.٠.node": 0}, "unknown key '٠': a list of 1"),
        (
            SLOW | {"cluster.slow_nodes.1.node": 0},
            "unknown key '1': a list of 1: write an index from 0 to 0, or set the whole list",
        ),
        ({"cluster.use": "./wide.toml"}, "cluster.use: './wide.toml': a cluster is chosen by the key 'cluster'"),
        ({"cluster": "./wide.tom"}, "--set: cluster: './wide.tom': no such file"),
        ({"nonesuch": 4}, "--set: unknown key 'nonesuch'."),
        ({"sweep": 4}, "--set: unknown key 'sweep'."),
        (
            {"strategy": FLAT, "strategy.kind": "all_reduce"},
            "--set: strategy: key 'topology' belongs to kind 'binsgdm', not to 'all_reduce'; drop it",
        ),
    ],
)
def test_a_wrong_override_is_told_apart_from_the_file(file: str, overrides: dict[str, object], message: str) -> None:
    with refused(message):
        load(file, overrides)


def test_a_wrong_value_is_blamed_on_the_file_that_has_it(file: str, tmp_path: Path) -> None:
    check_part("clusters", str(tmp_path / "wide.toml"))
    with refused("pod.toml: unknown key 'question'"):
        check_part("clusters", file)
    write(tmp_path / "wide.toml", {**pod()["cluster"], "num_nodes": 0})
    with refused(start=f"{tmp_path}/wide.toml: cluster.num_nodes: 0: "):
        load(file)
    for changes, said in (
        ({"cluster": {"use": "./wide.toml", "num_nodes": -1}}, "cluster.num_nodes: -1: "),
        ({"sweeps": {}}, "unknown key 'sweeps'. Did you mean 'sweep'?"),
    ):
        with refused(start=f"{tmp_path}/pod.toml: {said}"):
            load(str(write(tmp_path / "pod.toml", pod(**changes))))
    experiment = load_experiment(str(write(tmp_path / "pod.toml", pod(sweep={"cluster.num_nodes": [0]}))))
    with refused("pod.toml: sweep: cluster.num_nodes: 0: must be"):
        experiment.at({"cluster.num_nodes": 0})


def test_a_gradients_file_is_looked_for_beside_the_file_that_names_it_and_axes_come_in_its_order(
    tmp_path: Path,
) -> None:
    gradients = {"gradients": "./mine.json", "forward": "1 s", "backward": "1 s"}
    path = str(write(tmp_path / "pod.toml", pod(workload=gradients, sweep=SWEEP)))
    assert load(path).workload.gradients == str(tmp_path / "mine.json")
    experiment = load_experiment(path)
    assert [axis.key for axis in experiment.axes] == list(SWEEP)
    assert (experiment.name, experiment.question) == ("pod", "From which bandwidth on?")
    assert "sweep" not in experiment.resolved
