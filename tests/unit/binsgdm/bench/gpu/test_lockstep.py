"""Ranks in one process are compared with the same on the CPU, and what is planted on the device alone is found."""

from unittest import mock

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.gpu import lockstep, samples
from binsgdm.compressors import atomo, eight_bit, levels, matrices, sparse
from binsgdm.compressors.registry import BUILT_IN
from binsgdm.optimizers import one_bit_adam
from tests.helpers.pretend_device import pretended_device

DEVICE = torch.device("cpu", 0)  # another object than the CPU's
CASES = {case.name: case for case in lockstep.cases(DEVICE)}


@pytest.mark.parametrize("name", CASES)
def test_a_cpu_has_the_bits_of_a_cpu(name):
    assert CASES[name].num_wrong() == 0


def test_every_system_is_compared_in_every_topology():
    found = [(name, options["topology"]) for name, options in lockstep.system_cases() if "topology" in options]
    assert set(found) == {(kind.name, topology) for kind in BUILT_IN for topology in kind.topologies}
    assert sum("scatter_reduce" in topology for _, topology in found) > 15
    dtypes = {options.get("dtype") for name, options in lockstep.system_cases() if name == "byte_grad"}
    assert dtypes == {None, "fp8_e4m3", "fp8_e5m2"}


ON_A_GPU = {case.name: case for case in lockstep.cases(torch.device("cuda", 0))}
PRETENDED = (
    "flat fp32 updates, parameters in fp32,",
    "ef_sign_sgd topology=hierarchical,",
    "fp8_e4m3",
    "elias",
    "power_sgd",
)


@pytest.mark.parametrize("what", [*PRETENDED, "1-bit Adam flat", "DiLoCo one_bit, hidden", "local SGD bf16"])
def test_a_pretended_gpu_has_the_bits_of_a_cpu(what):
    case = next(case for name, case in ON_A_GPU.items() if what in name)
    with pretended_device():  # refuses tensors of two devices in one operation
        assert case.num_wrong() == 0


def by_the_reciprocal(values, number, *, out=None):
    return torch.mul(values, 1.0 / number, out=out)


def backwards(*args, draws=sparse.draws, **given):
    return draws(*args, **given).flip(0)


def no_thresholds(magnitudes, *_):
    return torch.full((), -1), torch.full((), 2**31 - 1)


PLANTED = [
    ("byte_grad topology=scatter_reduce,", eight_bit, "divided", by_the_reciprocal),
    ("DiLoCo int8,", eight_bit, "divided", by_the_reciprocal),
    ("qsgd topology=gather,", levels, "uniforms", lambda key, *, start, numel, device: torch.zeros(numel)),
    ("ms_top_k ratio=0.01 topology=gather,", sparse, "_thresholds", no_thresholds),
    ("random_k ratio=0.01 topology=all_reduce,", sparse, "draws", backwards),
    ("power_sgd topology=all_reduce,", matrices, "MIN_INDEPENDENT_PART", 2.0),
    ("grad_zip topology=hierarchical,", matrices, "MIN_INDEPENDENT_PART", 2.0),
    ("atomo topology=gather,", atomo, "draws", lambda *_, numel, **__: torch.zeros(numel, dtype=torch.int64)),
    ("1-bit Adam flat,", one_bit_adam, "freeze", lambda *_: None),
    ("1-bit Adam hierarchical,", one_bit_adam, "freeze", lambda *_: None),
    ("DiLoCo fp32,", lockstep, "OUTER", {**lockstep.OUTER, "outer_lr": 0.25}),
    ("local SGD fp32,", lockstep, "INNER_LR", 2.0**-5),
    ("one process, flat", lockstep, "WEIGHT_DECAY", 0.2),
]


@pytest.mark.parametrize(
    ("what", "module", "name", "value"), PLANTED, ids=[f"{what} {name}" for what, _, name, _ in PLANTED]
)
def test_what_is_planted_on_the_device_alone_is_found(monkeypatch, what, module, name, value):
    for function in ("_means", "in_one_process", "outer_steps", "averaged_steps"):
        plain = getattr(lockstep, function)

        def run(*args, plain=plain):
            planted = value if any(one is DEVICE for one in args) else getattr(module, name)
            with mock.patch.object(module, name, planted):
                return plain(*args)

        monkeypatch.setattr(lockstep, function, run)
    case = next(case for name, case in CASES.items() if what in name)
    assert case.num_wrong() > 0


def test_nan_is_far_and_equal_tensors_are_near():
    one = torch.ones(3)
    assert samples.num_far([one, one, one], [one + 1e-4, one + 1e-2, one * torch.nan], 1e-3) == 2
    assert samples.num_far([torch.zeros(2), torch.empty(0)], [torch.zeros(2), torch.empty(0)], 0.1) == 0


def test_one_element_of_a_thousand_may_move_the_other_way():
    start, wanted = torch.zeros(2000), torch.ones(2000)
    found = wanted.clone()
    found[:2] = -1.0
    assert not lockstep._is_elsewhere(start, found, wanted)
    found[2] = -1.0
    assert lockstep._is_elsewhere(start, found, wanted)
    assert lockstep._is_elsewhere(start, wanted * 1.01, wanted)
