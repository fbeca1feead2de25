"""Find the model that a text names, and build it with a synthetic batch: shipped, of a library, or the user's function.

Libraries are imported when a model of theirs is asked for. Weights are random: no time depends on them, and nothing is
downloaded.
"""

import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional

from binsgdm.errors import INSTALL_MODELS, BinsgdmError, shown
from binsgdm.recording.model_zoo import LLAMAS, NAMES, SEED, UNET_ORIGIN, Task, in_dtype, unet_task

LONGEST = 1024
"""Tokens of a sequence of a config where none are asked for and the model takes more."""


class ModelOptions(NamedTuple):
    """What of a batch can be chosen.

    Attributes:
        batch: samples.
        length: tokens of a sequence; None for what the model was made for, at most `LONGEST` of a config.
        side: pixels of a side of an image; None for what the model was made for.
    """

    batch: int = 1
    length: int | None = None
    side: int | None = None


class FoundModel(NamedTuple):
    """A model that can be built.

    Attributes:
        title: for people.
        build: makes the module with its batch, on the current default device.
        library: that defines it, if it is not torch alone.
        origin: what is built, as code, or where its sizes come from.
        takes: which of "length" and "side" change it.
        has_own_batch: it is the user's function, which takes no batch.
        notes: what a reader should know of how it is made.
    """

    title: str
    build: Callable[[], Task]
    library: str = ""
    origin: str = ""
    takes: tuple[str, ...] = ()
    has_own_batch: bool = False
    notes: tuple[str, ...] = ()


def find(source: str, options: ModelOptions) -> FoundModel:
    """Return the model of a text.

    Args:
        source: a shipped name, `torchvision:NAME`, `timm:NAME`, `transformers:config.json`, a config's path, or
            `module:function`.
        options: of the batch.
    """
    home, _, name = source.partition(":")
    libraries = {**_IMAGE_LIBRARIES, "transformers": _of_config}
    # A path may hold a colon, as on Windows, or none: a config is known by its end.
    if home not in libraries and (source.endswith(".json") or Path(source, "config.json").is_file()):
        home, name = "transformers", source
    if not name or home not in libraries:
        return _of_function(source, home, name, options) if name else _shipped(source, options)
    if importlib.util.find_spec(home) is None:
        repair = (
            INSTALL_MODELS if home == "transformers" else f"pip install {home} (of the version that goes with torch)"
        )
        raise BinsgdmError(f"{home}: is not installed: {repair}")
    return libraries[home](name, options)


def build(name: str, batch: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Task:
    """Build the model of a text with its batch, from a fixed seed and therefore the same on all ranks."""
    try:
        model = find(name, ModelOptions(batch))
        torch.manual_seed(SEED)
        with torch.device(device):
            task = model.build()
    except BinsgdmError as error:
        raise BinsgdmError(f"--model {error}") from error
    return in_dtype(replace(task, module=task.module.to(device)), dtype)


def _shipped(name: str, options: ModelOptions) -> FoundModel:
    if name == "unet":
        return FoundModel("U-Net", lambda: unet_task(options.batch, options.side), origin=UNET_ORIGIN, takes=("side",))
    if name in NAMES:
        return FoundModel(name, lambda: as_task(NAMES[name](options.batch)))
    if name in LLAMAS:
        size = LLAMAS[name]
        return FoundModel(
            size.title, lambda: size.task(options.batch, options.length), origin=size.source, takes=("length",)
        )
    definitions = {definition.name: definition for definition in (*WITH_GRADIENTS, *COUNTED, _SQUAD)}
    if name in definitions:
        definition = definitions[name]
        if missing := what_is_missing(definition):
            raise BinsgdmError(f"{name}: needs {definition.library}: {missing}")
        return FoundModel(
            definition.title, lambda: definition.build(options.batch), definition.library, definition.expression
        )
    known = [*definitions, *LLAMAS, "unet", *NAMES]
    for library, find_it in _IMAGE_LIBRARIES.items():
        # A plain name is one of an installed library, where none that is shipped has it.
        if importlib.util.find_spec(library) is not None:
            names = _names_in(library)
            if name in names:
                return find_it(name, options)
            known += names
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}" if near else f"such as {', '.join(sorted(known)[:6])}"
    raise BinsgdmError(
        f"{shown(name)}: no shipped model ({hint}): write module:function, torchvision:NAME, timm:NAME or the path "
        "of a config of transformers"
    )


