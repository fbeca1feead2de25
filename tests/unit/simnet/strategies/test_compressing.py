"""Systems that compress gradients, simulated: both executors, bytes out of a node, dense steps, what is refused."""

import pytest
from msgspec.structs import replace

from simnet.core.units import Duration, Size
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from simnet.strategies import (
    QSGD,
    Atomo,
    DenseAllReduce,
    EFSignSGD,
    GradZip,
    Marsit,
    OneBitAdam,
    OneBitSGD,
    PowerSGD,
    QSGDInf,
    RandomK,
    SignSGD,
    Strategy,
    TernGrad,
    TopK,
)
from simnet.strategies.one_bit_adam import CHECKSUM_BYTES
from simnet.workload.workload import Gradient, Workload
from tests.helpers.refusals import refused
from tests.helpers.topologies import cluster

ROWS, COLUMNS, NUM_MATRICES = 1024, 4096, 8
MATRICES = NUM_MATRICES * ROWS * COLUMNS
ELEMENTS = MATRICES + NUM_MATRICES * COLUMNS
WORKLOAD = Workload(
    tensors=(
        Gradient(shape=(ROWS, COLUMNS), count=NUM_MATRICES),
        Gradient(shape=(COLUMNS,), count=NUM_MATRICES, backward_share=0.0),
    ),
    forward_s=Duration(0.04),
    backward_s=Duration(0.08),
    optimizer_s=Duration(0.005),
)


def scenario(strategy: Strategy, num_nodes=8, ranks_per_node=8, **more) -> Scenario:
    return Scenario(strategy=strategy, **{"workload": WORKLOAD, "cluster": cluster(num_nodes, ranks_per_node), **more})


FACTORS = 4 * 4 * NUM_MATRICES * (ROWS + COLUMNS)
VECTORS = 4 * NUM_MATRICES * COLUMNS
SIGNS = ELEMENTS / 8


@pytest.mark.parametrize(
    ("strategy", "payload_bytes"),
    [
        (QSGD(), ELEMENTS / 2 + 4 * (ELEMENTS / 8192)),
        (QSGDInf(bits=2, block_size=4096), ELEMENTS / 4 + 4 * (ELEMENTS / 4096)),
        (QSGD(coding="elias", coded_bits=2.5), ELEMENTS * 2.5 / 8 + 8 * ELEMENTS / 8192 + 8),
        (EFSignSGD(), SIGNS + 4 * 2 * NUM_MATRICES),
        (EFSignSGD(scale_per="bucket"), SIGNS + 4),
        (OneBitSGD(), SIGNS + 8 * (COLUMNS + 1) * NUM_MATRICES),
        (TernGrad(), ELEMENTS / 5 + 4 * 2 * NUM_MATRICES),
        (TopK(ratio=0.01), 8 * 0.01 * ELEMENTS),
        (Atomo(budget=3.0), 4 * (3 * NUM_MATRICES * (ROWS + COLUMNS) + NUM_MATRICES) + VECTORS + 8),
    ],
    ids=str,
)
def test_a_gathered_payload_leaves_every_node_once_for_each_other_rank(strategy, payload_bytes):
    """One bucket; a ring hands on P - 1 payloads over the one link out of a node."""
    sent_bytes = simulate(scenario(replace(strategy, bucketing="fused"))).result.nic_bytes_per_node
    assert sent_bytes == pytest.approx(63 * payload_bytes, rel=1e-5)


@pytest.mark.parametrize(
    ("strategy", "nic_bytes"),
    [
        (PowerSGD(), 2 * 63 / 64 * (FACTORS + VECTORS)),
        (GradZip(), 2 * 63 / 64 * (FACTORS / 2 + VECTORS)),
        (RandomK(ratio=0.01), 2 * 63 / 64 * 4 * 0.01 * ELEMENTS),
        (RandomK(ratio=0.01, algorithm="hierarchical"), 2 * 7 / 8 * 4 * 0.01 * ELEMENTS),
        (SignSGD(), 7 / 8 * 8 * (SIGNS + 64) + 63 / 64 * (SIGNS + 64)),
        (Marsit(), 2 * 63 / 64 * SIGNS + 63 * 4),
        (Marsit(scale=0.1, torus=True), 2 * 7 / 8 * SIGNS + 63 * 4),
    ],
    ids=str,
)
def test_what_is_added_up_or_merged_leaves_a_node_once_each_way(strategy, nic_bytes):
    sent_bytes = simulate(scenario(replace(strategy, bucketing="fused"))).result.nic_bytes_per_node
    assert sent_bytes == pytest.approx(nic_bytes, rel=1e-5)


def test_marsit_counts_its_steps_of_full_precision_end_to_end():
    signs = simulate(scenario(Marsit(sync_period=10), run=RunSettings(steps=1005))).result
    dense = simulate(scenario(DenseAllReduce())).result
    assert signs.dense_iteration_s == dense.iteration_s
    assert signs.total_s == pytest.approx(905 * signs.iteration_s + 100 * dense.iteration_s)
    never = simulate(scenario(Marsit(sync_period=None), run=RunSettings(steps=1000))).result
    assert never.total_s == pytest.approx(1000 * never.iteration_s)


def test_the_second_all_reduce_of_power_sgd_waits_for_the_first():
    """With next to no bytes a bucket costs twice the latency of an all-reduce, and of GradZip once."""
    small = replace(WORKLOAD, tensors=(Gradient(shape=(8, 8)),), forward_s=Duration(1e-9), backward_s=Duration(1e-9))
    twice, once = (
        simulate(scenario(strategy, workload=replace(small, optimizer_s=Duration(0)))).result.iteration_s
        for strategy in (PowerSGD(matrix_rank=1), GradZip(matrix_rank=1))
    )
    assert twice == pytest.approx(2 * once, rel=0.01)


@pytest.mark.parametrize("strategy", [EFSignSGD(), OneBitSGD(), TernGrad(), PowerSGD(), GradZip(), Atomo()], ids=str)
def test_without_shapes_a_payload_that_depends_on_them_is_refused(strategy):
    workload = replace(WORKLOAD, tensors=(), gradient_bytes=Size(4 * ELEMENTS))
    with refused("needs the shapes of the tensors; give workload.gradients"):
        simulate(scenario(strategy, workload=workload))


def test_ranks_of_one_bit_adam_may_agree_on_a_step_in_a_gather_of_flags():
    with_flags, without = (simulate(scenario(OneBitAdam(finite_check=agree))).result for agree in (True, False))
    flags_bytes = 1 + 2 * NUM_MATRICES + CHECKSUM_BYTES
    assert with_flags.nic_bytes_per_node - without.nic_bytes_per_node == pytest.approx(63 * flags_bytes)
    assert with_flags.iteration_s > without.iteration_s
