"""Several ranks in one process on a card have the bits of the same on a CPU, and what is planted there is found.

PowerSGD, GradZip and ATOMO, whose products of matrices sum in an order of their own on every device, and 1-bit Adam end
near the CPU.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest import mock

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import Tensor, nn

from binsgdm.bench import choices
from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.compressors import levels, low_rank, quantizers, sparse
from binsgdm.compressors.base import GradientBucket
from binsgdm.compressors.registry import BUILT_IN, SYSTEMS, make
from binsgdm.kernels import host_loops
from binsgdm.optimizers import one_bit_adam
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.settings import SCHEMES
from tests.gpu import lockstep
from tests.gpu.samples import BF16, CPU, FP32, MIXED, SEED, SHAPES, gradients, num_different, num_far, parameters

RANKS, A_NODE, SYSTEM_STEPS = lockstep.RANKS, lockstep.A_NODE, 3
# Of the norm: with products in fp64 in their place, low-rank systems are 1e-6 away on a CPU, and ATOMO, whose singular
# vectors turn more, is 2e-5.
NEAR = 1e-3
# Quotients by numbers and fused products put 1-bit Adam 1e-5 of its moves away. A sum near 0 may get the other sign,
# which moves its element the other way, and changes the scale of its chunk by 2 over its elements: 8e-4.
FLIPPED, NEAR_MOVE = 1e-3, 2e-3
OPTIONS: Sequence[tuple[str, dict[str, Any]]] = (
    *((kind.name, {**kind.usual_options, "topology": one}) for kind in BUILT_IN for one in kind.topologies),
    ("byte_grad", {"topology": "scatter_reduce", "dtype": "fp8_e4m3"}),
    ("byte_grad", {"topology": "scatter_reduce", "dtype": "fp8_e5m2"}),
    ("qsgd", {"coding": "elias"}),
    ("marsit", {"sync_period": 2}),
    ("marsit", {"torus": True}),
    ("top_k", {"ratio": 0.01, "momentum": 0.5}),
)
DILOCO: Mapping[str, dict[str, Any]] = {
    "fp32": {},
    "fp32 in two fragments, hidden by a step": {"inner_steps": 4, "fragments": 2, "overlap_steps": 1},
    "bf16": {"exchange": "bf16"},
    "int8": {"exchange": "int8"},
    "fp8": {"exchange": "fp8"},
    "one_bit": {"exchange": "one_bit"},
    "one_bit hidden by a step": {"exchange": "one_bit", "overlap_steps": 1},
    "int8 between nodes": {"exchange": "int8", "workers": "node"},
}

Tensors = list[list[Tensor]]


def with_binsgdm(scheme: Any, dtypes: Any, place: torch.device) -> Tensors:
    """Return the parameters of all ranks, by the kernels of a device, and on the CPU by the reference."""
    made = partial(lockstep.make_binsgdm, kernels="reference" if place == CPU else None)
    return lockstep.in_one_process(made, partial(lockstep.join_in_lockstep, scheme), (RANKS, A_NODE), place, dtypes)


def with_one_bit_adam(topology: str, place: torch.device) -> Tensors:
    """Return the parameters of all ranks after dense and compressed steps."""

    def make_one(values: Sequence[nn.Parameter]) -> OneBitAdam:
        how: Any = {"topology": topology, "variance_floor": 0.1, "scales_momenta": True, "dense_steps": 2}
        return OneBitAdam(values, lr=lockstep.LR, weight_decay=lockstep.WEIGHT_DECAY, **how)

    join: Any = OneBitAdam.join
    return lockstep.in_one_process(make_one, join, (RANKS, A_NODE), place)


def with_system(name: str, options: dict[str, Any], place: torch.device) -> Tensors:
    """Return the mean that each rank has in each step, whose residuals go on."""
    size: dict[str, Any] = {"world_size": RANKS, "ranks_per_node": A_NODE}
    systems = [make(name, rank=rank, **size, **options) for rank in range(RANKS)]
    means = []
    for step in range(1, SYSTEM_STEPS + 1):
        protocols = []
        for rank, system in enumerate(systems):
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients(rank, step, place)])
            bucket = GradientBucket(values=flat, parameters=tuple(range(len(SHAPES))), shapes=SHAPES)
            protocols.append(system.mean(bucket, RankContext(rank=rank, seed=SEED, step=step, **size)))
        means.append(run_in_lockstep(protocols, A_NODE))
    return means


def with_diloco(given: dict[str, Any], dtypes: Any, place: torch.device) -> Tensors:
    return lockstep.outer_steps(given, RANKS, place, dtypes)


def with_local_sgd(wire_dtype: str, place: torch.device) -> Tensors:
    return lockstep.averaged_steps(wire_dtype, RANKS, place)


CASES: dict[str, Callable[[torch.device], Tensors]] = {
    **{
        f"BinSGDM {scheme.topology} {scheme.intra_node_dtype} {scheme.average}, {name}": partial(
            with_binsgdm, scheme, dtypes
        )
        for scheme in SCHEMES
        for name, dtypes in (("fp32", FP32), ("in three dtypes", MIXED))
    },
    **{
        f"{name} {choices.text_of(options)}": partial(with_system, name, options)
        for name, options in OPTIONS
        if not SYSTEMS[name].needs_equal_threads
    },
    **{f"DiLoCo {name}": partial(with_diloco, given, FP32) for name, given in DILOCO.items()},
    "DiLoCo int8, parameters in bf16": partial(with_diloco, {"exchange": "int8"}, BF16),
    **{f"local SGD {dtype}": partial(with_local_sgd, dtype) for dtype in ("fp32", "bf16")},
}
NEAR_CASES: dict[str, Callable[[torch.device], Tensors]] = {
    f"{name} {choices.text_of(options)}": partial(with_system, name, options)
    for name, options in OPTIONS
    if SYSTEMS[name].needs_equal_threads
}
ADAM: dict[str, Callable[[torch.device], Tensors]] = {
    f"1-bit Adam {topology}": partial(with_one_bit_adam, topology) for topology in ("flat", "hierarchical")
}


def num_wrong(name: str, device: torch.device, planted: Any = None) -> int:
    """Return how many tensors of all ranks are not what they are on the CPU, with something planted on the device."""
    run = (CASES | NEAR_CASES | ADAM)[name]
    with planted or nullcontext():
        answers = run(device)
    wanted = run(CPU)
    judge = {**dict.fromkeys(NEAR_CASES, partial(num_far, tolerance=NEAR)), **dict.fromkeys(ADAM, num_elsewhere)}
    return sum(judge.get(name, num_different)(one, other) for one, other in zip(wanted, answers, strict=True))


def num_elsewhere(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> int:
    """Return of how many tensors too many elements have moved to another place."""
    elsewhere = 0
    for start, one, other in zip(parameters(CPU), wanted, found, strict=True):
        largest = NEAR_MOVE * (one - start).square().mean().sqrt()
        is_off = ~((other.cpu() - one).abs() <= largest)
        elsewhere += bool(is_off.sum() > FLIPPED * is_off.numel())
    return elsewhere


@pytest.mark.parametrize("name", CASES | NEAR_CASES | ADAM)
def test_ranks_in_one_process_have_the_bits_of_the_cpu(device: torch.device, name: str) -> None:
    assert num_wrong(name, device) == 0


def by_the_reciprocal(values: Tensor, number: float, *, out: Tensor | None = None) -> Tensor:
    return torch.mul(values, 1.0 / number, out=out)


def backwards(*args: Any, draws: Any = sparse.draws, **given: Any) -> Tensor:
    return draws(*args, **given).flip(0)


def no_thresholds(magnitudes: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return magnitudes.new_full((), -1, dtype=torch.int64), magnitudes.new_full((), 2**31 - 1, dtype=torch.int64)


def no_uniforms(_key: Any, *, numel: int, device: Any, **_: Any) -> Tensor:
    return torch.zeros(numel, device=device)


def no_draws(*_: Any, numel: int, device: Any = "cpu", **__: Any) -> Tensor:
    return torch.zeros(numel, dtype=torch.int64, device=device)


PLANTED = [
    ("byte_grad topology=scatter_reduce", quantizers, "divided", by_the_reciprocal),
    ("DiLoCo int8", quantizers, "divided", by_the_reciprocal),
    ("qsgd topology=gather", levels, "uniforms", no_uniforms),
    ("ms_top_k ratio=0.01 topology=gather", sparse, "_thresholds", no_thresholds),
    ("random_k ratio=0.01 topology=all_reduce", sparse, "draws", backwards),
    ("power_sgd topology=all_reduce", low_rank, "MIN_INDEPENDENT_PART", 2.0),
    ("atomo topology=gather", low_rank, "draws", no_draws),
    ("1-bit Adam flat", one_bit_adam, "freeze", lambda *_: None),
    ("DiLoCo fp32", lockstep, "OUTER", {**lockstep.OUTER, "outer_lr": 0.25}),
    ("local SGD fp32", lockstep, "INNER_LR", 2.0**-5),
    ("BinSGDM flat", lockstep, "WEIGHT_DECAY", 0.2),
]


@pytest.mark.parametrize(
    ("what", "module", "name", "value"), PLANTED, ids=[f"{what} {name}" for what, _, name, _ in PLANTED]
)
def test_what_is_planted_on_the_device_alone_is_found(
    device: torch.device, what: str, module: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device.type == "cpu":  # which stands for a card, and so has none of a CPU's loops
        monkeypatch.setattr(host_loops, "is_used_on", lambda _: False)
    case = next(case for case in CASES | NEAR_CASES | ADAM if case.startswith(what))
    assert num_wrong(case, device, mock.patch.object(module, name, value)) > 0
