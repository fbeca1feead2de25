"""Print as JSON what torch, Triton and NCCL say of this machine: `python -m binsgdm.bench.gpu.probe`.

A process of its own, since one that has looked at a card holds some of its memory until it ends.
"""

import importlib
import json
import platform
import sys
import warnings
from typing import Any


def main() -> None:
    """Print one line of JSON on standard output."""
    out = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no JSON
    print(json.dumps(found()), file=out)


def found() -> dict[str, Any]:
    """Return versions and cards; `error` says why torch cannot use one."""
    import torch

    versions = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "rocm": torch.version.hip or "",
        "triton": _triton(),
        "nccl": "",
    }
    answer: dict[str, Any] = {"versions": versions, "cards": [], "error": ""}
    with warnings.catch_warnings(record=True) as caught:  # torch tells in a warning why it cannot use a driver
        warnings.simplefilter("always")
        if not torch.cuda.is_available():
            return answer | {"error": " ".join(str(caught[0].message).split()) if caught else ""}
    try:
        answer["cards"] = [_card(index) for index in range(torch.cuda.device_count())]
        # Builds of torch leave out old cards: only a kernel that runs shows that this card is none of them.
        torch.ones(8, device="cuda").add_(1).sum().item()
    except RuntimeError as error:
        return answer | {"error": str(error).strip().splitlines()[0]}
    versions["nccl"] = _nccl()
    return answer


def _card(index: int) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    return {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "num_multiprocessors": properties.multi_processor_count,
        "l2_bytes": getattr(properties, "L2_cache_size", 0),
        "memory_bytes": total,
        "free_bytes": free,
    }


def _triton() -> str:
    try:
        return str(importlib.import_module("triton").__version__)
    except Exception:  # a Triton that does not fit breaks in many ways
        return ""


def _nccl() -> str:
    import torch

    try:
        found = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    except (AttributeError, RuntimeError):
        return ""
    return ".".join(map(str, found)) if isinstance(found, tuple) else str(found)


if __name__ == "__main__":
    main()
