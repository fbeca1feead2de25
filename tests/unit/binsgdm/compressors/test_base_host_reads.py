"""How often a system makes the host wait for a GPU, and that it computes there what it does on the CPU."""

from collections import Counter
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.compressors.base import Averager
from binsgdm.compressors.registry import SYSTEMS, make
from tests.helpers.gradient_buckets import means_of, normal
from tests.helpers.pretend_device import PretendTensor, pretended_device

WORLD = 2
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in SYSTEMS},
    "qsgd, elias": ("qsgd", {"coding": "elias"}),
    "marsit, torus": ("marsit", {"torus": True}),
    "marsit, full precision": ("marsit", {"sync_period": 1}),
    "random_k, unbiased": ("random_k", {"unbiased": True}),
    "terngrad, not clipped": ("terngrad", {"clip_sigmas": None}),
    "ef_sign_sgd, a scale": ("ef_sign_sgd", {"scale_per": "bucket"}),
}
MATRICES = 2  # of SHAPES are factored by ATOMO with its default budget
READS = {
    # How many values lie above a threshold, and how many beside it.
    "ms_top_k": {"aten.nonzero.default": 2},
    # The decomposition is checked on the host, and how many triplets are drawn; then the lengths of all payloads, and
    # how many triplets are in each: the own one, for what was lost, and those of the others.
    "atomo": {
        "aten._linalg_svd.default": MATRICES,
        "aten.nonzero.default": MATRICES,
        "aten._to_copy.default": 1 + WORLD,
    },
}
"""Of one bucket on one rank. Systems that are not listed have none. Elias codes have many: a code is read in turns."""


def ends(name: str) -> list[Averager]:
    system, options = OPTIONS[name]
    given = {**SYSTEMS[system].usual_options, **options}
    return [make(system, rank=rank, world_size=WORLD, **given) for rank in range(WORLD)]


def means(averagers: list[Averager], step: int, device: str) -> list[Any]:
    gradients = [normal(seed=10 * step + rank).to(device) for rank in range(WORLD)]
    return means_of(averagers, gradients, step, ranks_per_node=WORLD)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_a_system_waits_for_a_gpu_no_more_than_is_known_and_computes_the_same_there(name: str) -> None:
    with pretended_device(uses_triton=True) as counts:
        on_gpu, on_cpu = ends(name), ends(name)
        for step in range(1, 3):
            wanted = means(on_cpu, step, "cpu")
            counts.reset()
            found = means(on_gpu, step, "cuda")
            for ours, theirs in zip(found, wanted, strict=True):
                assert isinstance(ours, PretendTensor)
                assert torch.equal(ours.cpu(), theirs)
        counts.reads["aten._to_copy.default"] -= WORLD  # of the comparison above
        counts.blocking_uploads["aten._to_copy.default"] -= WORLD  # of the gradients
        assert not +counts.blocking_uploads
        if name != "qsgd, elias":
            assert +counts.reads == Counter({key: WORLD * number for key, number in READS.get(name, {}).items()})
