"""The shipped gradient files say what the real models say."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.helpers.needs import ROOT

GRADIENTS_DIR = ROOT / "scenarios" / "workloads" / "gradients"

# Parameters and tensors; a tied tensor counts once, and BERT has both pre-training heads. Source: `num_params` of the
# weights' metadata for torchvision 0.28 (models/*.py), `sum(p.numel() for p in model.parameters())` for transformers.
KNOWN_COUNTS = {
    "resnet50": (25_557_032, 161),
    "resnet101": (44_549_160, 314),
    "resnext101_32x8d": (88_791_336, 314),
    "vgg16": (138_357_544, 32),
    "vit_b_16": (86_567_656, 152),
    "bert_base": (110_106_428, 206),
    "bert_large": (336_226_108, 398),
    "gpt2_small": (124_439_808, 148),
}

# GFLOPs of one forward of one sample. Source: twice the `_ops` (giga multiply-adds) of the weights' metadata for
# torchvision; for transformers the matrix products by hand: per token 12 h^2 + 2 T h multiply-adds in each layer
# (T tokens, width h) and V h for the vocabulary (plus h^2 in BERT's head).
KNOWN_FORWARD_GFLOPS = {
    "resnet50": 2 * 4.089,
    "resnet101": 2 * 7.801,
    "resnext101_32x8d": 2 * 16.414,
    "vgg16": 2 * 15.47,
    "vit_b_16": 2 * 17.564,
    "bert_base": 2 * 128 * (12 * (12 * 768**2 + 2 * 128 * 768) + (30522 + 768) * 768) / 1e9,
    "bert_large": 2 * 128 * (24 * (12 * 1024**2 + 2 * 128 * 1024) + (30522 + 1024) * 1024) / 1e9,
    "gpt2_small": 2 * 1024 * (12 * (12 * 768**2 + 2 * 1024 * 768) + 50257 * 768) / 1e9,
}

# The tensor that is ready first and the one that is ready last.
FIRST_AND_LAST = {
    "resnet50": ("fc.bias", "conv1.weight"),
    "resnet101": ("fc.bias", "conv1.weight"),
    "resnext101_32x8d": ("fc.bias", "conv1.weight"),
    "vgg16": ("classifier.6.bias", "features.0.bias"),
    "vit_b_16": ("heads.head.bias", "conv_proj.bias"),
    "bert_base": ("cls.seq_relationship.bias", "bert.embeddings.word_embeddings.weight"),
    "bert_large": ("cls.seq_relationship.bias", "bert.embeddings.word_embeddings.weight"),
    "gpt2_small": ("transformer.ln_f.weight", "transformer.wte.weight"),
}


def load(name: str) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads((GRADIENTS_DIR / f"{name}.json").read_text(encoding="utf-8"))
    return contents


@pytest.fixture(params=sorted(KNOWN_COUNTS))
def gradients(request: pytest.FixtureRequest) -> dict[str, Any]:
    return load(request.param)


def test_every_file_is_named_after_its_model_and_is_covered_here() -> None:
    names = {path.stem for path in GRADIENTS_DIR.glob("*.json")}
    assert names == set(KNOWN_COUNTS)
    assert {load(name)["name"] for name in names} == names


def test_counts_are_those_of_the_published_model(gradients: dict[str, Any]) -> None:
    num_elements, num_tensors = KNOWN_COUNTS[gradients["name"]]
    assert gradients["num_elements"] == num_elements
    assert sum(math.prod(row[1]) for row in gradients["tensors"]) == num_elements
    assert len(gradients["tensors"]) == num_tensors


def test_backward_flops_are_shared_out_completely(gradients: dict[str, Any]) -> None:
    flops = [row[2] for row in gradients["tensors"]]
    assert all(isinstance(value, int) and value >= 0 for value in flops)
    assert sum(flops) == gradients["backward_flops_per_sample"]


def test_forward_flops_are_those_of_the_published_model(gradients: dict[str, Any]) -> None:
    # 0.1 %: the published operation counts are rounded to 3-4 digits.
    expected = KNOWN_FORWARD_GFLOPS[gradients["name"]] * 1e9
    assert gradients["forward_flops_per_sample"] == pytest.approx(expected, rel=1e-3)


def test_the_head_is_ready_first_and_the_stem_last(gradients: dict[str, Any]) -> None:
    first, last = FIRST_AND_LAST[gradients["name"]]
    assert gradients["tensors"][0][0] == first
    assert gradients["tensors"][-1][0] == last
