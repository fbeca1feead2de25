"""Models of transformers by their config, with random weights and a synthetic batch; nothing is downloaded."""

import functools
import importlib
import json
import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from binsgdm.errors import BinsgdmError

LONGEST = 1024
"""Tokens of a sequence where none are asked for and the model takes more."""
HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration", "ForImageClassification")
"""Ends of the names of classes with a loss, the likeliest first, for a config that names no class."""
_PAIR = "ForConditionalGeneration"
"""Of an encoder with a decoder."""
Made = tuple[nn.Module, Mapping[str, Tensor]]


def of_config(
    name: str, batch: int, length: int | None, side: int | None
) -> tuple[str, Callable[[], Made], tuple[str, ...], tuple[str, ...]]:
    """Return the title of the model of a config, what makes it with its inputs, what of them it takes, and notes.

    What it takes are "length" or "side".

    Args:
        name: `config.json`, a folder that holds one, or `LlamaConfig:config.json` if the file does not name its type.
        batch: samples.
        length: tokens of a sequence; None for the model's own, at most `LONGEST`.
        side: pixels of a side of an image; None for the model's own.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    given_class, _, place = name.rpartition(":")
    path = Path(place, "config.json") if Path(place).is_dir() else Path(place)
    data = _read(path)
    library = importlib.import_module("transformers")
    kind, architectures = data.pop("model_type", ""), data.pop("architectures", None) or []
    config_class = _config_class(library, given_class, kind, name)
    model_class = _model_class(library, architectures[0] if architectures else "", config_class, name)

    def build() -> Made:
        config = config_class(**data)
        config.use_cache = False
        module = model_class(config)
        module.forward = _of_whole_sequences(module.forward)
        return module, _inputs(module, batch, length, side)

    takes = ("side",) if model_class.main_input_name == "pixel_values" else ("length",)
    quantized = data.get("quantization_config")
    notes = (
        (f"{path.name}: quantization_config: weights and products count in --dtype, not as quantized",)
        if quantized
        else ()
    )
    return f"{model_class.__name__} of {path.name}", build, takes, notes


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
    def run(*given: Any, **named: Any) -> Any:
        with patch.multiple(masking, find_packed_sequence_indices=lambda _: None):
            return forward(*given, **named)

    return run


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BinsgdmError(f"{path}: cannot be read as JSON ({error}): give the config.json of a model") from error
    if not isinstance(found, dict):
        raise BinsgdmError(f"{path}: a {type(found).__name__}: must be the config.json of a model")
    return found


def _config_class(library: Any, given: str, kind: str, name: str) -> Any:
    try:
        return getattr(library, given) if given else type(library.AutoConfig.for_model(kind))
    except (AttributeError, ValueError) as error:
        known = [one for one in dir(library) if one.endswith("Config")]
        near = get_close_matches(given, known, n=1) if given else []
        hint = f"; did you mean {near[0]!r}" if near else ""
        raise BinsgdmError(
            f"{name}: {given or kind or 'no model_type'}: no config class of transformers{hint}: write "
            "transformers:LlamaConfig:config.json with the class of yours"
        ) from error


def _model_class(library: Any, architecture: str, config_class: Any, name: str) -> Any:
    """Return the class that a config names, or the likeliest one with a loss."""
    stem = config_class.__name__.removesuffix("Config")
    heads = (
        sorted(HEADS, key=lambda head: head != _PAIR) if getattr(config_class, "is_encoder_decoder", False) else HEADS
    )
    for wanted in [architecture] if architecture else [f"{stem}{head}" for head in heads]:
        if (found := getattr(library, wanted, None)) is not None:
            return found
    raise BinsgdmError(
        f"{name}: {architecture or stem}: no model class of transformers with a loss: name one as architectures in the "
        "config, or write module:function"
    )


def _inputs(module: Any, batch: int, length: int | None, side: int | None) -> dict[str, Tensor]:
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
