"""What every strategy does on one rank and to the mathematics of training, and a strategy from a word of text."""

import pytest

from simnet.analysis.tune import dense_systems, systems
from simnet.core.errors import SimnetError
from simnet.core.units import Duration
from simnet.engine.scenario import Scenario
from simnet.engine.simulation import simulate
from simnet.strategies.base import strategy_from_text
from simnet.workload.workload import Gradient, Workload
from tests.helpers.topologies import cluster

EVERY = {**systems(), **dense_systems("fp32")}
SMALL = Workload(
    tensors=tuple(Gradient(shape=(64, 64), name=f"layers.{index}.weight") for index in range(6)),
    forward_s=Duration(0.04),
    backward_s=Duration(0.08),
    optimizer_s=Duration(0.005),
)


@pytest.mark.parametrize("name", EVERY)
def test_one_rank_sends_nothing_and_nodes_of_one_rank_do(name):
    strategy = EVERY[name][0]
    for num_nodes, ranks_per_node in ((1, 1), (1, 8), (5, 1)):
        given = Scenario(strategy=strategy, workload=SMALL, cluster=cluster(num_nodes, ranks_per_node))
        result = simulate(given).result
        assert (result.nic_bytes_per_node > 0) == (num_nodes > 1)
        if num_nodes == ranks_per_node == 1:
            assert result.comm_s == 0
            assert result.iteration_s == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("text", "mathematics"),
    [
        ("all_reduce", "same"),
        ("all_reduce:wire_dtype=bf16", "rounding"),
        ("byte_grad", "rounding"),
        ("int8", "rounding"),
        ("fp8", "rounding"),
        ("binsgdm", "compression"),
        ("power_sgd", "compression"),
        ("zero1", "same"),
        ("zero2", "same"),
        ("zero1:wire_dtype=bf16", "rounding"),
        ("zero2:gather_dtype=fp16", "rounding"),
        ("fsdp", "same"),
        ("fsdp:gather_dtype=bf16", "rounding"),
        ("hsdp:replicas=byte_grad", "rounding"),
        ("hsdp:replicas=binsgdm", "compression"),
    ],
)
def test_what_a_strategy_does_to_the_mathematics(text, mathematics):
    assert strategy_from_text(text, "strategy").mathematics == mathematics


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("qsdg", "here: 'qsdg': unknown strategy. Did you mean 'qsgd'?"),
        ("qsgd:bits", "here: 'bits': write options as key=value"),
        ("qsgd:bits=77", "here: bits: 77: must be"),
        ("qsgd:bit=4", "here: unknown key 'bit'. Did you mean 'bits'?"),
    ],
)
def test_what_is_no_strategy_is_refused(text, said):
    with pytest.raises(SimnetError) as caught:
        strategy_from_text(text, "here")
    assert str(caught.value).startswith(said)
