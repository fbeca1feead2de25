"""The models behind the shipped workloads, as torchvision and transformers define them, with a synthetic batch.

Both libraries are imported when a model is built. Weights are random: no time depends on them.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from binsgdm.recording.model_zoo import SEED, Task

Attention = Literal["sdpa", "eager"]
NUM_CLASSES, IMAGE_SIDE = 1000, 224


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A model as its library defines it, and what is sent through it.

    Attributes:
        name: of the model; of a file in scenarios/workloads/gradients where it has one.
        title: for people.
        expression: what makes the module.
        library: where from.
        input: one sample, in words.
        make: returns the module; with transformers' attention, fused ("sdpa") or with the whole score matrix ("eager").
        task: returns the module with a batch of so many samples, on the current default device.
    """

    name: str
    title: str
    expression: str
    library: str
    input: str
    make: Callable[[Attention], nn.Module]
    task: Callable[[nn.Module, int], Task]

    def build(self, samples: int, attention: Attention = "sdpa") -> Task:
        """Build the module with a batch, from a fixed seed, on the current default device."""
        torch.manual_seed(SEED)
        return self.task(self.make(attention), samples)


@dataclass(frozen=True, kw_only=True)
class ShippedModel:
    """The model of a shipped workload.

    Attributes:
        workload: its name.
        definition: of the model.
        batches: samples a GPU that are measured, the smallest first: those of the workload and its compute rows.
        is_convolutional: tensor cores are faster with its channels last.
    """

    workload: str
    definition: Definition
    batches: tuple[int, ...]
    is_convolutional: bool = False


def what_is_missing(definition: Definition) -> str:
    """Return what to install before a model can be built, or an empty string."""
    if importlib.util.find_spec(definition.library) is not None:
        return ""
    if definition.library == "torchvision":
        return f"pip install pillow && pip install --no-deps torchvision{_torchvision_version()}"
    return f"pip install {definition.library}"


def _torchvision_version() -> str:
    """Return "==0.26" beside torch 2.11: each of their versions is built for one of the other's."""
    major, minor, *_ = importlib.metadata.version("torch").split(".")
    return f"==0.{int(minor) + 15}.*" if major == "2" else ""


@functools.cache
def declare_torchvision_operators() -> torch.library.Library | None:
    """Declare the operators without which torchvision cannot be imported beside a CPU build of torch.

    The wheel on PyPI is built for CUDA. Beside a CPU torch its operators do not load, and the import fails because
    `torchvision::nms` does not exist; declaring it is enough for models that never call it. transformers imports
    torchvision wherever it is installed. Cached, since the declaration ends with the returned object.
    """
    is_gpu_build = torch.version.cuda is not None or torch.version.hip is not None
    if is_gpu_build or importlib.util.find_spec("torchvision") is None or _torchvision_operators_load():
        return None
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    return library


def _torchvision_operators_load() -> bool:
    """Tell whether torchvision's own operators are of this torch; loads them if so."""
    spec = importlib.util.find_spec("torchvision")
    places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    for path in (found for place in places for found in place.glob("_C*.so")):
        with suppress(OSError):
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    return hasattr(torch.ops.torchvision, "nms")


def _image_classifier(name: str, title: str) -> Definition:
    """Return the definition of the torchvision model `name`."""

    def make(_attention: Attention) -> nn.Module:
        declare_torchvision_operators()
        module: nn.Module = getattr(importlib.import_module("torchvision").models, name)()
        return module

    return Definition(
        name=name,
        title=title,
        expression=f"torchvision.models.{name}()",
        library="torchvision",
        input="one 224x224 RGB image",
        make=make,
        task=_classified_images,
    )


def _classified_images(module: nn.Module, samples: int) -> Task:
    """Return random images and their cross entropy."""
    images = torch.randn(samples, 3, IMAGE_SIDE, IMAGE_SIDE)
    labels = torch.zeros(samples, dtype=torch.long)
    return Task(module=module, inputs=(images,), loss=lambda output: torch.nn.functional.cross_entropy(output, labels))