# The user's own function


def _of_function(source: str, home: str, name: str, options: ModelOptions) -> FoundModel:
    """Return the model of a function of the user, which takes the batch or nothing."""
    function = imported_function(source, home, name)
    takes_batch = any(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        for parameter in inspect.signature(function).parameters.values()
    )

    def build() -> Task:
        made = function(options.batch) if takes_batch else function()
        try:
            return as_task(made)
        except BinsgdmError as error:
            raise BinsgdmError(f"{source}: {error}") from error

    return FoundModel(source, build, has_own_batch=not takes_batch)


def imported_function(source: str, home: str, name: str) -> Callable[..., Any]:
    """Return the function `name` of the module `home`; messages call it `source`."""
    # As `python` has it; in the path of an installed command the working directory is missing.
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        if not f"{home}.".startswith(f"{error.name}."):
            raise  # of the user's own module
        raise BinsgdmError(f"{source}: no module {home!r}: run where it can be imported, or set PYTHONPATH") from error
    finally:
        sys.path.pop(0)
    function = getattr(module, name, None)
    if not callable(function):
        functions = {key: member for key, member in vars(module).items() if inspect.isfunction(member)}
        known = [key for key, function in functions.items() if function.__module__ == module.__name__]
        hint = f"; it has {', '.join(sorted(known)[:5])}" if known else "; name one that returns (module, inputs)"
        if near := get_close_matches(name, known, n=1):
            hint = f"; did you mean {near[0]!r}?"
        raise BinsgdmError(f"{source}: {home} has no function {name!r}{hint}")
    return function  # type: ignore[no-any-return]


def as_task(made: Any) -> Task:
    """Return a task from (module, inputs) or (module, inputs, loss); inputs are a tensor, a tuple, or named in a dict.

    Without a loss that of the library is taken, `output.loss`, else the mean of what the module returns.
    """
    parts = made if isinstance(made, tuple) else (made,)
    if not 2 <= len(parts) <= 3 or not isinstance(parts[0], nn.Module):
        raise BinsgdmError(f"returned {type(made).__name__}: must return (module, inputs) or (module, inputs, loss)")
    module, inputs, loss = (*parts, mean_of_output)[:3]
    if isinstance(inputs, Mapping):
        return Task(module=module, inputs=(), keywords=dict(inputs), loss=loss)
    return Task(module=module, inputs=inputs if isinstance(inputs, tuple) else (inputs,), loss=loss)


