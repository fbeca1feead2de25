"""Damaged faults of every kind: simulated, or refused in one sentence; never a traceback."""

import math
import random
from typing import Any

import pytest
from hypothesis import settings

from simnet.cluster.hardware import FAULTS
from simnet.core.errors import SimnetError
from simnet.engine import scenario
from simnet.engine.simulation import simulate
from tests.helpers.mutations import damaged_data
from tests.helpers.scenario_samples import pod

NUM = 4 * settings.default.max_examples
WINDOW = {"from": "1 ms", "to": "3 ms", "every": "10 ms"}
WHOLE: list[dict[str, Any]] = [
    {"kind": "slow_node", "node": 1, "compute_slowdown": 1.5, "nic_slowdown": 2.0},
    {"kind": "slow_rank", "node": 0, "local_rank": 1, "compute_slowdown": 1.3},
    {"kind": "other_nodes", "at_nodes": [1], "compute_slowdown": 0.8, "nic": "10 Gbit/s", "ranks_per_node": 2},
    {"kind": "slow_link", "link": "uplink", "place": 0, "rate": 0.5, **WINDOW},
    {"kind": "added_latency", "at_nodes": [0], "added": "10 us", **WINDOW},
    {"kind": "background_traffic", "at_nodes": [0, 1], "flows": 3, "own_flows": 2, **WINDOW},
    {"kind": "packet_loss", "probability": 0.01, "round_trip": "100 us", "segment": "1 KiB", "connections": 4},
    {"kind": "pause", "ranks": [0, 3], "pause": "1 ms", "every": 2},
    {"kind": "compute_jitter", "ranks": [2], "samples": [1.0, 2.0, 1.5]},
    {"kind": "collective_jitter", "cv": 0.2},
    {"kind": "node_failure", "mean_time_between": "1000 h", "checkpoint_every": "1 h", "checkpoint": "1 min",
     "restart": "5 min"},
]  # fmt: skip
DATA = pod(
    cluster__ranks_per_node=2,
    cluster__fabric={"nodes_per_leaf": 1, "oversubscription": 2.0},
    workload={"num_elements": 100_000, "forward": "4 ms", "backward": "8 ms"},
    strategy={"kind": "all_reduce"},
    run={"iterations": 3},
)
del DATA["baseline"]


def outcome(faults: Any) -> str:
    """Return the sentence by which faults are refused; empty where they are simulated."""
    try:
        built = scenario.build({**DATA, "cluster": {**DATA["cluster"], "faults": faults}}, "x")
        result = simulate(built).result
    except SimnetError as error:
        return str(error)
    assert all(0 < time_s < math.inf for time_s in result.iterations_s)
    return ""


def test_every_kind_is_here_and_all_of_them_are_simulated_together() -> None:
    assert {whole["kind"] for whole in WHOLE} == set(FAULTS.names())
    assert outcome(WHOLE) == ""


@pytest.mark.parametrize("at", range(len(WHOLE)), ids=[whole["kind"] for whole in WHOLE])
def test_a_damaged_fault_is_simulated_or_refused_in_one_sentence(at: int) -> None:
    rng = random.Random(at)
    outcomes = [outcome(damaged_data([WHOLE[at]], rng)) for _ in range(NUM)]
    refused = [sentence for sentence in outcomes if sentence]
    assert len(refused) > NUM / 4
    for sentence in refused:
        assert "\n" not in sentence
        assert len(sentence) < 1000
        assert "fault" in sentence or "must" in sentence, sentence
