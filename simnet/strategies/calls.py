"""What switches a strategy on in a training script: calls of binsgdm and PyTorch, or flags of the field's frameworks.

Lines of Python that go on from a `model`, a rate `lr` and, where one is named, an `optimizer`.
tests/contract/test_calls.py runs them, records the step, and finds the simulated one.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from simnet.core.units import Size
from simnet.strategies.all_reduce import HIERARCHICAL, DenseAllReduce
from simnet.strategies.base import Strategy
from simnet.strategies.binsgdm import BinSGDM
from simnet.strategies.compressing import CompressingStrategy
from simnet.strategies.compressors import Fp8AllReduce, Int8AllReduce
from simnet.strategies.fsdp import FullShard, HybridShard, ShardedStrategy
from simnet.strategies.local_steps import DiLoCo, LocalSGD
from simnet.strategies.one_bit_adam import OneBitAdam
from simnet.strategies.zero import ShardedUpdate, Zero1

MIB = 2**20
ONE_BUCKET_MB = 100_000
"""A cap that no model reaches, so that all gradients are one bucket."""
NOT_OPTIONS = {"topology", "intra_node_dtype", "algorithm", "coded_bits", "warmup_steps", *Strategy.__struct_fields__}
"""Of a strategy, but not of its system in binsgdm."""
TORCH_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
EXCHANGES = {"byte_grad": "int8", "ef_sign_sgd": "one_bit"}
"""Exchanges of binsgdm.DiLoCo by the system that they compress with."""


def calls(strategy: Strategy) -> tuple[str, ...]:
    """Return what switches a strategy on, a line each; nothing of a recorded step or of another package's strategy."""
    for kind, made in _CALLS.items():
        if isinstance(strategy, kind):
            return tuple(made(strategy))
    return ()


def _call(name: str, *given: str, **options: object) -> str:
    """Return a call as text; options that are None are left out."""
    named = [f"{key}={value!r}" for key, value in options.items() if value is not None]
    return f"{name}({', '.join([*given, *named])})"


def _mib(cap: Size | None) -> float | int | None:
    if cap is None:
        return None
    return int(cap / MIB) if cap % MIB == 0 else cap / MIB


def _cap(strategy: Strategy) -> float | int | None:
    """Return the cap of buckets [MiB]; None where it is DDP's default."""
    return ONE_BUCKET_MB if strategy.bucketing == "fused" else _mib(strategy.bucket_cap)


def _ddp(strategy: Strategy) -> str:
    return "model = " + _call("DistributedDataParallel", "model", bucket_cap_mb=_cap(strategy))


def _dense(strategy: DenseAllReduce) -> Iterator[str]:
    yield _ddp(strategy)
    if strategy.algorithm == HIERARCHICAL:
        dtypes = {"dtype": strategy.wire_dtype, "intra_node_dtype": strategy.wire_dtype}
        yield _call("binsgdm.compress_gradients", "model", "'dense'", topology="hierarchical", **dtypes)
    elif strategy.wire_dtype in {"bf16", "fp16"}:
        yield f"model.register_comm_hook(None, default_hooks.{strategy.wire_dtype}_compress_hook)"


def _binsgdm(strategy: BinSGDM) -> Iterator[str]:
    rounding = None if strategy.rounding == "shaped" else strategy.rounding
    yield "model = DistributedDataParallel(model)"
    yield "optimizer = " + _call("binsgdm.BinSGDM", "model.parameters()", "lr=lr", rounding=rounding)
    yield _call(
        "binsgdm.attach",
        "optimizer",
        "model",
        topology=None if strategy.topology == "hierarchical" else strategy.topology,
        average=None if strategy.average == "updates" else strategy.average,
        intra_node_dtype=strategy.intra_node_dtype,
        overlap=strategy.overlap or None,
        bucket_cap_mb=_cap(strategy),
    )


def _one_bit_adam(strategy: OneBitAdam) -> Iterator[str]:
    yield "model = DistributedDataParallel(model)"
    yield "optimizer = " + _call("binsgdm.OneBitAdam", "model.parameters()", "lr=lr", topology=strategy.topology)
    yield "binsgdm.attach_one_bit_adam(optimizer, model)"


def _options(strategy: CompressingStrategy) -> Mapping[str, Any]:
    """Return the options of a system that are not its defaults."""
    fields, defaults = strategy.__struct_fields__, type(strategy).__struct_defaults__
    return {
        name: getattr(strategy, name)
        for name, default in zip(fields[-len(defaults) :], defaults, strict=True)
        if name not in NOT_OPTIONS and getattr(strategy, name) != default
    }


def _compressing(strategy: CompressingStrategy) -> Iterator[str]:
    options, system, topology = dict(_options(strategy)), strategy.kind, strategy.topology
    if isinstance(strategy, Int8AllReduce | Fp8AllReduce):
        system, topology = "byte_grad", "scatter_reduce"
    if isinstance(strategy, Fp8AllReduce):
        options["dtype"] = strategy.dtype
    yield _ddp(strategy)
    yield _call(
        "binsgdm.compress_gradients",
        "model",
        repr(system),
        topology=topology,
        intra_node_dtype=strategy.intra_node_dtype,
        **options,
    )