def mean_of_output(output: Any) -> Tensor:
    """Return the loss that a library computes, else the mean of what a module returns."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    numbers = [tensor for tensor in tensors if tensor.is_floating_point()]
    if not numbers:
        raise BinsgdmError(f"the module returns {type(output).__name__}, no tensor: return (module, inputs, loss)")
    return torch.stack([number.float().mean() for number in numbers]).sum()


# Libraries of images


@functools.cache
def declare_torchvision_operators() -> torch.library.Library | None:
    """Declare the operators without which torchvision cannot be imported beside a CPU build of torch.

    The wheel on PyPI is built for CUDA. Beside a CPU torch its operators do not load, and the import fails because
    `torchvision::nms` does not exist; declaring it is enough for models that never call it. transformers imports
    torchvision wherever it is installed. Cached, since the declaration ends with the returned object.
    """
    spec = importlib.util.find_spec("torchvision")
    if torch.version.cuda is not None or torch.version.hip is not None or spec is None:
        return None
    for place in spec.submodule_search_locations or ():
        for path in Path(place).glob("_C*.so"):
            with suppress(OSError):
                torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    if hasattr(torch.ops.torchvision, "nms"):
        return None
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    return library


def _imported(library: str) -> Any:
    """Import a library such that it never asks the network."""
    if library == "transformers":
        os.environ["HF_HUB_OFFLINE"] = "1"
    declare_torchvision_operators()
    return importlib.import_module(library)


def _names_in(library: str) -> list[str]:
    home = _imported("torchvision").models if library == "torchvision" else _imported(library)
    return home.list_models()  # type: ignore[no-any-return]


def _torchvision(name: str, options: ModelOptions) -> FoundModel:
    _check_known("torchvision", name)
    models = _imported("torchvision").models
    # The images that the weights of the model were trained with.
    transforms = next(iter(models.get_model_weights(name))).transforms
    crop = getattr(transforms, "keywords", {}).get("crop_size", 224)
    side = options.side or int(crop if isinstance(crop, int) else crop[0])

    def build() -> Task:
        known = inspect.signature(models.get_model_builder(name)).parameters
        # Detection and segmentation would download the weights of a backbone.
        settings: dict[str, Any] = {"weights_backbone": None} if "weights_backbone" in known else {}
        # Embeddings of positions have the size of the image, where convolutions take any.
        if options.side and name.startswith("vit_"):
            settings["image_size"] = side
        return _of_images(models.get_model(name, weights=None, **settings), options.batch, side)

    return FoundModel(f"{name} (torchvision)", build, "torchvision", takes=("side",))


def _timm(name: str, options: ModelOptions) -> FoundModel:
    _check_known("timm", name)
    # Likewise.
    has_fixed_side = name.startswith(("vit_", "deit", "beit", "swin", "mixer"))

    def build() -> Task:
        settings = {"img_size": options.side} if options.side and has_fixed_side else {}
        module = _imported("timm").create_model(name, pretrained=False, **settings)
        return _of_images(module, options.batch, options.side or module.default_cfg["input_size"][-1])

    return FoundModel(f"{name} (timm)", build, "timm", takes=("side",))


_IMAGE_LIBRARIES = {"torchvision": _torchvision, "timm": _timm}


def _check_known(library: str, name: str) -> None:
    known = _names_in(library)
    if name not in known:
        near = get_close_matches(name, known, n=1)
        raise BinsgdmError(
            f"{library}:{name}: no such model of {library}{f'; did you mean {near[0]!r}' if near else ''}: see its "
            "list_models()"
        )


def _of_images(module: nn.Module, batch: int, side: int) -> Task:
    return as_task((module.train(), torch.randn(batch, 3, side, side)))


# Configs of transformers

HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForImageClassification")
"""Ends of the names of classes with a loss, the likeliest first, for a config that names no class."""
_PAIR = "ForConditionalGeneration"
"""Of an encoder with a decoder."""


def _of_config(name: str, options: ModelOptions) -> FoundModel:
    """Return the model of `config.json`, of a folder that holds one, or of `LlamaConfig:config.json` without a type."""
    library = _imported("transformers")
    class_name, _, place = name.rpartition(":")
    path = Path(place, "config.json") if Path(place).is_dir() else Path(place)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BinsgdmError(f"{path}: cannot be read as JSON ({error}): give the config.json of a model") from error
    if not isinstance(data, dict):
        raise BinsgdmError(f"{path}: a {type(data).__name__}: must be the config.json of a model")
    kind, architectures = data.pop("model_type", ""), data.pop("architectures", None) or []
    config_class = _config_class(library, class_name, kind, name)
    model_class = _model_class(library, architectures[0] if architectures else "", config_class, name)

    def build() -> Task:
        config = config_class(**data)
        config.use_cache = False  # keys and values are kept for generation alone
        module = model_class(config)
        module.forward = _of_whole_sequences(module.forward)
        return as_task((module, _inputs(module, *options)))

    takes = "side" if model_class.main_input_name == "pixel_values" else "length"
    note = f"{path.name}: quantization_config: weights and products count in --dtype, not as quantized"
    notes = (note,) if data.get("quantization_config") else ()
    title = f"{model_class.__name__} of {path.name}"
    return FoundModel(title, build, "transformers", takes=(takes,), notes=notes)


def _of_whole_sequences(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return forward of a model whose samples are whole sequences, which the library cannot read off fake positions.

    It would write down a mask for sequences that are packed into one, and attention would not be causal by itself.
    """
    try:
        masking = importlib.import_module("transformers.masking_utils")
    except ImportError:  # of another version
        masking = None
    if not hasattr(masking, "find_packed_sequence_indices"):
        return forward

    @functools.wraps(forward)
    def run(*inputs: Any, **named: Any) -> Any:
        with patch.multiple(masking, find_packed_sequence_indices=lambda _: None):
            return forward(*inputs, **named)

    return run


