"""Export the gradients of real models, in the order in which backward makes them ready, to JSON.

Each file `scenarios/workloads/gradients/NAME.json` holds one row per parameter tensor: its name, its shape,
and the backward FLOPs of one sample spent since the gradient of the row before became ready. The cumulative
sum over the total is therefore the fraction of backward that is done when that gradient can be sent.

The order comes from the autograd engine, in one real forward and backward on the CPU with one sample of full size and
random weights. A tied parameter (BERT's decoder, GPT-2's `wte`) has one row, at the moment at which its last
contribution has been accumulated, which is when DistributedDataParallel sees it. With more samples the order and the
totals per sample stay; only where a weight and its own bias share one product can the split between the two move.

Counted are the multiplications and additions of matrix products and convolutions (1 multiply-add = 2 FLOPs), as
`torch.utils.flop_counter` counts them; element-wise work is not. Attention is computed without a fused kernel, so no
recomputation is counted, and with the whole score matrix, also where half of it is masked (GPT-2).

The environment (CPU; torchvision without dependencies, since its wheel would replace torch):

    python3.11 -m venv .venv-models
    .venv-models/bin/pip install torch==2.13.0 numpy pillow transformers==5.23.0
    .venv-models/bin/pip install --no-deps torchvision==0.28.0
    .venv-models/bin/python studies/export_models.py            # a minute, 5 GB of memory
    .venv-models/bin/python studies/export_models.py --check    # exit 1 where a committed file differs
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

GRADIENTS_DIR = Path(__file__).resolve().parents[1] / "scenarios" / "workloads" / "gradients"
FORMAT = 2
SEED = 0

Loss = Callable[[], "torch.Tensor"]
Built = tuple["torch.nn.Module", Loss]
Row = tuple[str, tuple[int, ...], int]


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A model as its library defines it, and the one sample that is sent through it."""

    name: str
    title: str
    expression: str
    library: str
    input: str
    build: Callable[[], Built]


@functools.cache
def declare_torchvision_operators() -> torch.library.Library | None:
    """Declare the operators without which torchvision cannot be imported beside a CPU build of torch.

    The wheel on PyPI is built for CUDA. Beside a CPU torch its operators do not load, and the import fails because
    `torchvision::nms` does not exist; declaring it is enough for models that never call it. transformers imports
    torchvision wherever it is installed. Cached, since the declaration ends with the returned object.
    """
    import torch

    if torch.version.cuda is not None or importlib.util.find_spec("torchvision") is None:
        return None
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def build_image_classifier(name: str) -> Built:
    """Build the torchvision model `name` and its cross entropy on one random 224x224 image."""
    import torch

    declare_torchvision_operators()
    import torchvision

    module = getattr(torchvision.models, name)()
    image = torch.randn(1, 3, 224, 224)
    label = torch.zeros(1, dtype=torch.long)
    return module, lambda: torch.nn.functional.cross_entropy(module(image), label)


def import_transformers() -> Any:
    """Import transformers such that it never asks the network."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    declare_torchvision_operators()
    import transformers

    return transformers


def build_bert(**config: int) -> Built:
    """Build BERT with both pre-training heads and its loss on one random sequence of 128 tokens.

    The library's head predicts every token; recipes that predict only the masked ones (20 of 128) spend less on it.
    """
    import torch

    transformers = import_transformers()
    bert_config = transformers.BertConfig(attn_implementation="eager", **config)
    module = transformers.BertForPreTraining(bert_config)
    tokens = torch.randint(bert_config.vocab_size, (1, 128))
    next_sentence = torch.zeros(1, dtype=torch.long)
    return module, lambda: module(input_ids=tokens, labels=tokens, next_sentence_label=next_sentence).loss


def build_gpt2() -> Built:
    """Build GPT-2 small with its language-model head and its loss on one random sequence of 1024 tokens."""
    import torch

    transformers = import_transformers()
    config = transformers.GPT2Config(attn_implementation="eager", use_cache=False)
    module = transformers.GPT2LMHeadModel(config)
    tokens = torch.randint(config.vocab_size, (1, 1024))
    return module, lambda: module(input_ids=tokens, labels=tokens).loss


def image_classifier(name: str, title: str) -> Definition:
    """Return the definition of the torchvision model `name`."""
    return Definition(
        name=name,
        title=title,
        expression=f"torchvision.models.{name}()",
        library="torchvision",
        input="one 224x224 RGB image",
        build=lambda: build_image_classifier(name),
    )


BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
DEFINITIONS = (
    image_classifier("resnet50", "ResNet-50"),
    image_classifier("resnet101", "ResNet-101"),
    image_classifier("resnext101_32x8d", "ResNeXt-101 32x8d"),
    image_classifier("vgg16", "VGG-16"),
    image_classifier("vit_b_16", "ViT-B/16"),
    Definition(
        name="bert_base",
        title="BERT-Base (for pre-training)",
        expression="transformers.BertForPreTraining(BertConfig())",
        library="transformers",
        input="one sequence of 128 tokens, all of them predicted",
        build=build_bert,
    ),
    Definition(
        name="bert_large",
        title="BERT-Large (for pre-training)",
        expression="transformers.BertForPreTraining(BertConfig({}))".format(
            ", ".join(f"{key}={value}" for key, value in BERT_LARGE.items())
        ),
        library="transformers",
        input="one sequence of 128 tokens, all of them predicted",
        build=lambda: build_bert(**BERT_LARGE),
    ),
    Definition(
        name="gpt2_small",
        title="GPT-2 small",
        expression="transformers.GPT2LMHeadModel(GPT2Config())",
        library="transformers",
        input="one sequence of 1024 tokens",
        build=build_gpt2,
    ),
)


def convolution_backward_flops(
    grad_out_shape: Sequence[int],
    input_shape: Sequence[int],
    weight_shape: Sequence[int],
    *settings: Any,
    **_: object,
) -> int:
    """Count the backward of a convolution: each gradient that is asked for costs what forward did.

    torch 2.13's own formula counts the gradient of a grouped convolution's weight as if it had one group, 32 times too
    much in a ResNeXt; without groups the two agree. `settings` ends with (of input, of weight, of bias) asked for.
    """
    from torch.utils.flop_counter import conv_flop_count

    forward_flops: int = conv_flop_count(list(input_shape), list(weight_shape), list(grad_out_shape))
    num_products: int = sum(settings[-1][:2])
    return num_products * forward_flops


def run_backward(module: torch.nn.Module, loss: Loss) -> tuple[list[Row], int, int]:
    """Run one forward and one backward and record when each gradient becomes ready.

    Fills the `grad` of every parameter.

    Returns:
        One (name, shape, backward FLOPs since the row before) per parameter, in gradient-ready order;
        the FLOPs of forward; the FLOPs of backward.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    corrections = {torch.ops.aten.convolution_backward: convolution_backward_flops}
    counter = FlopCounterMode(display=False, custom_mapping=corrections)
    ready: list[Row] = []

    def record(name: str) -> Callable[[torch.Tensor], None]:
        return lambda parameter: ready.append((name, tuple(parameter.shape), counter.get_total_flops()))

    for name, parameter in module.named_parameters():
        parameter.register_post_accumulate_grad_hook(record(name))
    with sdpa_kernel(SDPBackend.MATH), counter:
        value = loss()
        forward_flops = counter.get_total_flops()
        value.backward()
    backward_flops = counter.get_total_flops() - forward_flops
    return split_at_ready(ready, forward_flops), forward_flops, backward_flops


