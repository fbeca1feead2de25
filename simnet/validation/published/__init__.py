"""The published sets: each a function of its publication's module, and a template in docs/templates/sets."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from simnet.core.errors import SimnetError, did_you_mean
from simnet.validation.outcome import Outcome
from simnet.validation.published import (
    binsgdm_band,
    global_qsgd,
    hipress,
    hkbu,
    mpt_fsdp,
    nccl_tests,
    one_bit_sets,
    pytorch_ddp,
    shaped_all_reduces,
    torchtitan_fsdp,
)

SETS: Mapping[str, Callable[[], Outcome]] = {
    "hkbu_bsp": hkbu.without_overlap,
    "hkbu_overlap": hkbu.with_overlap,
    "hkbu_fast_ethernet": hkbu.fast_ethernet,
    "one_bit_table1": one_bit_sets.table,
    "one_bit_fig5a": one_bit_sets.compression_stage,
    "end_to_end": one_bit_sets.end_to_end,
    "binsgdm_band": binsgdm_band.evaluate,
    "one_bit_dense": one_bit_sets.dense_adam,
    "one_bit_speedup": one_bit_sets.speedup,
    "one_bit_fig9": one_bit_sets.shaped_network,
    "nccl_tests": partial(nccl_tests.evaluate, "from_16_mib", 0.05),
    "nccl_tests_medium": partial(nccl_tests.evaluate, "below_16_mib", 0.10),
    "nccl_tests_small": partial(nccl_tests.evaluate, "below_1_mib", 0.20),
    "one_bit_compute": one_bit_sets.compute,
    "hkbu_one_node": hkbu.one_node,
    "pytorch_ddp": pytorch_ddp.evaluate,
    "hipress_local": hipress.local,
    "hipress_aws": hipress.aws,
    "global_qsgd": global_qsgd.evaluate,
    "torchtitan_fsdp": torchtitan_fsdp.evaluate,
    "shaped_all_reduces": shaped_all_reduces.evaluate,
    "mpt_fsdp": mpt_fsdp.evaluate,
}
"""By name, in the order of the page: sets with a target first."""


def names() -> tuple[str, ...]:
    """Return the names of all sets in the order of the page."""
    return tuple(SETS)


def run(name: str) -> Outcome:
    """Fit and predict one set."""
    check(name)
    return replace(SETS[name](), name=name)


def check(name: str) -> None:
    """Check that there is a set of this name."""
    if name not in SETS:
        raise SimnetError(f"--set: {name!r}: unknown set.{did_you_mean(name, names())}")