def _config_class(library: Any, class_name: str, kind: str, name: str) -> Any:
    try:
        return getattr(library, class_name) if class_name else type(library.AutoConfig.for_model(kind))
    except (AttributeError, ValueError) as error:
        known = [attribute for attribute in dir(library) if attribute.endswith("Config")]
        near = get_close_matches(class_name, known, n=1) if class_name else []
        hint = f"; did you mean {near[0]!r}" if near else ""
        raise BinsgdmError(
            f"{name}: {class_name or kind or 'no model_type'}: no config class of transformers{hint}: write "
            "transformers:LlamaConfig:config.json with the class of yours"
        ) from error


def _model_class(library: Any, architecture: str, config_class: Any, name: str) -> Any:
    """Return the class that a config names, or the likeliest one with a loss."""
    stem = config_class.__name__.removesuffix("Config")
    heads = (
        sorted(HEADS, key=lambda head: head != _PAIR) if getattr(config_class, "is_encoder_decoder", False) else HEADS
    )
    for wanted in [architecture] if architecture else [f"{stem}{head}" for head in heads]:
        if (model_class := getattr(library, wanted, None)) is not None:
            return model_class
    raise BinsgdmError(
        f"{name}: {architecture or stem}: no model class of transformers with a loss: name one as architectures in the "
        "config, or write module:function"
    )


def _inputs(module: Any, batch: int, length: int | None, side: int | None = None) -> dict[str, Tensor]:
    """Return a batch by what the model calls its main input, with labels for the loss of its head."""
    config, head = module.config, type(module).__name__
    if module.main_input_name == "pixel_values":
        pixels: Any = side or getattr(config, "image_size", 224)
        sides = (pixels, pixels) if isinstance(pixels, int) else tuple(pixels)
        images = torch.randn(batch, getattr(config, "num_channels", 3), *sides)
        labels = {"labels": torch.zeros(batch, dtype=torch.long)} if head.endswith("ImageClassification") else {}
        return {"pixel_values": images, **labels}
    others = [kind for kind in ("vision", "audio") if getattr(config, f"{kind}_config", None) is not None]
    if others:
        raise BinsgdmError(
            f"{head}: takes {' and '.join(others)} besides text, which have no batch here; write module:function that "
            "returns (module, inputs), or give the config of its text model (text_config)"
        )
    if module.main_input_name != "input_ids":
        raise BinsgdmError(
            f"{head}: takes {module.main_input_name!r}, which has no batch here; write module:function that returns "
            "(module, inputs)"
        )
    # As Llama's configs name it, and GPT-2's.
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or LONGEST
    tokens = torch.randint(config.get_text_config().vocab_size, (batch, length or min(LONGEST, longest)))
    decoded = {"decoder_input_ids": tokens} if getattr(config, "is_encoder_decoder", False) else {}
    return {"input_ids": tokens, **decoded, **_labels(head, tokens)}


def _labels(head: str, tokens: Tensor) -> dict[str, Tensor]:
    of_sequence = torch.zeros(tokens.shape[0], dtype=torch.long)
    if head.endswith("QuestionAnswering"):
        return {"start_positions": of_sequence, "end_positions": of_sequence}
    if head.endswith("SequenceClassification"):
        return {"labels": of_sequence}
    if head.endswith("ForPreTraining"):
        return {"labels": tokens, "next_sentence_label": of_sequence} if head.startswith("Bert") else {}
    return {"labels": tokens} if head.endswith(HEADS) or head.endswith("TokenClassification") else {}


# The models behind the shipped workloads, as torchvision and transformers define them

