"""A scenario to run commands on, and commands that must not simulate."""

from pathlib import Path

import pytest

from simnet.analysis import advise, advise_with_faults, lost_time, tune
from simnet.engine import simulation
from simnet.engine.result import RunResult
from simnet.engine.scenario import Scenario
from tests.helpers.scenario_samples import SWEEP, pod, write


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(write(tmp_path / "pod.toml", pod(sweep=SWEEP)))


@pytest.fixture
def never_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Scenario) -> RunResult:
        raise AssertionError("simulated before the output was checked")

    for module in (simulation, advise, advise_with_faults, lost_time, tune):
        monkeypatch.setattr(module, "simulate", refuse)
