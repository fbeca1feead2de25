"""Sharded steps: what they take, send and refuse."""

import pytest
from msgspec.structs import replace

from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from tests.helpers.scenario_samples import of_strategy

BLOCKS, SIDE = 8, 1024
TENSORS = [
    {"name": "head.weight", "shape": [1000, SIDE]},
    *({"name": f"blocks.{index}.weight", "shape": [SIDE, SIDE]} for index in reversed(range(BLOCKS))),
    {"name": "first.weight", "shape": [1000, SIDE]},
]
WAITS = {"calibration__compute_spread": 0.02, "calibration__host_pause": "0.5 ms"}
BLOCK_BYTES, ROOT_BYTES = 4 * SIDE * SIDE, 2 * 4 * 1000 * SIDE


def loaded(tmp_path, text, **changes) -> Scenario:
    workload = {"tensors": TENSORS, "forward": "40 ms", "backward": "80 ms", "optimizer": "8 ms"}
    return of_strategy(tmp_path, text, workload=workload, **changes)


def result_of(tmp_path, text, **changes):
    return simulate(loaded(tmp_path, text, **changes)).result


def test_full_sharding_sends_parameters_twice_and_gradients_once(tmp_path):
    part = 15 / 16 / 8 * 16  # of 16 ranks' ring, what leaves each of two nodes of 8 once, in 8ths of the ring
    once = (BLOCKS * BLOCK_BYTES + ROOT_BYTES) * part / 2
    blocks_again = BLOCKS * BLOCK_BYTES * part / 2
    assert result_of(tmp_path, "fsdp").nic_bytes_per_node == pytest.approx(2 * once + blocks_again, rel=0.01)
    assert result_of(tmp_path, "fsdp:reshard_after_forward=false").nic_bytes_per_node == pytest.approx(
        2 * once, rel=0.01
    )


def test_hybrid_sharding_sends_what_a_hierarchical_all_reduce_sends_and_one_bit_a_32nd_of_it(tmp_path):
    ddp, dense = result_of(tmp_path, "all_reduce:algorithm=hierarchical"), result_of(tmp_path, "hsdp")
    assert dense.nic_bytes_per_node == pytest.approx(ddp.nic_bytes_per_node, rel=0.01)
    one_bit = result_of(tmp_path, "hsdp:replicas=binsgdm")
    assert dense.nic_bytes_per_node / one_bit.nic_bytes_per_node == pytest.approx(32, rel=0.01)
    assert dense.breakdown.optimizer_s == pytest.approx(0.008 / 8), "the optimizer moves its shard alone"
    links = {"bandwidth": "1000000 GB/s", "latency": "0 s"}
    free = {"cluster__intra_node": links, "cluster__inter_node": links, "calibration__memory_bandwidth": "1e9 GB/s"}
    assert result_of(tmp_path, "fsdp", **free).iteration_s == pytest.approx(0.12 + 0.008 / 16, rel=1e-3)


@pytest.mark.parametrize("text", ["fsdp", "hsdp"])
def test_without_overlap_every_message_is_exposed(tmp_path, text):
    hidden, exposed = result_of(tmp_path, text), result_of(tmp_path, f"{text}:overlap=false")
    assert exposed.iteration_s > hidden.iteration_s
    assert exposed.breakdown.exposed_comm_s == pytest.approx(exposed.comm_s)
    assert exposed.nic_bytes_per_node == hidden.nic_bytes_per_node


def test_micro_batches_are_reduced_each_or_once(tmp_path):
    accumulated = {"run": {"grad_accumulation": 4}}
    each, once = (result_of(tmp_path, f"fsdp:reduce_every={which}", **accumulated) for which in ("micro_batch", "step"))
    assert each.nic_bytes_per_node / once.nic_bytes_per_node == pytest.approx((4 * 3) / (4 * 2 + 1), rel=0.1)
    in_nodes = result_of(tmp_path, "hsdp", **accumulated)
    assert in_nodes.nic_bytes_per_node == pytest.approx(result_of(tmp_path, "hsdp").nic_bytes_per_node)


@pytest.mark.parametrize("text", ["hsdp:shard_ranks=2", "fsdp:overlap=false"])
def test_all_executors_agree_where_ranks_wait_for_hosts(tmp_path, text):
    scene = loaded(tmp_path, text, cluster__num_nodes=3, cluster__ranks_per_node=4, **WAITS)
    folded = simulate(scene).result
    for fidelity in ("exact", "grouped"):
        other = simulate(replace(scene, run=replace(scene.run, fidelity=fidelity))).result
        assert other.iteration_s == pytest.approx(folded.iteration_s, rel=1e-9)
        assert other.breakdown.exposed_comm_s == pytest.approx(folded.breakdown.exposed_comm_s, rel=1e-6)


@pytest.mark.parametrize("text", ["fsdp", "hsdp", "zero2"])
def test_ranks_wait_for_the_slowest_gpu_and_for_hosts_that_pause(tmp_path, text):
    blocking = f"{text}:overlap=false"  # so that the step is a sum
    alike, waiting = result_of(tmp_path, blocking), result_of(tmp_path, blocking, **WAITS)
    slowest = 1.7662  # standard deviations, of 16: Harter 1961, Table 1
    assert waiting.breakdown.forward_s / alike.breakdown.forward_s == pytest.approx(1 + 0.02 * slowest, rel=1e-3)
    assert waiting.breakdown.optimizer_s == alike.breakdown.optimizer_s
    pauses_s = waiting.breakdown.exposed_comm_s - alike.breakdown.exposed_comm_s
    assert 0.98 * 16 * 0.0005 < pauses_s < 16 * 0.0005  # few come before the same message


def test_pauses_before_the_same_message_overlap(tmp_path):
    often = {"calibration__host_pause": "1 s"}
    alike, waiting = result_of(tmp_path, "fsdp"), result_of(tmp_path, "fsdp", **often)
    messages = 2 * (BLOCKS + 1) + BLOCKS
    longest_s = messages * 0.07
    assert waiting.iteration_s - alike.iteration_s == pytest.approx(longest_s * (1 - (1 - 1 / longest_s) ** 16))
