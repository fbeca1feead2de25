"""What switches a strategy on in a training script: calls of binsgdm and PyTorch, or flags of the field's frameworks.

Lines of Python that go on from a `model`, Adam's rate `lr` and, where one is named, an `optimizer`; a comment where
only another framework has the strategy, or none has. tests/contract/test_calls.py runs the calls, records the step, and
finds the simulated one; flags it reads as the framework does, and finds the simulated settings.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from simnet.core.bounded_types import BYTES_PER_ELEMENT, Dtype
from simnet.core.units import Size
from simnet.strategies.base import HIERARCHICAL, DenseAllReduce, Strategy
from simnet.strategies.binsgdm import BinSGDM
from simnet.strategies.compressing import CompressingStrategy
from simnet.strategies.compressors import Fp8AllReduce, Int8AllReduce
from simnet.strategies.fsdp import FullShard, HybridShard, ShardedStrategy
from simnet.strategies.local_steps import DiLoCo, LocalSGD
from simnet.strategies.one_bit_adam import OneBitAdam
from simnet.strategies.zero import ShardedUpdate, Zero1
from simnet.workload.buckets import DDP_BUCKET_BYTES
from simnet.workload.roofline import AUTOCAST
from simnet.workload.workload import Workload

MIB = 2**20
LR_RATIO = 0.7
"""lr of BinSGDM / lr of Adam, as docs/evidence/binsgdm.md found it."""
ONE_BUCKET_MB = 100_000
"""A cap that no model reaches, so that all gradients are one bucket."""
NOT_OPTIONS = {"topology", "intra_node_dtype", "algorithm", "coded_bits", "warmup_steps", *Strategy.__struct_fields__}
"""Of a strategy, but not of its system in binsgdm."""
TORCH_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
EXCHANGES = {"byte_grad": "int8", "ef_sign_sgd": "one_bit"}
"""Exchanges of binsgdm.DiLoCo by the system that they compress with."""
MEGATRON_DTYPES: Mapping[tuple[Dtype, Dtype], str] = {
    ("fp32", "fp32"): "",
    ("fp32", "bf16"): "--bf16",
    ("bf16", "bf16"): "--bf16 --grad-reduce-in-bf16",
    ("fp16", "fp16"): "--fp16",
    ("fp32", "fp16"): "--fp16 --accumulate-allreduce-grads-in-fp32",
}
"""Flags by the formats in which gradients are reduced and parameters gathered.

Source: Megatron-LM, megatron/training/arguments.py (`validate_args`); megatron-core 0.16.1,
distributed_data_parallel.py (`grad_dtype`, `bucket_size`).
"""
ANY_WORKLOAD = Workload()
PASTED, FLAGS, NO_CALL = range(3)
"""What a strategy asks of a PyTorch script: lines to paste, another framework, or what none gives."""
NO_FLAG = "# No flag gives this: "
"""How a line begins that says what no framework does."""


def with_bucket_views(lines: Iterable[str]) -> tuple[str, ...]:
    """Return calls whose gradients are views of DDP's buckets."""
    wrapped = "DistributedDataParallel(model"
    return tuple(line.replace(wrapped, f"{wrapped}, gradient_as_bucket_view=True") for line in lines)


def calls(strategy: Strategy, workload: Workload = ANY_WORKLOAD) -> tuple[str, ...]:
    """Return what switches a strategy on, a line each; nothing of a recorded step or of another package's strategy.

    Args:
        strategy: as it was simulated.
        workload: whose gradients have a format, and which may say in which format it computes.
    """
    if isinstance(strategy, ShardedUpdate):
        return tuple(_zero(strategy, workload))
    for kind, made in _CALLS.items():
        if isinstance(strategy, kind):
            return tuple(made(strategy))
    return ()


def effort(strategy: Strategy, workload: Workload = ANY_WORKLOAD) -> int:
    """Return `PASTED`, `FLAGS` or `NO_CALL`."""
    first = next(iter(calls(strategy, workload)), "")
    if first.startswith(NO_FLAG):
        return NO_CALL
    return FLAGS if first.startswith("#") else PASTED


def takes_clipping(strategy: Strategy) -> bool:
    """Tell whether gradients may be clipped, or scaled by a GradScaler, between backward and the optimizer's step."""
    return not (isinstance(strategy, BinSGDM) and strategy.overlap)


def _call(name: str, *positional: str, **options: object) -> str:
    """Return a call as text; options that are None are left out."""
    named = [f"{key}={value!r}" for key, value in options.items() if value is not None]
    return f"{name}({', '.join([*positional, *named])})"


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
    yield "optimizer = " + _call("binsgdm.BinSGDM", "model.parameters()", f"lr={LR_RATIO} * lr", rounding=rounding)
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
    arguments = [mesh] if mesh else []
    if strategy.gather_dtype or strategy.reduce_dtype:
        dtypes = {"param_dtype": strategy.gather_dtype, "reduce_dtype": strategy.reduce_dtype}
        named = [f"{key}={TORCH_DTYPES[dtype]}" for key, dtype in dtypes.items() if dtype in TORCH_DTYPES]
        yield f"policy = MixedPrecisionPolicy({', '.join(named)})"
        arguments.append("mp_policy=policy")
    if not strategy.reshard_after_forward:
        arguments.append("reshard_after_forward=False")
    yield f"for part in (*model.blocks, model): fully_shard({', '.join(['part', *arguments])})"


