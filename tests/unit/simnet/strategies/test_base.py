"""What every strategy does on one rank and to the mathematics of training, and a strategy from a word of text."""

import pytest

from simnet.analysis.tune import chosen, dense_systems, systems
from simnet.core.units import Duration
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.scenario import RunSettings, Scenario, load
from simnet.engine.simulation import simulate
from simnet.strategies import DenseAllReduce
from simnet.strategies.base import strategy_from_text
from simnet.strategies.program import Compute
from simnet.workload.workload import Gradient, Workload
from tests.helpers.cli import assert_refused, run
from tests.helpers.refusals import refused
from tests.helpers.scenario_samples import pod, write
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
        asked = Scenario(strategy=strategy, workload=SMALL, cluster=cluster(num_nodes, ranks_per_node))
        result = simulate(asked).result
        assert (result.nic_bytes_per_node > 0) == (num_nodes > 1)
        if num_nodes == ranks_per_node == 1:
            assert result.comm_s == 0
            assert result.iteration_s == pytest.approx(0.125)


@pytest.mark.parametrize("name", EVERY)
def test_a_step_takes_forward_and_backward_once_for_each_micro_batch(name):
    strategy = EVERY[name][0]
    run = RunSettings(grad_accumulation=3)
    program = (
        PreparedScenario(Scenario(strategy=strategy, workload=SMALL, cluster=cluster(2, 4), run=run))
        .plan(strategy)
        .program
    )
    shares = [operation.share for operation in program.operations if isinstance(operation, Compute)]
    forward, backward, exchanged, optimizer = map(sum, zip(*shares, strict=True))
    assert forward == pytest.approx(3 * program.num_steps)
    assert backward + exchanged == pytest.approx(3 * program.num_steps)
    assert 0 < optimizer <= program.num_steps


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
        ("fsdp2", "here: 'fsdp2': unknown strategy. Did you mean 'fsdp'"),
        ("fully-shard", "here: 'fully-shard': unknown strategy. Did you mean 'fsdp'"),
        ("hybrid_shard", "here: 'hybrid_shard': unknown strategy. Did you mean 'hsdp'"),
        ("qsgd:bits", "here: 'bits': write options as key=value"),
        ("qsgd:bits=77", "here: bits: 77: must be"),
        ("qsgd:bits=9", "here: bits: 9: must be"),
        ("qsgd:bits=1", "here: bits: 1: must be"),
        ("nuqsgd:bits=8", "here: bits: 8: must be"),
        ("qsgd:bit=4", "here: unknown key 'bit'. Did you mean 'bits'?"),
        ("qsgd:coding=elias", "coded_bits: missing; coding 'elias' needs"),
        ("qsgd:coded_bits=2.0", "coded_bits: 2.0: has no effect with coding 'packed'"),
        ("top_k", "ratio: must be given once; give ratio or k"),
        ("random_k:ratio=0.1,k=4", "ratio: must be given once; give ratio or k"),
        ("top_k:k=0", "here: k: 0: must be"),
        ("top_k:ratio=0.0", "here: ratio: 0.0: must be"),
        ("power_sgd:matrix_rank=0", "here: matrix_rank: 0: must be"),
        ("atomo:budget=0.0", "here: budget: 0.0: must be"),
        ("marsit:scale=0.0", "here: scale: 0.0: must be"),
        ("marsit:sync_period=0", "here: sync_period: 0: must be"),
        ("fsdp:bucketing=fused", "sharding has parts, not buckets"),
        ("fsdp:unit_cap=0 B", "must be at least 1 B"),
        ("hsdp:replicas=all_reduce", "must be BinSGDM or a system that compresses"),
        ("hsdp:replicas=binsgd", "unknown strategy"),
        ("hsdp:replicas=byte_grad:topology=hierarchical", "not hierarchical"),
        ("hsdp:bucket_cap=1 MiB", "no effect without replicas"),
        ("hsdp:shard_ranks=0", "shard_ranks"),
        ("local_sgd:inner_steps=0", "inner_steps"),
        ("local_sgd:bucket_cap=1 MiB", "nothing is exchanged during backward"),
        ("diloco:bucketing=mg_wfbp", "weighs exchanges of every step"),
        ("diloco:inner_steps=50,fragments=7", "must divide inner_steps"),
        ("diloco:inner_steps=50,overlap_steps=50", "must be below inner_steps / fragments"),
        ("diloco:exchange_by=all_reduce", "must be a system that compresses gradients"),
        ("diloco:exchange_by=byte_grad,outer_dtype=bf16", "a system brings its own numbers"),
        ("diloco:in_node=fsdp,workers=rank", "needs workers of several ranks"),
        ("diloco:overlap_steps=-1", "overlap_steps"),
    ],
)
def test_what_is_no_strategy_is_refused(text, said):
    with refused(said, start="here: "):
        strategy_from_text(text, "here")


@pytest.mark.parametrize("word", ["ddp", "DDP"])
def test_ddp_is_all_reduce_wherever_a_strategy_is_named(word, tmp_path):
    assert strategy_from_text(f"{word}:wire_dtype=bf16", "here") == DenseAllReduce(wire_dtype="bf16")
    named = load(str(write(tmp_path / "pod.toml", pod(strategy=word, baseline={"kind": word, "algorithm": "tree"}))))
    assert (named.strategy, named.baseline) == (DenseAllReduce(), DenseAllReduce(algorithm="tree"))
    assert load(str(tmp_path / "pod.toml"), {"strategy.kind": word}).strategy == DenseAllReduce()
    assert (chosen([word]), chosen([word, "qsgd"])) == ((), chosen(["qsgd"]))


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("zero1:algorithm=tree", "strategy.algorithm: has no effect with update 'all_gather'; drop one"),
        ("zero1:param_groups=by_dimensions", "param_groups: has no effect with update 'all_gather'"),
        ("zero1:broadcast=tree", "broadcast: has no effect with update 'all_gather'"),
        ("zero1:update=broadcast,overlap_param_gather=true", "has no effect with update 'broadcast'"),
        ("zero1:update=broadcast,algorithm=rnig", "Did you mean 'ring'?"),
        ("zero1:update=gather", "strategy.update: 'gather': "),
        ("zero2:update=broadcast", "'update' belongs to kind 'zero1', not to 'zero2'"),
        ("zero2:wire_dtype=fp8", "strategy.wire_dtype: 'fp8': "),
        ("zero2:bucketing=per_tensor", "strategy.bucketing: 'per_tensor': needs the model's tensors"),
        ("fp8:dtype=int8", "strategy.dtype: 'int8'"),
        ("int8:dtype=int8", "key 'dtype' belongs to kind 'byte_grad', not to 'int8'"),
        ("int8:topology=gather", "int8 cannot have it; its topologies are"),
        ("hsdp:shard_ranks=32", "the cluster has 16 ranks; give at most 16"),
        ("hsdp:shard_ranks=3", "must be a part of a node of 8 ranks"),
        ("hsdp:shard_ranks=4,replicas=binsgdm", "a node holds one copy"),
    ],
)
def test_what_does_not_fit_itself_or_the_cluster_is_refused_in_one_sentence(tmp_path, strategy, message):
    kind, _, options = strategy.partition(":")
    words = [word for option in options.split(",") for word in ("--set", f"strategy.{option}")]
    file = write(tmp_path / "pod.toml", pod(strategy={"kind": kind}))
    assert_refused(run("simulate", file, *words), message)
