"""What tests of sweeps share."""

from typing import Any

import pytest

from simnet.engine import simulation
from simnet.engine.result import RunResult
from simnet.engine.scenario import Scenario


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """The scenarios that were simulated in this process."""
    seen: list[Scenario] = []
    real = simulation.simulate

    def noted(scenario: Scenario, **options: Any) -> RunResult:
        seen.append(scenario)
        return real(scenario, **options)

    monkeypatch.setattr(simulation, "simulate", noted)
    return seen
