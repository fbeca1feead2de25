"""What compute-sanitizer says of the kernels, and the program that it watches."""

import pytest

from tests.helpers.needs import needs

needs("torch")

from binsgdm.bench.gpu import memcheck

FOUND = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at _update_kernel+0x1f0 in triton_programs.py:88
=========     by thread (96,0,0) in block (0,0,0)
========= ERROR SUMMARY: 1 error
"""


@pytest.fixture
def sanitizer(tmp_path, monkeypatch):
    """Return what makes a sanitizer that prints and ends in a certain way."""

    def make(text: str, code: int) -> None:
        path = tmp_path / "compute-sanitizer"
        path.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n{text}\nexit {code}\n')
        path.chmod(0o755)
        monkeypatch.setattr(memcheck, "PLACES", (str(path),))

    return make


def test_an_access_outside_of_a_tensor_is_told_with_its_kernel(sanitizer, tmp_path):
    sanitizer(f"cat <<END\n{FOUND}END", memcheck.ERRORS_FOUND)
    passed, found = memcheck.watched("cuda:0", 20.0)
    assert passed is False
    assert found.startswith("Invalid __global__ read of size 4 bytes; at _update_kernel+0x1f0")
    assert (tmp_path / "asked").read_text().endswith("-m binsgdm.bench.gpu.memcheck cuda:0\n")


@pytest.mark.parametrize(
    ("text", "code", "passed", "found"),
    [
        ("", 0, True, ""),
        ("echo no driver >&2", 1, None, "compute-sanitizer ended with 1: no driver"),
        ("exec sleep 20", 0, None, "compute-sanitizer took more than 1 s"),
    ],
)
def test_it_is_said_when_nothing_is_found_or_nothing_can_be(text, code, passed, found, sanitizer):
    sanitizer(text, code)
    assert memcheck.watched("cuda:0", 0.6 if "sleep" in text else 20.0) == (passed, found)


def test_without_a_sanitizer_there_is_no_path(monkeypatch):
    monkeypatch.setattr(memcheck, "PLACES", ("/nowhere/compute-sanitizer",))
    assert memcheck.tool() == ""


def test_every_kernel_runs_on_memory_without_guards(monkeypatch):
    monkeypatch.setenv("BINSGDM_KERNELS", "reference")
    monkeypatch.setattr(memcheck, "NUMELS", (1, 33))
    memcheck.main(["cpu"])