def _transformers() -> Any:
    """Import transformers such that it never asks the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    declare_torchvision_operators()
    return importlib.import_module("transformers")


def _of_transformers(  # noqa: PLR0913
    name: str,
    title: str,
    family: str,
    head: str,
    *,
    sample: str,
    task: Callable[[nn.Module, int], Task],
    use_cache: bool | None = None,
    **sizes: int,
) -> Definition:
    """Return the definition of a model of transformers with random weights: its family and head make its class."""
    settings = sizes if use_cache is None else {**sizes, "use_cache": use_cache}

    def make(attention: Attention) -> nn.Module:
        transformers = _transformers()
        config = getattr(transformers, f"{family}Config")(attn_implementation=attention, **settings)
        module: nn.Module = getattr(transformers, family + head)(config)
        return module

    shown = ", ".join(f"{key}={value}" for key, value in sizes.items())
    return Definition(
        name=name,
        title=title,
        expression=f"transformers.{family}{head}({family}Config({shown}))",
        library="transformers",
        input=sample,
        make=make,
        task=task,
    )


def _tokens(module: Any, samples: int, length: int) -> Tensor:
    return torch.randint(module.config.vocab_size, (samples, length))


def _loss_of_library(module: nn.Module, keywords: Mapping[str, Tensor]) -> Task:
    """Return a task whose loss the library computes."""
    return Task(module=module, inputs=(), keywords=keywords, loss=lambda output: output.loss)


def _pre_training(module: nn.Module, samples: int, length: int = 128) -> Task:
    """Return sequences with both pre-training losses of BERT.

    The library's head predicts every token; recipes that predict only the masked ones (20 of 128) spend less on it.
    """
    tokens = _tokens(module, samples, length)
    next_sentence = torch.zeros(samples, dtype=torch.long)
    return _loss_of_library(module, {"input_ids": tokens, "labels": tokens, "next_sentence_label": next_sentence})


def _question_answering(module: nn.Module, samples: int, length: int = 384) -> Task:
    """Return questions with their texts, and the loss of the answer's begin and end."""
    places = torch.zeros(samples, dtype=torch.long)
    keywords = {"input_ids": _tokens(module, samples, length), "start_positions": places, "end_positions": places}
    return _loss_of_library(module, keywords)


def _language_model(module: nn.Module, samples: int, length: int = 1024) -> Task:
    """Return sequences whose next tokens are predicted."""
    tokens = _tokens(module, samples, length)
    return _loss_of_library(module, {"input_ids": tokens, "labels": tokens})


def _denoising(module: nn.Module, samples: int) -> Task:
    """Return sequences of 512 tokens, in which 15 % were masked, with their 114 targets.

    Source: Raffel et al., Exploring the limits of transfer learning, 2020, section 3.1.4 (spans of 3, inputs of 512).
    """
    keywords = {"input_ids": _tokens(module, samples, 512), "labels": _tokens(module, samples, 114)}
    return _loss_of_library(module, keywords)


_PREDICTED = "one sequence of 128 tokens, all of them predicted"
_BERT = _of_transformers(
    "bert_base", "BERT-Base (for pre-training)", "Bert", "ForPreTraining", sample=_PREDICTED, task=_pre_training
)
_BERT_LARGE = _of_transformers(
    "bert_large", "BERT-Large (for pre-training)", "Bert", "ForPreTraining", sample=_PREDICTED, task=_pre_training,
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
)  # fmt: skip
_SQUAD = _of_transformers(
    "bert_base_squad", "BERT-Base (for answers to questions)", "Bert", "ForQuestionAnswering",
    sample="one sequence of 384 tokens", task=_question_answering,
)  # fmt: skip
_GPT2 = _of_transformers(
    "gpt2_small", "GPT-2 small", "GPT2", "LMHeadModel",
    sample="one sequence of 1024 tokens", task=_language_model, use_cache=False,
)  # fmt: skip
_T5 = _of_transformers(
    "t5_large", "T5-Large", "T5", "ForConditionalGeneration",
    sample="one sequence of 512 tokens, and 114 to be predicted", task=_denoising, use_cache=False,
    d_model=1024, d_ff=4096, d_kv=64, num_layers=24, num_decoder_layers=24, num_heads=16, decoder_start_token_id=0,
)  # fmt: skip
_RESNET50 = _image_classifier("resnet50", "ResNet-50")
_VGG16 = _image_classifier("vgg16", "VGG-16")
_VIT = _image_classifier("vit_b_16", "ViT-B/16")

WITH_GRADIENTS = (
    _RESNET50,
    _image_classifier("resnet101", "ResNet-101"),
    _image_classifier("resnext101_32x8d", "ResNeXt-101 32x8d"),
    _VGG16,
    _VIT,
    _BERT,
    _BERT_LARGE,
    _GPT2,
)
"""Those whose gradients are in scenarios/workloads/gradients."""

COUNTED = (_image_classifier("vit_l_16", "ViT-L/16"), _T5)
"""Those of which `simnet model` has made a workload."""

SHIPPED = (
    ShippedModel(workload="bert_base", definition=_BERT, batches=(16, 64, 256)),
    ShippedModel(workload="bert_large", definition=_BERT_LARGE, batches=(8, 32, 128)),
    ShippedModel(workload="gpt2_small", definition=_GPT2, batches=(4, 8, 32)),
    ShippedModel(workload="resnet50", definition=_RESNET50, batches=(32, 64, 256), is_convolutional=True),
    ShippedModel(workload="vgg16", definition=_VGG16, batches=(16, 64, 256), is_convolutional=True),
    ShippedModel(workload="vit_b_16", definition=_VIT, batches=(32, 64, 256)),
    ShippedModel(workload="bert_base_squad", definition=_SQUAD, batches=(8, 16, 80)),
)
"""One for each workload in scenarios/workloads."""
