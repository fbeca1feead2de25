"""NVIDIA's compute-sanitizer watches the Triton kernels: a read outside of a tensor changes no bit, and is found."""

import os
import subprocess
import sys

import pytest

from tests.helpers.needs import ROOT, needs

needs("torch")

from tests.gpu import memcheck

ERRORS_FOUND = 86


def test_no_kernel_reads_outside_of_a_tensor() -> None:
    needs("GPU", "triton", "compute-sanitizer")
    # Calls of CUDA that fail are no errors of a kernel: torch asks for what a driver may not have.
    command = ["compute-sanitizer", "--tool", "memcheck", "--report-api-errors", "no"]
    command += ["--error-exitcode", str(ERRORS_FOUND), sys.executable, "-m", "tests.gpu.memcheck", "cuda:0"]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_program_that_the_sanitizer_watches_calls_every_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memcheck, "NUMELS", (1, 33))
    memcheck.main("cpu")