Attention = Literal["sdpa", "eager"]


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A model as its library defines it, and what is sent through it.

    Attributes:
        name: of the model, and of its workload and its file in scenarios/workloads/gradients where it has one.
        title: for people.
        expression: what makes the module.
        library: where from.
        input: one sample, in words.
        make: returns the module; with transformers' attention, fused ("sdpa") or with the whole score matrix ("eager").
        task: returns the module with a batch of so many samples, on the current default device.
        batches: samples a GPU that are measured, the smallest first: those of the workload and its compute rows.
        is_convolutional: tensor cores are faster with its channels last.
    """

    name: str
    title: str
    expression: str
    library: str
    input: str
    make: Callable[[Attention], nn.Module]
    task: Callable[[nn.Module, int], Task]
    batches: tuple[int, ...] = ()
    is_convolutional: bool = False

    def build(self, samples: int, attention: Attention = "sdpa") -> Task:
        """Build the module with a batch, from a fixed seed, on the current default device."""
        torch.manual_seed(SEED)
        return self.task(self.make(attention), samples)


def what_is_missing(definition: Definition) -> str:
    """Return what to install before a model can be built, or an empty string."""
    if importlib.util.find_spec(definition.library) is not None:
        return ""
    if definition.library != "torchvision":
        return INSTALL_MODELS
    # "==0.26" goes with torch 2.11: each version of either is built for one of the other.
    major, minor, *_ = importlib.metadata.version("torch").split(".")
    version = f"==0.{int(minor) + 15}.*" if major == "2" else ""
    return f"pip install pillow && pip install --no-deps torchvision{version}"


def _image_classifier(name: str, title: str) -> Definition:
    """Return the definition of the torchvision model `name`, with random images and their cross entropy."""

    def task(module: nn.Module, samples: int) -> Task:
        images, labels = torch.randn(samples, 3, 224, 224), torch.zeros(samples, dtype=torch.long)
        return Task(module=module, inputs=(images,), loss=lambda output: functional.cross_entropy(output, labels))

    return Definition(
        name=name,
        title=title,
        expression=f"torchvision.models.{name}()",
        library="torchvision",
        input="one 224x224 RGB image",
        make=lambda _attention: getattr(_imported("torchvision").models, name)(),
        task=task,
    )


def _of_transformers(  # noqa: PLR0913
    name: str, title: str, family: str, head: str, *, inputs: Callable[[Any, int], Any], sample: str, **sizes: int
) -> Definition:
    """Return the definition of a model of transformers with random weights: its family and head make its class."""
    settings: dict[str, Any] = sizes if family == "Bert" else {**sizes, "use_cache": False}

    def make(attention: Attention) -> nn.Module:
        transformers = _imported("transformers")
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
        task=lambda module, samples: as_task((module, inputs(module, samples))),
    )


def _denoising(module: Any, samples: int) -> dict[str, Tensor]:
    """Return sequences of 512 tokens, in which 15 % were masked, with their 114 targets.

    Source: Raffel et al., Exploring the limits of transfer learning, 2020, section 3.1.4 (spans of 3, inputs of 512).
    """
    lengths = {"input_ids": 512, "labels": 114}
    return {name: torch.randint(module.config.vocab_size, (samples, length)) for name, length in lengths.items()}


# The library's head of pre-training predicts every token; recipes that predict only the masked ones (20 of 128) spend
# less on it.
_pre_training = partial(
    _of_transformers, family="Bert", head="ForPreTraining", inputs=partial(_inputs, length=128),
    sample="one sequence of 128 tokens, all of them predicted",
)  # fmt: skip
_BERT = _pre_training("bert_base", "BERT-Base (for pre-training)")
_BERT_LARGE = _pre_training(
    "bert_large", "BERT-Large (for pre-training)",
    hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
)  # fmt: skip
_SQUAD = _of_transformers(
    "bert_base_squad", "BERT-Base (for answers to questions)", "Bert", "ForQuestionAnswering",
    inputs=partial(_inputs, length=384), sample="one sequence of 384 tokens",
)  # fmt: skip
_GPT2 = _of_transformers(
    "gpt2_small", "GPT-2 small", "GPT2", "LMHeadModel",
    inputs=partial(_inputs, length=1024), sample="one sequence of 1024 tokens",
)  # fmt: skip
_T5 = _of_transformers(
    "t5_large", "T5-Large", "T5", "ForConditionalGeneration",
    inputs=_denoising, sample="one sequence of 512 tokens, and 114 to be predicted",
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
    replace(_BERT, batches=(16, 64, 256)),
    replace(_BERT_LARGE, batches=(8, 32, 128)),
    replace(_GPT2, batches=(4, 8, 32)),
    replace(_RESNET50, batches=(32, 64, 256), is_convolutional=True),
    replace(_VGG16, batches=(16, 64, 256), is_convolutional=True),
    replace(_VIT, batches=(32, 64, 256)),
    replace(_SQUAD, batches=(8, 16, 80)),
)
"""One for each workload in scenarios/workloads."""
