"""Steps that workers take alone: what a period takes, sends and refuses."""

import pytest
from msgspec.structs import replace

from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from tests.helpers.refusals import refused
from tests.helpers.scenario_samples import of_strategy

SIDE, BLOCKS = 1024, 8
TENSORS = [
    {"name": "head.weight", "shape": [1000, SIDE]},
    *({"name": f"blocks.{index}.weight", "shape": [SIDE, SIDE]} for index in reversed(range(BLOCKS))),
]
MODEL_BYTES = 4 * (1000 * SIDE + BLOCKS * SIDE * SIDE)
FREE = {"bandwidth": "1000000 GB/s", "latency": "0 s"}


def loaded(tmp_path, text, **changes) -> Scenario:
    workload = {"tensors": TENSORS, "forward": "40 ms", "backward": "80 ms", "optimizer": "8 ms"}
    return of_strategy(tmp_path, text, workload=workload, calibration={"memory_bandwidth": "1e9 GB/s"}, **changes)


def result_of(tmp_path, text, **changes):
    return simulate(loaded(tmp_path, text, **changes)).result


@pytest.mark.parametrize("inner_steps", [1, 2, 50, 500])
def test_an_exchange_is_shared_out_over_its_period(tmp_path, inner_steps):
    every = result_of(tmp_path, "local_sgd:inner_steps=1")
    result = result_of(tmp_path, f"local_sgd:inner_steps={inner_steps}")
    exchange_s = every.iteration_s - 0.128
    assert result.iteration_s == pytest.approx(0.128 + exchange_s / inner_steps)
    assert result.nic_bytes_per_node == pytest.approx(every.nic_bytes_per_node / inner_steps)
    assert result.compression_ratio == pytest.approx(inner_steps)
    pause = None if inner_steps == 1 else pytest.approx(every.comm_s, rel=1e-6)
    assert result.longest_pause_s == pause


def test_workers_of_a_node_send_a_slice_a_rank(tmp_path):
    result = result_of(tmp_path, "diloco:inner_steps=10")
    # Of two nodes each sends half of the message twice, slice by slice.
    assert result.nic_bytes_per_node == pytest.approx(MODEL_BYTES / 10)


@pytest.mark.parametrize(
    ("by", "ratio"), [("outer_dtype=bf16", 2), ("exchange_by=int8", 4), ("exchange_by=sign_sgd", 32)]
)
def test_fewer_bits_leave_a_node(tmp_path, by, ratio):
    dense, small = result_of(tmp_path, "diloco:inner_steps=10"), result_of(tmp_path, f"diloco:inner_steps=10,{by}")
    assert dense.nic_bytes_per_node / small.nic_bytes_per_node == pytest.approx(ratio, rel=0.05)


def test_overlapped_steps_hide_the_exchange(tmp_path):
    blocking, hidden = (result_of(tmp_path, f"diloco:inner_steps=10,overlap_steps={steps}") for steps in (0, 5))
    compute_s = result_of(tmp_path, "diloco:inner_steps=10", cluster__inter_node=FREE).iteration_s
    assert blocking.iteration_s > hidden.iteration_s == pytest.approx(compute_s, rel=0.01)
    assert hidden.nic_bytes_per_node == blocking.nic_bytes_per_node
    assert hidden.longest_pause_s < blocking.longest_pause_s / 10


def test_sharded_workers_gather_and_scatter_in_the_node_and_send_as_much(tmp_path):
    ddp, fsdp = (result_of(tmp_path, f"diloco:inner_steps=10,in_node={how}") for how in ("ddp", "fsdp"))
    assert fsdp.nic_bytes_per_node == pytest.approx(ddp.nic_bytes_per_node)
    assert fsdp.breakdown.optimizer_s == pytest.approx(ddp.breakdown.optimizer_s / 8, rel=1e-3)


@pytest.mark.parametrize("text", ["local_sgd", "diloco:inner_steps=6,fragments=2,overlap_steps=2"])
def test_both_executors_agree_on_the_longest_pause_too(tmp_path, text):
    scene = loaded(tmp_path, text, cluster__num_nodes=3, cluster__ranks_per_node=4)
    exact = simulate(replace(scene, run=replace(scene.run, fidelity="exact"))).result
    folded = simulate(scene).result
    assert exact.iteration_s == pytest.approx(folded.iteration_s, rel=1e-9)
    assert exact.longest_pause_s == pytest.approx(folded.longest_pause_s, rel=1e-6)


def test_more_fragments_than_tensors_are_refused(tmp_path):
    with refused("the model has 9 tensors; give at most 9"):
        result_of(tmp_path, "diloco:inner_steps=50,fragments=10")