def split_at_ready(ready: Iterable[Row], start_flops: int) -> list[Row]:
    """Turn the running FLOP count at each gradient into the FLOPs spent since the gradient before.

    Example:
        >>> split_at_ready([("head", (4,), 130), ("stem", (2, 1), 150)], 100)
        [('head', (4,), 30), ('stem', (2, 1), 20)]
    """
    rows = []
    for name, shape, running_flops in ready:
        rows.append((name, shape, running_flops - start_flops))
        start_flops = running_flops
    return rows


def describe(definition: Definition) -> dict[str, Any]:
    """Build the model and return the contents of its file."""
    import torch

    torch.manual_seed(SEED)
    module, loss = definition.build()
    module.train()
    tensors, forward_flops, backward_flops = run_backward(module, loss)
    missing = {name for name, _ in module.named_parameters()} - {name for name, *_ in tensors}
    if missing:
        raise SystemExit(f"{definition.name}: parameters without a gradient: {sorted(missing)}")
    return {
        "format": FORMAT,
        "name": definition.name,
        "title": definition.title,
        "definition": definition.expression,
        "versions": {library: public_version(library) for library in ("torch", definition.library)},
        "input": definition.input,
        "num_elements": sum(math.prod(shape) for _, shape, _ in tensors),
        "forward_flops_per_sample": forward_flops,
        "backward_flops_per_sample": backward_flops,
        "tensors": tensors,
    }


def public_version(library: str) -> str:
    """Return the installed version of `library` without its local part (`2.13.0+cpu` is `2.13.0`)."""
    return importlib.metadata.version(library).partition("+")[0]


def to_json(contents: dict[str, Any]) -> str:
    """Write one key a line and one tensor a line, so that a change is a readable diff."""
    head = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in contents.items() if key != "tensors"]
    rows = ",\n".join(f"    {json.dumps(row)}" for row in contents["tensors"])
    return "\n".join(["{", *head, '  "tensors": [', rows, "  ]", "}"]) + "\n"


def same_as_committed(path: Path, text: str) -> bool:
    """Return whether `path` holds exactly `text`."""
    return path.is_file() and path.read_text(encoding="utf-8") == text


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Export the gradients of real models to JSON.")
    parser.add_argument("--check", action="store_true", help="compare with the committed files and write nothing")
    parser.add_argument("--only", choices=[definition.name for definition in DEFINITIONS], help="one model")
    return parser.parse_args()


def main() -> int:
    """Write or check the files; return the exit status."""
    arguments = parse_arguments()
    num_different = 0
    for definition in DEFINITIONS:
        if arguments.only not in (None, definition.name):
            continue
        path, text = GRADIENTS_DIR / f"{definition.name}.json", to_json(describe(definition))
        same = same_as_committed(path, text)
        num_different += not same
        if not (same or arguments.check):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        print(f"{path.name}: {'same' if same else 'differs' if arguments.check else 'written'}")
    return 1 if arguments.check and num_different else 0


if __name__ == "__main__":
    sys.exit(main())
