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
    .venv-models/bin/python -m studies.export_models            # a minute, 5 GB of memory
    .venv-models/bin/python -m studies.export_models --check    # exit 1 where a committed file differs
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from binsgdm.measure.shipped_models import WITH_GRADIENTS, Definition

if TYPE_CHECKING:
    import torch

    from binsgdm.measure.model_zoo import Task

GRADIENTS_DIR = Path(__file__).resolve().parents[1] / "scenarios" / "workloads" / "gradients"
FORMAT = 2

Row = tuple[str, tuple[int, ...], int]


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


def run_backward(task: Task) -> tuple[list[Row], int, int]:
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

    for name, parameter in task.module.named_parameters():
        parameter.register_post_accumulate_grad_hook(record(name))
    with sdpa_kernel(SDPBackend.MATH), counter:
        value = task.loss_of(task.module)
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
    task = definition.build(1, "eager")
    task.module.train()
    tensors, forward_flops, backward_flops = run_backward(task)
    missing = {name for name, _ in task.module.named_parameters()} - {name for name, *_ in tensors}
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
    parser.add_argument("--only", choices=[definition.name for definition in WITH_GRADIENTS], help="one model")
    return parser.parse_args()


def main() -> int:
    """Write or check the files; return the exit status."""
    arguments = parse_arguments()
    num_different = 0
    for definition in WITH_GRADIENTS:
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
