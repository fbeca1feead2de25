"""What the compiler makes of the Triton kernels, for GPUs that need not be there.

    python -m evidence.benchmarks.compiled

Every kernel is called as a step calls it, and compiled in place of launched. What comes out is what its instructions
are, not a time.
"""

import argparse
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

# Triton looks once, when something (torch, too) first imports it.
os.environ["TRITON_INTERPRET"] = "0"

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from binsgdm.kernels import select, triton_kernels, triton_signs, triton_support
from binsgdm.kernels.functional import packed_numel
from binsgdm.kernels.random import Key
from simnet.report.table import Table

TARGETS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "gfx942")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LEAST_BYTES = {"merge": 4, "thresholds": 4, "draws": 8, "pack": 8}
"""What the widest access must have, else 16: draws may begin at any element, and merged words are a thread's own."""
# Triton compiles anew for arguments that are 1, multiples of 16 or large, unless told not to.
_NUMBERS: tuple[dict[str, Any], ...] = (
    {"numel": 8192, "key": Key(seed=2**63 + 5, step=2**31 + 3, rank=7, stream=1), "start": 0},
    {"numel": 33, "key": Key(seed=1, step=1, rank=16), "start": 8},
)
_TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled for a target.

    Attributes:
        widest_bytes: the widest access of a thread to memory.
        local_accesses: to memory that registers were spilled to.
        flushing, fused, inexact: instructions that flush subnormals, fuse a product and a sum, divide with an error.
        variants: how often it is compiled for calls that differ in numbers only.
    """

    kernel: str
    target: str
    registers: int = 0
    widest_bytes: int = 0
    local_accesses: int = 0
    flushing: int = 0
    fused: int = 0
    inexact: int = 0
    variants: int = 1

    def faults(self) -> list[str]:
        """Say what would give other bits than the reference, or cost time."""
        least = LEAST_BYTES.get(self.kernel, 16)
        faults = {
            "flushes subnormals": self.flushing,
            "fuses a product and a sum": self.fused,
            "divides with an error": self.inexact,
            "is compiled anew for other numbers": self.variants > 1,
            "spills registers": self.local_accesses,
            "accesses memory by less than 16 bytes": self.registers > 0 and self.widest_bytes < least,
        }
        return [text for text, is_so in faults.items() if is_so]


def calls(numel: int, key: Key, start: int) -> dict[str, Callable[[], object]]:
    m, b, u = (torch.zeros(numel) for _ in range(3))
    packed = torch.zeros(packed_numel(numel), dtype=torch.uint8)
    rows, parts = packed.repeat(2, 1), torch.zeros(2, numel)
    residual = torch.zeros(numel, dtype=torch.int16)
    draws: dict[str, Any] = {"key": key, "start": start, "out": packed}
    kernels = select("triton", "cuda")
    by_name: dict[str, Callable[[], object]] = {
        "quantize_pack": lambda: kernels.quantize_pack(u, **draws),
        "merge": lambda: kernels.merge(rows, numel=numel, **draws),
        "merge_shaped": lambda: kernels.merge_shaped_(rows, residual, numel=numel, out=packed),
        "shape_pack": lambda: kernels.shape_pack_(u, residual, gain=2.0, out=packed),
        "mean": lambda: kernels.mean_(parts, u),
        "thresholds": lambda: triton_signs.write_draws(u, key.words(), start=start),
        "draws": lambda: triton_signs.write_draws(u.to(torch.int64), key.words(), start=start),
        "pack": lambda: triton_signs.pack(u > 0, packed),
        "unpack": lambda: triton_signs.unpack(packed, u),
    }
    for dtype in DTYPES:
        gradient, text = torch.zeros(numel, dtype=dtype), str(dtype).removeprefix("torch.")
        by_name |= {
            f"update {text}": lambda x=gradient: kernels.update_(x, m, b, beta=0.9, beta_b=0.9, out_u=u),  # type: ignore[misc]
            f"update_quantize_pack {text}": lambda x=gradient: kernels.update_quantize_pack_(  # type: ignore[misc]
                x, m, b, beta=0.9, beta_b=0.9, **draws
            ),
            f"update_shape_pack {text}": lambda x=gradient: kernels.update_shape_pack_(  # type: ignore[misc]
                x, m, b, residual, beta=0.9, beta_b=0.9, gain=2.0, out=packed
            ),
            f"unpack_apply {text}": lambda x=gradient: kernels.unpack_apply_(  # type: ignore[misc]
                x, packed, lr=1e-3, weight_decay=0.1
            ),
        }
    return by_name


def compiled_for(target: str, wanted: Sequence[str] = ()) -> Iterator[Compiled]:
    """Compile what the wanted kernels, or all, launch on a target."""
    some_calls = [calls(**numbers) for numbers in _NUMBERS]
    for name in wanted or some_calls[0]:
        with _compiling(target) as made:
            for each in some_calls:
                each[name]()
        yield _looked_at(name, target, made[0], len({id(binary) for binary in made}))


@contextmanager
def _compiling(target: str) -> Iterator[list[Any]]:
    """Let launches compile for a target, and nothing run."""
    made: list[Any] = []
    is_amd = target.startswith("gfx")
    gpu = GPUTarget("hip", target, 64) if is_amd else GPUTarget("cuda", int(target.removeprefix("sm_")), 32)

    def launch(program: Any, num_programs: int, *arguments: object, registers: int = 64, **constants: Any) -> None:
        options = triton_support.options(torch.device("cpu" if is_amd else "cuda"), registers)
        made.append(program.warmup(*arguments, grid=(num_programs,), **constants, **options))

    driver.set_active(mock.Mock(get_current_device=lambda: str(gpu), get_current_target=lambda: gpu))
    with mock.patch.object(triton_kernels, "launch", launch), mock.patch.object(triton_support, "launch", launch):
        yield made


def _looked_at(name: str, target: str, binary: Any, variants: int) -> Compiled:
    if "cubin" not in binary.asm:
        text = binary.asm["amdgcn"]
        spilled = sum(map(int, re.findall(r"vgpr_spill_count: +(\d+)", text)))
        # A division that is rounded correctly takes five of its own.
        fused = len(re.findall(r"v_(?:pk_)?fmac?_f32", text)) - 5 * len(re.findall(r"v_div_fixup_f32", text))
        return Compiled(name, target, local_accesses=spilled, fused=fused, variants=variants)
    ptx = binary.asm["ptx"]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary.asm["cubin"])
        # Nothing of a target that these tools no longer know, as of sm_70.
        sass, usage = (
            subprocess.run([_TOOLS / tool, option, file.name], capture_output=True, text=True, check=False).stdout
            for tool, option in (("nvdisasm", "-c"), ("cuobjdump", "-res-usage"))
        )
    return Compiled(
        name,
        target,
        registers=int(registers[1]) if (registers := re.search(r"REG:(\d+)", usage)) and sass else 0,
        widest_bytes=_widest(sass.splitlines()),
        local_accesses=len(re.findall(r"\b(?:LDL|STL)\b", sass)),
        flushing=ptx.count(".ftz"),
        fused=len(re.findall(r"\bfma\.", ptx)),
        inexact=len(re.findall(r"\bdiv\.(?:full|approx)|\brcp\.", ptx)),
        variants=variants,
    )


def _widest(lines: Sequence[str]) -> int:
    """Return how many bytes a thread moves at most with an instruction such as LDG.E.128."""
    accesses = [access[0].split(".") for line in lines if (access := re.search(r"(?:LDG|STG)\.E\S*", line))]
    bits = {"8": 8, "U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}
    return max((next((bits[part] for part in access if part in bits), 32) // 8 for access in accesses), default=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--targets", nargs="+", default=("sm_80", "sm_90", "sm_100"), choices=TARGETS)
    parser.add_argument("--kernels", nargs="+", default=(), help="default: all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kernels = [compiled for target in options.targets for compiled in compiled_for(target, options.kernels)]
    if options.json:
        print(json.dumps([{**asdict(compiled), "faults": compiled.faults()} for compiled in kernels]))
        return
    print(f"Triton {triton.__version__}, from the compiler, not measured.\n")
    heads = ("kernel", "target", "widest access [bytes]", "registers")
    cells = ((c.kernel, c.target, c.widest_bytes, c.registers) for c in kernels)
    print(Table(heads, [map(str, row) for row in cells]).markdown())
    faults = [f"{c.kernel} on {c.target} {fault}" for c in kernels for fault in c.faults()]
    print("\n" + ("; ".join(faults) or "No spills, no fused or inexact operation, no flushed subnormals."))
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
