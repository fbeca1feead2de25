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
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import nn

    from binsgdm.recording.model_zoo import Task

Attention = Literal["sdpa", "eager"]
SEED = 0
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
    make: Callable[[Attention], "nn.Module"]
    task: Callable[["nn.Module", int], "Task"]

    def build(self, samples: int, attention: Attention = "sdpa") -> "Task":
        """Build the module with a batch, from a fixed seed, on the current default device."""
        import torch

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
def declare_torchvision_operators() -> "torch.library.Library | None":
    """Declare the operators without which torchvision cannot be imported beside a CPU build of torch.

    The wheel on PyPI is built for CUDA. Beside a CPU torch its operators do not load, and the import fails because
    `torchvision::nms` does not exist; declaring it is enough for models that never call it. transformers imports
    torchvision wherever it is installed. Cached, since the declaration ends with the returned object.
    """
    import torch

    is_gpu_build = torch.version.cuda is not None or torch.version.hip is not None
    if is_gpu_build or importlib.util.find_spec("torchvision") is None or _torchvision_operators_load():
        return None
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    return library


def _torchvision_operators_load() -> bool:
    """Tell whether torchvision's own operators are of this torch; loads them if so."""
    import torch

    spec = importlib.util.find_spec("torchvision")
    places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    for path in (found for place in places for found in place.glob("_C*.so")):
        with suppress(OSError):
            torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    return hasattr(torch.ops.torchvision, "nms")


def _image_classifier(name: str, title: str) -> Definition:
    """Return the definition of the torchvision model `name`."""

    def make(_attention: Attention) -> "nn.Module":
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


def _classified_images(module: "nn.Module", samples: int) -> "Task":
    """Return random images and their cross entropy."""
    import torch

    from binsgdm.recording.model_zoo import Task

    images = torch.randn(samples, 3, IMAGE_SIDE, IMAGE_SIDE)
    labels = torch.zeros(samples, dtype=torch.long)
    return Task(module=module, inputs=(images,), loss=lambda output: torch.nn.functional.cross_entropy(output, labels))


def _transformers() -> Any:
    """Import transformers such that it never asks the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    declare_torchvision_operators()
    return importlib.import_module("transformers")


def _from_transformers(architecture: str, configuration: str, **settings: Any) -> Callable[[Attention], "nn.Module"]:
    """Return what makes a model of transformers with random weights."""

    def make(attention: Attention) -> "nn.Module":
        transformers = _transformers()
        config = getattr(transformers, configuration)(attn_implementation=attention, **settings)
        module: nn.Module = getattr(transformers, architecture)(config)
        return module

    return make


def _tokens(module: Any, samples: int, length: int) -> "torch.Tensor":
    import torch

    return torch.randint(module.config.vocab_size, (samples, length))


def _loss_of_library(module: "nn.Module", keywords: Mapping[str, "torch.Tensor"]) -> "Task":
    """Return a task whose loss the library computes."""
    from binsgdm.recording.model_zoo import Task

    return Task(module=module, inputs=(), keywords=keywords, loss=lambda output: output.loss)


def _pre_training(module: "nn.Module", samples: int, length: int = 128) -> "Task":
    """Return sequences with both pre-training losses of BERT.

    The library's head predicts every token; recipes that predict only the masked ones (20 of 128) spend less on it.
    """
    import torch

    tokens = _tokens(module, samples, length)
    next_sentence = torch.zeros(samples, dtype=torch.long)
    return _loss_of_library(module, {"input_ids": tokens, "labels": tokens, "next_sentence_label": next_sentence})


def _question_answering(module: "nn.Module", samples: int, length: int = 384) -> "Task":
    """Return questions with their texts, and the loss of the answer's begin and end."""
    import torch

    places = torch.zeros(samples, dtype=torch.long)
    keywords = {"input_ids": _tokens(module, samples, length), "start_positions": places, "end_positions": places}
    return _loss_of_library(module, keywords)


def _language_model(module: "nn.Module", samples: int, length: int = 1024) -> "Task":
    """Return sequences whose next tokens are predicted."""
    tokens = _tokens(module, samples, length)
    return _loss_of_library(module, {"input_ids": tokens, "labels": tokens})


def _denoising(module: "nn.Module", samples: int) -> "Task":
    """Return sequences of 512 tokens, in which 15 % were masked, with their 114 targets.

    Source: Raffel et al., Exploring the limits of transfer learning, 2020, section 3.1.4 (spans of 3, inputs of 512).
    """
    keywords = {"input_ids": _tokens(module, samples, 512), "labels": _tokens(module, samples, 114)}
    return _loss_of_library(module, keywords)


BERT_LARGE = MappingProxyType(
    {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
)
_BERT = Definition(
    name="bert_base",
    title="BERT-Base (for pre-training)",
    expression="transformers.BertForPreTraining(BertConfig())",
    library="transformers",
    input="one sequence of 128 tokens, all of them predicted",
    make=_from_transformers("BertForPreTraining", "BertConfig"),
    task=_pre_training,
)
_BERT_LARGE = Definition(
    name="bert_large",
    title="BERT-Large (for pre-training)",
    expression="transformers.BertForPreTraining(BertConfig({}))".format(
        ", ".join(f"{key}={value}" for key, value in BERT_LARGE.items())
    ),
    library="transformers",
    input="one sequence of 128 tokens, all of them predicted",
    make=_from_transformers("BertForPreTraining", "BertConfig", **BERT_LARGE),
    task=_pre_training,
)
_SQUAD = Definition(
    name="bert_base_squad",
    title="BERT-Base (for answers to questions)",
    expression="transformers.BertForQuestionAnswering(BertConfig())",
    library="transformers",
    input="one sequence of 384 tokens",
    make=_from_transformers("BertForQuestionAnswering", "BertConfig"),
    task=_question_answering,
)
_GPT2 = Definition(
    name="gpt2_small",
    title="GPT-2 small",
    expression="transformers.GPT2LMHeadModel(GPT2Config())",
    library="transformers",
    input="one sequence of 1024 tokens",
    make=_from_transformers("GPT2LMHeadModel", "GPT2Config", use_cache=False),
    task=_language_model,
)
T5_LARGE = MappingProxyType(
    {
        "d_model": 1024,
        "d_ff": 4096,
        "d_kv": 64,
        "num_layers": 24,
        "num_decoder_layers": 24,
        "num_heads": 16,
        "decoder_start_token_id": 0,
    }
)
_T5 = Definition(
    name="t5_large",
    title="T5-Large",
    expression="transformers.T5ForConditionalGeneration(T5Config({}))".format(
        ", ".join(f"{key}={value}" for key, value in T5_LARGE.items())
    ),
    library="transformers",
    input="one sequence of 512 tokens, and 114 to be predicted",
    make=_from_transformers("T5ForConditionalGeneration", "T5Config", use_cache=False, **T5_LARGE),
    task=_denoising,
)
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
