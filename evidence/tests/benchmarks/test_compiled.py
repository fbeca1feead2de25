"""The Triton kernels compiled for GPUs that are not here: nothing fused, flushed or spilled, 16 bytes a thread."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch", "triton")

# The machine code of a target is looked at where Triton's disassembler knows the target.
WITHOUT_MACHINE_CODE = {"sm_70", "gfx942"}


def compiled(folder: Any, *arguments: str) -> list[dict[str, Any]]:
    """Compile in another process: this one has Triton's interpreter."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "evidence.benchmarks.compiled", "--json", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def assert_sound(kernels: list[dict[str, Any]], num_kernels: int) -> None:
    assert len(kernels) == num_kernels
    for kernel in kernels:
        assert kernel["faults"] == [], kernel
        if kernel["target"] not in WITHOUT_MACHINE_CODE:
            assert 0 < kernel["registers"] <= 96, kernel


@pytest.mark.slow
def test_the_largest_kernels_are_compiled_as_they_should_be(tmp_path: Any) -> None:
    kernels = ("update_quantize_pack bfloat16", "unpack_apply float32", "mean", "pack", "draws")
    assert_sound(compiled(tmp_path, "--targets", "sm_90", "--kernels", *kernels), len(kernels))


@pytest.mark.slow
def test_old_and_new_targets_get_the_same_arithmetic(tmp_path: Any) -> None:
    targets = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_100", "sm_120", "gfx942")
    kernels = ("update_quantize_pack float32",)
    assert_sound(compiled(tmp_path, "--targets", *targets, "--kernels", *kernels), len(targets) * len(kernels))