def _hybrid(strategy: HybridShard) -> Iterator[str]:
    yield "mesh = init_device_mesh(device, (nodes, ranks_per_node), mesh_dim_names=('node', 'local'))"
    if not strategy.replicas:
        yield from _sharded(strategy)
        return
    yield from _shards(strategy, "mesh=mesh['local']")
    system, _, options = strategy.replicas.partition(":")
    if system == "binsgdm":
        yield f"optimizer = binsgdm.BinSGDM(model.parameters(), lr={LR_RATIO} * lr)"
        yield _call("binsgdm.attach_fsdp", "optimizer", "mesh", bucket_cap_mb=_cap(strategy))
        return
    arguments = [
        f"{key}={value!r}" for key, _, value in (option.partition("=") for option in options.split(",") if option)
    ]
    yield _call(
        "binsgdm.compress_replicas", "optimizer", "mesh", repr(system), *arguments, bucket_cap_mb=_cap(strategy)
    )


def _zero(strategy: ShardedUpdate, workload: Workload) -> Iterator[str]:
    dtype, precision = workload.dtype, AUTOCAST.get(workload.precision, workload.precision)
    if workload.work is not None:
        precision = precision or workload.work.precision
    if isinstance(strategy, Zero1) and strategy.update == "broadcast":
        yield from _zero_redundancy(strategy, dtype)
        return
    reduced, gathered = strategy.wire_dtype or dtype, strategy.gather_dtype or dtype
    if gathered != "fp32" and precision not in {"", gathered, "fp8"}:
        yield f"{NO_FLAG}what gathers parameters as {gathered} computes in {gathered}, not in {precision}."
        return
    cap = DDP_BUCKET_BYTES if strategy.bucket_cap is None else strategy.bucket_cap
    bucket = int(cap / BYTES_PER_ELEMENT[dtype])
    if isinstance(strategy, Zero1):
        yield _megatron(strategy, (reduced, gathered), precision, bucket)
    else:
        yield _deepspeed(strategy, (reduced, gathered), bucket)


def _zero_redundancy(strategy: Zero1, dtype: Dtype) -> Iterator[str]:
    if (gathered := strategy.gather_dtype or dtype) != dtype:
        yield f"{NO_FLAG}ZeroRedundancyOptimizer broadcasts {dtype} parameters as they are, not as {gathered}."
        return
    yield _ddp(strategy)
    if strategy.wire_dtype in {"bf16", "fp16"}:
        yield f"model.register_comm_hook(None, default_hooks.{strategy.wire_dtype}_compress_hook)"
    whole = strategy.parameters_as_bucket_view or None
    arguments = ("model.parameters()", "torch.optim.AdamW", "lr=lr")
    yield "optimizer = " + _call("ZeroRedundancyOptimizer", *arguments, parameters_as_bucket_view=whole)


def _megatron(strategy: Zero1, dtypes: tuple[Dtype, Dtype], precision: str, bucket: int) -> str:
    """Return the flags of its distributed optimizer; a bucket is counted in parameters."""
    reduced, gathered = dtypes
    if dtypes not in MEGATRON_DTYPES:
        return f"{NO_FLAG}Megatron-LM does not reduce {reduced} gradients of {gathered} parameters."
    if gathered == "fp32" and precision not in {"", "fp32", "tf32"}:
        return f"{NO_FLAG}Megatron-LM that computes in {precision} gathers parameters in 16 bits, not in fp32."
    if strategy.overlap is (strategy.bucketing == "fused"):
        return f"{NO_FLAG}Megatron-LM has several buckets with --overlap-grad-reduce, and one without."
    flags = [MEGATRON_DTYPES[dtypes], "--use-distributed-optimizer"]
    flags += ["--overlap-grad-reduce", f"--ddp-bucket-size {bucket}"] if strategy.overlap else []
    flags += ["--overlap-param-gather"] if strategy.overlap_param_gather else []
    flags += ["--fp8-format hybrid"] if precision == "fp8" else []
    return f"# Megatron-LM: {' '.join(filter(None, flags))}"


def _deepspeed(strategy: ShardedUpdate, dtypes: tuple[Dtype, Dtype], bucket: int) -> str:
    """Return the configuration of its ZeRO-2; a bucket is counted in elements.

    Source: DeepSpeed, docs/_pages/config-json.md; runtime/engine.py (`communication_data_type`).
    """
    reduced, gathered = dtypes
    if strategy.overlap_param_gather:
        return f"{NO_FLAG}DeepSpeed's ZeRO-2 gathers parameters after the update, not during forward."
    if strategy.bucketing == "fused":
        return f"{NO_FLAG}DeepSpeed's ZeRO-2 reduces buckets as backward fills them, not all gradients after it."
    config: dict[str, object] = {} if gathered == "fp32" else {gathered: {"enabled": True}}
    config["communication_data_type"] = reduced
    config["zero_optimization"] = {
        "stage": 2,
        "overlap_comm": strategy.overlap,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
    }
    return f"# DeepSpeed: {json.dumps(config)}"


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
    LocalSGD: _local_sgd,
    DiLoCo: _diloco,
}
