"""Export the gradients of real models, in the order in which backward makes them ready, to JSON.

Each file `scenarios/workloads/gradients/NAME.json` holds one row per parameter tensor: its name, its shape,
and the backward FLOPs of one sample spent since the gradient of the row before became ready. The cumulative
sum over the total is therefore the fraction of backward that is done when that gradient can be sent.

The order comes from the autograd engine, in one forward and backward of one sample of full size on tensors without
memory (`binsgdm.recording`, as `simnet model` counts). A tied parameter (BERT's decoder, GPT-2's `wte`) has one row, at
the moment at which its last contribution has been accumulated, which is when DistributedDataParallel sees it. With more
samples the order and the totals per sample stay; only where a weight and its own bias share one product can the split
between the two move.

Counted are the multiplications and additions of matrix products and convolutions (1 multiply-add = 2 FLOPs), as
`torch.utils.flop_counter` counts them; element-wise work is not. Attention is computed without a fused kernel, so no
recomputation is counted, and with the whole score matrix, also where half of it is masked (GPT-2).

The environment (CPU; torchvision without dependencies, since its wheel would replace torch):

    python3.11 -m venv .venv-models
    .venv-models/bin/pip install torch==2.13.0 numpy pillow transformers==5.23.0
    .venv-models/bin/pip install --no-deps torchvision==0.28.0
    .venv-models/bin/python -m evidence.studies.export_models            # half a minute
    .venv-models/bin/python -m evidence.studies.export_models --check    # exit 1 where a committed file differs
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import sys
from typing import Any

from binsgdm.recording.model_sources import WITH_GRADIENTS, Definition
from evidence import ROOT

GRADIENTS_DIR = ROOT / "scenarios" / "workloads" / "gradients"
FORMAT = 2


def describe(definition: Definition) -> dict[str, Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from binsgdm.recording.step_description import without_memory

    with sdpa_kernel(SDPBackend.MATH):
        description, _ = without_memory(lambda: definition.build(1, "eager"))
    return {
        "format": FORMAT,
        "name": definition.name,
        "title": definition.title,
        "definition": definition.expression,
        # Without its local part: `2.13.0+cpu` is `2.13.0`.
        "versions": {
            library: importlib.metadata.version(library).partition("+")[0] for library in ("torch", definition.library)
        },
        "input": definition.input,
        "num_elements": sum(math.prod(tensor.shape) for tensor in description.gradients),
        "forward_flops_per_sample": int(description.forward.flops),
        "backward_flops_per_sample": int(description.backward.flops),
        "tensors": [(tensor.name, tensor.shape, int(tensor.flops)) for tensor in description.gradients],
    }


def to_json(contents: dict[str, Any]) -> str:
    """Write one key a line and one tensor a line, so that a change is a readable diff."""
    head = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in contents.items() if key != "tensors"]
    rows = ",\n".join(f"    {json.dumps(row)}" for row in contents["tensors"])
    return "\n".join(["{", *head, '  "tensors": [', rows, "  ]", "}"]) + "\n"


def main() -> int:
    """Write or check the files; return the exit status."""
    parser = argparse.ArgumentParser(description="Export the gradients of real models to JSON.")
    parser.add_argument("--check", action="store_true", help="compare with the committed files and write nothing")
    parser.add_argument("--only", choices=[definition.name for definition in WITH_GRADIENTS], help="one model")
    options = parser.parse_args()
    num_different = 0
    for definition in WITH_GRADIENTS:
        if options.only in (None, definition.name):
            path, text = GRADIENTS_DIR / f"{definition.name}.json", to_json(describe(definition))
            same = path.is_file() and path.read_text(encoding="utf-8") == text
            num_different += not same
            if not (same or options.check):
                path.write_text(text, encoding="utf-8")
            print(f"{path.name}: {'same' if same else 'differs' if options.check else 'written'}")
    return 1 if options.check and num_different else 0


if __name__ == "__main__":
    sys.exit(main())