def _sharded(strategy: ShardedStrategy) -> Iterator[str]:
    yield from _shards(strategy, "mesh=mesh" if isinstance(strategy, HybridShard) else "")


def _shards(strategy: ShardedStrategy, mesh: str) -> Iterator[str]:
    """Yield what shards blocks and root; torch keeps the root after forward by default."""
    given = [mesh] if mesh else []
    if strategy.gather_dtype or strategy.reduce_dtype:
        dtypes = {"param_dtype": strategy.gather_dtype, "reduce_dtype": strategy.reduce_dtype}
        named = [f"{key}={TORCH_DTYPES[dtype]}" for key, dtype in dtypes.items() if dtype in TORCH_DTYPES]
        yield f"policy = MixedPrecisionPolicy({', '.join(named)})"
        given.append("mp_policy=policy")
    if not strategy.reshard_after_forward:
        given.append("reshard_after_forward=False")
    yield f"for part in (*model.blocks, model): fully_shard({', '.join(['part', *given])})"


def _hybrid(strategy: HybridShard) -> Iterator[str]:
    yield "mesh = init_device_mesh(device, (nodes, ranks_per_node), mesh_dim_names=('node', 'local'))"
    if not strategy.replicas:
        yield from _sharded(strategy)
        return
    yield from _shards(strategy, "mesh=mesh['local']")
    system, _, options = strategy.replicas.partition(":")
    if system == "binsgdm":
        yield "optimizer = binsgdm.BinSGDM(model.parameters(), lr=lr)"
        yield _call("binsgdm.attach_fsdp", "optimizer", "mesh", bucket_cap_mb=_cap(strategy))
        return
    given = [f"{key}={value!r}" for key, _, value in (one.partition("=") for one in options.split(",") if one)]
    yield _call("binsgdm.compress_replicas", "optimizer", "mesh", repr(system), *given, bucket_cap_mb=_cap(strategy))


def _zero(strategy: ShardedUpdate) -> Iterator[str]:
    if isinstance(strategy, Zero1) and strategy.update == "broadcast":
        yield _ddp(strategy)
        if strategy.wire_dtype in {"bf16", "fp16"}:
            yield f"model.register_comm_hook(None, default_hooks.{strategy.wire_dtype}_compress_hook)"
        whole = strategy.parameters_as_bucket_view or None
        given = ("model.parameters()", "torch.optim.AdamW", "lr=lr")
        yield "optimizer = " + _call("ZeroRedundancyOptimizer", *given, parameters_as_bucket_view=whole)
        return
    stage = 1 if isinstance(strategy, Zero1) else 2
    early = " --overlap-param-gather" if strategy.overlap_param_gather else ""
    overlap = " --overlap-grad-reduce" if strategy.overlap else ""
    if stage == 1:
        yield f"# Megatron-LM: --use-distributed-optimizer{overlap}{early}"
    else:
        yield f'# DeepSpeed: "zero_optimization": {{"stage": 2, "overlap_comm": {str(strategy.overlap).lower()}}}'


def _local_sgd(strategy: LocalSGD) -> Iterator[str]:
    dtype = None if strategy.wire_dtype == "fp32" else strategy.wire_dtype
    yield "optimizer = " + _call("binsgdm.LocalSGD", "optimizer", inner_steps=strategy.inner_steps, wire_dtype=dtype)


def _diloco(strategy: DiLoCo) -> Iterator[str]:
    if strategy.workers == "node" and strategy.in_node == "ddp":
        yield "node, _ = dist.new_subgroups(group_size=ranks_per_node)"
        yield "model = DistributedDataParallel(model, process_group=node)"
    elif strategy.workers == "node":
        yield "mesh = init_device_mesh(device, (nodes, ranks_per_node), mesh_dim_names=('node', 'local'))"
        yield from _shards(FullShard(), "mesh=mesh['local']")
    system = strategy.exchange_by.partition(":")[0]
    yield "optimizer = " + _call(
        "binsgdm.DiLoCo",
        "optimizer",
        inner_steps=strategy.inner_steps,
        exchange=EXCHANGES.get(system, system) if system else strategy.outer_dtype,
        workers=strategy.workers if strategy.workers == "node" else None,
        fragments=strategy.fragments if strategy.fragments > 1 else None,
        overlap_steps=strategy.overlap_steps or None,
    )


_CALLS: dict[type[Strategy], Any] = {
    DenseAllReduce: _dense,
    BinSGDM: _binsgdm,
    OneBitAdam: _one_bit_adam,
    CompressingStrategy: _compressing,
    HybridShard: _hybrid,
    FullShard: _sharded,
    ShardedUpdate: _zero,
    LocalSGD: _local_sgd,
    DiLoCo: _diloco,
}
