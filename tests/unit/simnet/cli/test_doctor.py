"""`simnet doctor`: what it finds here, what it says of machines that lack something, and completion in a shell."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from simnet.cli import doctor
from simnet.cli.doctor import NAME, VARIABLE
from simnet.cli.main import COMMANDS, cli
from simnet.core import files
from tests.helpers.cli import ROOT, run
from tests.helpers.needs import needs

CARD = {"name": "H100", "compute_capability": "9.0", "free_bytes": 79_000_000_000, "memory_bytes": 80_000_000_000}


@pytest.fixture(autouse=True)
def _no_probe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep torch from being started by each test."""
    if "real_probe" not in request.fixturenames:
        monkeypatch.setattr(doctor, "_probed", lambda: {"versions": {}, "cards": [], "error": ""})


@pytest.fixture
def real_probe() -> None:
    """Let the test start torch."""


def found(name: str) -> doctor.Finding:
    return next(one for one in doctor.findings() if one.name == name)


def test_the_page_and_the_json_say_the_same() -> None:
    page, data = run("doctor"), run("doctor", "--format", "json")
    assert (page.exit_code, data.exit_code) == (0, 0)
    findings = json.loads(data.stdout)["findings"]
    assert {one["part"] for one in findings} == {"machine", "simulator", "extras", "GPU"}
    for one in findings:
        assert one["name"] in page.stdout
        assert one["repair"] in page.stdout
    numpy = next(one for one in findings if one["name"] == "numpy")
    assert numpy == {"part": "simulator", "name": "numpy", "found": metadata.version("numpy"),
                     "needed_for": "all commands", "repair": ""}  # fmt: skip


def test_what_is_missing_or_too_old_has_a_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    known = metadata.version

    def version(name: str) -> str:
        if name in ("pyarrow", "torch"):
            raise metadata.PackageNotFoundError(name)
        return "5.24.1" if name == "plotly" else known(name)

    monkeypatch.setattr(metadata, "version", version)
    assert found("pyarrow") == doctor.Finding(
        "extras", "pyarrow", "", "sweep --format parquet", "in the checkout: pip install '.[dask]'"
    )
    assert found("plotly").repair == "needs 6.0 or newer: in the checkout: pip install '.[report]' --upgrade"
    assert found("GPUs").repair == "not looked for, since torch is missing"
    assert "missing or too old: " in run("doctor").stdout


def test_a_gpu_is_told_with_what_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("torch")
    versions = {"cuda": "13.0", "nccl": "2.28.3", "triton": ""}
    monkeypatch.setattr(doctor, "_probed", lambda: {"versions": versions, "cards": [CARD], "error": ""})
    assert found("GPU").present == "H100, compute capability 9.0, 79.0 GB of 80.0 GB free"
    assert found("NCCL").present == "2.28.3"
    assert found("Triton").repair == "pip install triton"


@pytest.mark.slow
@pytest.mark.usefixtures("real_probe")
def test_torch_is_really_asked() -> None:
    needs("torch")
    (gpus,) = [one for one in doctor.findings() if one.part == "GPU"][:1]
    assert gpus.present or gpus.repair == "torch sees no GPU on this machine"


@pytest.mark.usefixtures("real_probe")
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (subprocess.TimeoutExpired("python", 1), "torch did not answer within 120 s"),
        (subprocess.CompletedProcess("python", 1, b"", b"a\nImportError: no cudart"), "ImportError: no cudart"),
        (subprocess.CompletedProcess("python", 3, b"", b""), "torch cannot be imported: exit code 3"),
    ],
)  # fmt: skip
def test_a_broken_torch_is_one_line(monkeypatch: pytest.MonkeyPatch, answer: Any, said: str) -> None:
    def run_instead(*_: Any, **__: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(metadata, "version", lambda _: "99.0")
    monkeypatch.setattr(doctor.subprocess, "run", run_instead)
    assert said in next(iter(doctor._gpu())).repair


def offered(*words: str) -> list[str]:
    """Return what is offered for the last of some words."""
    *before, typed = words
    return [item.value for item in ShellComplete(cli, {}, NAME, VARIABLE).get_completions(before, typed)]


def test_commands_options_and_modes_are_completed() -> None:
    assert offered("sw") == ["sweep"]
    assert set(offered("")) == set(COMMANDS)
    assert offered("simulate", "x", "--dr") == ["--draws"]
    assert offered("simulate", "x", "--format", "") == ["table", "json", "csv"]
    assert offered("init", "--acc") == ["--accumulation"]  # which --help leaves out
    assert offered("sweep", "x", "--br") == ["--break-even"]
    assert offered("sweep", "x", "--break-even", "cluster.num_nodes", "--t") == ["--to", "--tolerance"]
    assert offered("report", "x", "--figures", "out", "--fo") == ["--format"]


def test_scenarios_parts_and_keys_are_completed() -> None:
    shipped = ["bert_b", *(name for name in files.names("experiments") if name.startswith("bert_b"))]
    for command in ("simulate", "sweep", "advise", "crossover", "explore", "report", "time-to-target"):
        assert offered(command, "bert_b") == shipped
        given = ShellComplete(cli, {}, NAME, VARIABLE).get_completions([command], "./mi")
        assert [(item.value, item.type) for item in given] == [("./mi", "file")]
    for line, name in (
        ("show a100", "a100_tcp_estimate"),
        ("init --workload bert", "bert_base"),
        ("init --strategy h", "hsdp"),
        ("init --gpu A100", "A100-80GB"),
        ("time-to-target bert_base_10gbit cha", "characters"),
        ("advise bert_base_10gbit --time-to-target cha", "characters"),
        ("sweep x --set run.", "run.grad_accumulation"),
    ):
        assert name in offered(*line.split()), line
    assert offered("show", "calib") == ["calib", "calibrations"]
    links = ["cluster.inter_node.bandwidth", "cluster.inter_node.latency"]
    assert offered("simulate", "x", "--set", "cluster.inter_node.") == links
    for option in ("crossover x --over", "sweep x --break-even"):
        assert offered(*option.split(), "cluster.num") == ["cluster.num_nodes"]
    assert not any(key.endswith((".source", ".title")) for key in offered("simulate", "x", "--set", ""))


def test_a_real_bash_completes_by_the_printed_script(tmp_path: Path) -> None:
    needs("bash")
    bash = shutil.which("bash")
    assert bash is not None
    program = tmp_path / "simnet"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(ROOT / "cli.py"))} "$@"\n')
    program.chmod(0o755)
    script = run("doctor", "--completion", "bash").stdout
    ask = 'COMP_WORDS=(simnet simulate bert_base_1) COMP_CWORD=2; _simnet_completion simnet; echo "${COMPREPLY[@]}"'
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [bash, "-c", f"compopt() {{ :; }}\n{script}\n{ask}"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "bert_base_10gbit" in done.stdout.split(), done.stderr
