"""What tests of sweeps share."""

import pytest

from simnet.engine import intervals, simulation
from simnet.engine.result import RunResult
from simnet.engine.scenario import Scenario


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw as little for an interval as is allowed: what is done with it does not depend on how sure it is."""
    monkeypatch.setattr(uncertainty, "MOST_DRAWS", intervals.LEAST_DRAWS)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """The scenarios that were simulated in this process."""
    seen: list[Scenario] = []
    real = simulation.simulate

    def noted(scenario: Scenario) -> RunResult:
        seen.append(scenario)
        return real(scenario)

    monkeypatch.setattr(simulation, "simulate", noted)
    return seen
