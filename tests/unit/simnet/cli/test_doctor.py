"""`simnet doctor`: what it finds here, and what it says of machines that lack something."""

import json
import subprocess
import threading
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from simnet.cli import doctor
from simnet.core.errors import SimnetError
from simnet.validation.lab import machine
from tests.helpers.cli import ROOT, assert_refused, run
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
    assert {one["part"] for one in findings} == {"machine", "simulator", "extras", "GPU", "lab"}
    for one in findings:
        assert one["name"] in page.stdout
        assert one["repair"] in page.stdout
    numpy = next(one for one in findings if one["name"] == "numpy")
    assert numpy == {"part": "simulator", "name": "numpy", "found": metadata.version("numpy"),
                     "needed_for": "all commands", "repair": ""}  # fmt: skip


def test_the_packages_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {f"{name}>={least}" for name, least in doctor.PACKAGES.items()} == set(project["dependencies"])
    optional = {line for lines in project["optional-dependencies"].values() for line in lines}
    for name, least, _, repair in doctor.EXTRAS:
        assert f"{name}>={least}" in optional
        extra = repair.partition("[")[2].partition("]")[0]
        assert f"{name}>={least}" in project["optional-dependencies"][extra]


def test_what_is_missing_or_too_old_has_a_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    known = metadata.version

    def version(name: str) -> str:
        if name == "dash":
            raise metadata.PackageNotFoundError(name)
        return "5.24.1" if name == "plotly" else known(name)

    monkeypatch.setattr(metadata, "version", version)
    assert found("dash") == doctor.Finding("extras", "dash", "", "explore", "pip install 'binsgdm[explore]'")
    assert found("plotly").repair == "needs 6.0 or newer: pip install 'binsgdm[report]' --upgrade"
    assert "missing or too old: " in run("doctor").stdout


def test_all_else_is_looked_for_while_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    lab_is_done = threading.Event()
    check = machine.check
    monkeypatch.setattr(machine, "check", lambda: (lab_is_done.set(), check()))
    monkeypatch.setattr(doctor, "_gpu", lambda: [doctor.Finding("GPU", str(lab_is_done.wait(60)), "", "")])
    parts = [(one.part, one.name) for one in doctor.findings()]
    assert ("GPU", "True") in parts
    assert list(dict(parts)) == ["machine", "simulator", "extras", "GPU", "lab"]


def test_a_machine_without_torch_is_not_asked_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert found("GPUs").repair == "not looked for, since torch is missing"


def test_a_gpu_is_told_with_what_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("torch")
    versions = {"cuda": "13.0", "nccl": "2.28.3", "triton": ""}
    monkeypatch.setattr(doctor, "_probed", lambda: {"versions": versions, "cards": [CARD], "error": ""})
    assert found("GPU").found == "H100, compute capability 9.0, 79.0 GB of 80.0 GB free"
    assert found("NCCL").found == "2.28.3"
    assert found("Triton").repair == "pip install triton"


@pytest.mark.usefixtures("real_probe")
def test_torch_is_really_asked() -> None:
    needs("torch")
    (gpus,) = [one for one in doctor.findings() if one.part == "GPU"][:1]
    assert gpus.found or gpus.repair == "torch sees no GPU on this machine"


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


def test_a_machine_that_forbids_namespaces_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "check", lambda: None)
    monkeypatch.setattr(doctor.shutil, "which", lambda _: "/bin/false")
    assert found("network namespaces").repair.startswith("forbidden here")
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    assert found("network namespaces").repair == "'unshare': not on the PATH; install util-linux"


def test_who_may_not_run_the_lab_learns_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> None:
        raise SimnetError("lab: network namespaces need root: run it with sudo")

    monkeypatch.setattr(machine, "check", refused)
    assert found("Linux, root, tools").repair == "network namespaces need root: run it with sudo"


def test_a_file_that_cannot_be_written_is_refused_before_looking(tmp_path: Path) -> None:
    assert_refused(run("doctor", "-o", str(tmp_path / "no" / "file")), "no")
