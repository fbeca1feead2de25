"""Every strategy on small clusters with random faults: "auto" gives the times of the exact executor, or its bound.

Of 4,000 clusters with faults that are there for good one has a bound (rails that do not come to stand), of 600 with
faults that vary 5.

SIMNET_CLUSTERS sets how many clusters are tried (else the examples of the profile of Hypothesis).
"""

import os
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from simnet.cluster.faults import SlowLink
from simnet.core.units import Duration
from simnet.engine.result import StrategyResult
from simnet.engine.scenario import Scenario, build
from simnet.engine.simulation import simulate
from simnet.strategies import STRATEGIES, Strategy
from simnet.strategies.base import presets_of, variants_of
from tests.helpers import scenario_samples
from tests.helpers.random_faults import comings, constant_faults, varying

NUM = int(os.environ.get("SIMNET_CLUSTERS", settings.default.max_examples))
NEAR = 1e-9
"""Relative: times this near each other differ by rounding alone."""
BLOCKS, SIDE = 4, 512
TENSORS = [
    {"name": "head.weight", "shape": [1000, SIDE]},
    *({"name": f"blocks.{index}.weight", "shape": [SIDE, SIDE]} for index in reversed(range(BLOCKS))),
    {"name": "first.weight", "shape": [1000, SIDE]},
]


@cache
def settings_of_all() -> list[Strategy]:
    """Return every preset of every strategy, in each topology."""
    return [
        one
        for kind in STRATEGIES.built_in()
        for listed in presets_of(kind).values()
        for preset in listed
        for one in variants_of(preset, (None,))
    ]


@cache
def base() -> Scenario:
    workload = {"tensors": TENSORS, "forward": "4 ms", "backward": "8 ms", "optimizer": "1 ms"}
    return build(scenario_samples.pod(workload=workload, baseline=None))


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Return one strategy on a cluster with faults that are there for good."""
    num_nodes, per_node = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    found = tuple(draw(st.lists(constant_faults(num_nodes, per_node), max_size=2, unique_by=type)))
    cluster = replace(base().cluster, num_nodes=num_nodes, ranks_per_node=per_node, faults=found)
    return replace(base(), cluster=cluster, strategy=draw(st.sampled_from(settings_of_all())))


@st.composite
def varying_scenarios(draw: st.DrawFn) -> Scenario:
    """Return one with jitter, pauses or links that come and go, over several iterations."""
    scenario = draw(scenarios())
    has_slow_link = any(isinstance(one, SlowLink) for one in scenario.cluster.faults)
    kinds = varying if has_slow_link else varying | comings
    more = [
        replace(one, from_s=in_a_step(one.from_s), to_s=in_a_step(one.to_s), every_s=in_a_step(one.every_s))
        if isinstance(one, SlowLink)
        else one
        for one in draw(st.lists(kinds, min_size=1, max_size=2, unique_by=type))
    ]
    cluster = replace(scenario.cluster, faults=(*scenario.cluster.faults, *more))
    return replace(scenario, cluster=cluster, run=replace(scenario.run, iterations=draw(st.integers(1, 3))))


def in_a_step(time_s: float | None) -> Duration | None:
    """Return a time of a longer run as one of the short steps here."""
    return None if time_s is None else Duration(time_s / 20)


def ran(scenario: Scenario, fidelity: str) -> StrategyResult:
    return simulate(replace(scenario, run=replace(scenario.run, fidelity=fidelity))).result


@pytest.mark.slow
@settings(max_examples=NUM)
@given(scenarios())
def test_a_strategy_takes_what_every_send_takes(scenario: Scenario) -> None:
    exact, found = ran(scenario, "exact"), ran(scenario, "auto")
    assert found.iteration_s == pytest.approx(exact.iteration_s, rel=NEAR + found.approximation)
    assert found.approximation <= 0.02, scenario.strategy


@pytest.mark.slow
@settings(max_examples=NUM)
@given(varying_scenarios())
def test_it_does_so_with_faults_that_vary_or_come_and_go(scenario: Scenario) -> None:
    exact, found = ran(scenario, "exact"), ran(scenario, "auto")
    assert found.iteration_s == pytest.approx(exact.iteration_s, rel=NEAR + found.approximation)
