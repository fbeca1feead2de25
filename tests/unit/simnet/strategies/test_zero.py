"""ZeRO-1 and ZeRO-2: who owns which tensor, what is sent and held, and which forms are tried."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.strategies.base import form_of, variants_of
from simnet.strategies.zero import Zero1, partition
from simnet.workload.gpu_memory import ModelMemory
from simnet.workload.training_step import Tensor
from tests.helpers.refusals import refused
from tests.helpers.scenario_samples import of_strategy

SIDE, LAYERS = 1024, 12
TENSORS = [{"shape": [SIDE, SIDE], "count": LAYERS}, {"shape": [SIDE], "count": LAYERS, "backward_share": 0.0}]
TIMES = {"forward": "40 ms", "backward": "80 ms", "optimizer": "8 ms"}


def loaded(tmp_path, text, **changes) -> Scenario:
    return of_strategy(tmp_path, text, **{"workload": {"tensors": TENSORS, **TIMES}, **changes})


def result_of(tmp_path, text, **changes):
    return simulate(loaded(tmp_path, text, **changes)).result


def test_what_is_scattered_and_gathered_is_what_a_ring_all_reduces(tmp_path):
    ddp = result_of(tmp_path, "all_reduce:algorithm=ring")
    for text in ("zero1", "zero2", "zero2:overlap_param_gather=true"):
        assert result_of(tmp_path, text).nic_bytes_per_node == pytest.approx(ddp.nic_bytes_per_node)
    halved = result_of(tmp_path, "zero1:wire_dtype=bf16,gather_dtype=bf16")
    assert halved.nic_bytes_per_node == pytest.approx(ddp.nic_bytes_per_node / 2)
    apart = result_of(tmp_path, "zero1:wire_dtype=bf16")
    assert apart.nic_bytes_per_node == pytest.approx(ddp.nic_bytes_per_node * (1 / 2 + 1) / 2)
    assert (ddp.compression_ratio, halved.compression_ratio) == (1, 2)


def test_sharded_gradients_are_reduced_in_every_micro_batch(tmp_path):
    once = result_of(tmp_path, "zero2").nic_bytes_per_node
    accumulated = {"run": {"grad_accumulation": 4}}
    assert result_of(tmp_path, "zero1", **accumulated).nic_bytes_per_node == pytest.approx(once)
    assert result_of(tmp_path, "zero2", **accumulated).nic_bytes_per_node == pytest.approx(once * (4 + 1) / 2)


def test_an_infinitely_fast_network_leaves_compute_alone(tmp_path):
    links = {"bandwidth": "1000000 GB/s", "latency": "0 s"}
    free = {"cluster__intra_node": links, "cluster__inter_node": links}
    for text in ("zero1", "zero2", "zero2:overlap_param_gather=true"):
        assert result_of(tmp_path, text, **free).iteration_s == pytest.approx(0.12 + 0.008 / 16, rel=1e-3)


def test_gathers_hide_behind_the_next_forward(tmp_path):
    before, during = (result_of(tmp_path, f"zero1:overlap_param_gather={early}") for early in ("false", "true"))
    assert 0.01 < before.iteration_s - during.iteration_s < 0.04
    assert during.breakdown.forward_s == pytest.approx(before.breakdown.forward_s)


MODEL = ModelMemory(parameters=1e9, gradients=1e9, optimizer=2e9, update=1e9, activations=0.0)


@pytest.mark.parametrize(
    ("text", "optimizer_share", "gradients", "buckets"),
    [
        ("zero1", 1 / 16, 0, 1e9),  # one flat buffer of gradients
        ("zero2", 1 / 16, 1e9 / 16, 2 * 7 * 4 * SIDE * (SIDE + 1)),  # seven layers reach 25 MiB
        ("zero2:bucketing=fused,overlap=false", 1 / 16, 1e9 / 16, 4 * LAYERS * SIDE * (SIDE + 1) * 2),
        ("zero1:update=broadcast", SIDE / (LAYERS * (SIDE + 1)), 1e9, 1e9),  # beside DDP's buckets
    ],
)
def test_a_rank_holds_its_share_of_the_optimizers_state(tmp_path, text, optimizer_share, gradients, buckets):
    scene = loaded(tmp_path, text)
    prepared = PreparedScenario(scene)
    held = scene.strategy.memory(MODEL, prepared.step, prepared.topology)
    assert (held.parameters, held.gradients) == (1e9, pytest.approx(gradients))
    assert held.optimizer == pytest.approx(2e9 * optimizer_share)
    assert held.update == pytest.approx(1e9 * optimizer_share)
    assert held.buckets == pytest.approx(buckets, rel=1e-3)
    unknown = scene.strategy.memory(replace(MODEL, optimizer=None), prepared.step, prepared.topology)
    assert unknown.optimizer is None


def test_a_model_without_tensors_is_shared_out_evenly_or_refused(tmp_path):
    bare, sizes = {"num_elements": 110_000_000, **TIMES}, {"tensors": [{"bytes": "4 MB", "count": 3}], **TIMES}
    for text in ("zero1", "zero2", "zero1:update=broadcast,parameters_as_bucket_view=true"):
        assert result_of(tmp_path, text, workload=bare).breakdown.optimizer_s == pytest.approx(0.008 / 16)
    groups = "param_groups=by_dimensions"
    for options, workload, said in (
        ("", bare, "parameters_as_bucket_view: False: needs the model's tensors; "),
        (f",{groups}", bare, "param_groups: 'by_dimensions': needs the model's tensors; "),
        (f",{groups}", sizes, "param_groups: 'by_dimensions': needs the shapes of the tensors; "),
    ):
        with refused(start=f"strategy.{said}"):
            result_of(tmp_path, f"zero1:update=broadcast{options}", workload=workload)


def tensors(shapes):
    return tuple(
        Tensor(
            num_elements=float(rows * columns), backward_fraction=0.0, shape=(rows, columns) if columns > 1 else (rows,)
        )
        for rows, columns in shapes
    )


SHAPES = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), min_size=1, max_size=30)


@given(shapes=SHAPES, world_size=st.integers(1, 9), param_groups=st.sampled_from(["one", "by_dimensions"]))
def test_every_tensor_has_one_owner_and_none_owns_much_more(shapes, world_size, param_groups):
    model = tensors(shapes)
    owned = partition(model, world_size, param_groups)
    assert len(owned) == world_size
    assert sorted(tensor for of_rank in owned for group in of_rank for tensor in group) == sorted(
        tensor.num_elements for tensor in model
    )
    totals = [sum(map(sum, of_rank)) for of_rank in owned]
    assert max(totals) - min(totals) <= max(tensor.num_elements for tensor in model)


def test_the_largest_goes_first_to_the_rank_with_the_fewest_elements():
    model = tensors([(5, 1), (3, 1), (4, 2), (2, 1)])
    assert partition(model, 2, "one") == (((8.0, 2.0),), ((5.0, 3.0),))
    assert partition(model, 2, "by_dimensions") == (((8.0,), (2.0,)), ((), (5.0, 3.0)))


def test_both_ways_to_hand_out_are_tried():
    tried = [*variants_of(Zero1(wire_dtype="bf16", overlap_param_gather=True), (None,))]
    assert [form_of(setting) for setting in tried] == ["all-gather"] * 3 + ["broadcast"] * 2
    assert [setting.overlap_param_gather for setting in tried] == [False, True, False, False, False]
    assert [setting.bucketing for setting in tried] == ["ddp", "ddp", "fused", "ddp", "fused"]
    *_, broadcasts, _ = tried
    assert (broadcasts.parameters_as_bucket_view, broadcasts.algorithm, broadcasts.wire_dtype) == (True, "auto", "bf16")
    assert [*variants_of(broadcasts, (None,))] == tried[3:]
