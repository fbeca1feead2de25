"""What no fault of each kind can be: where it is refused, and the sentence."""

import math
from typing import Any

import pytest

from simnet.core.errors import SimnetError
from tests.helpers.fault_samples import cluster, fault

USUAL: dict[str, dict[str, Any]] = {
    "background_traffic": {},
    "node_failure": {"mean_time_between": "1000 h", "checkpoint": "1 min", "restart": "10 min"},
    "other_nodes": {"at_nodes": [1]},
    "packet_loss": {"probability": 0.01, "round_trip": "1 ms"},
    "pause": {"pause": "1 s"},
    "slow_link": {"place": 0, "rate": 0.5},
}
OTHERS = "at_nodes: are as all others: give gpu, compute_slowdown, nic or nic_slowdown"
OF_JITTER: list[tuple[dict[str, Any], str]] = [
    ({}, "cv: say how times vary: give either cv or samples"),
    ({"cv": 0.1, "samples": [1.0, 2.0]}, "cv: say how times vary: give either cv or samples"),
    ({"cv": 0}, "cv: 0: must be a number above 0, at most 10"),
    ({"cv": 11}, "cv: 11: must be a number above 0, at most 10"),
    ({"cv": math.nan}, "cv: nan: must be finite"),
    ({"cv": "٥"}, "cv: '٥': write a number without quotes"),
    ({"samples": [1.0]}, "samples: 1 numbers: must be 2 to 10000"),
    ({"samples": [1.0] * 10_001}, "samples: 10001 numbers: must be 2 to 10000"),
    ({"samples": [1.0, 0]}, "samples.1: 0: must be a number above 0"),
    ({"samples": [1.0, "2"]}, "samples.1: '2': write a number without quotes"),
    ({"samples": [1e-9, 1.0]}, "samples: 1e-09: must be at least a millionth of their mean"),
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((kind, *row) for kind in ("compute_jitter", "collective_jitter") for row in OF_JITTER),
    ("background_traffic", {}, "share: say how much the others take: give either share or flows"),
    ("background_traffic", {"share": 0.5, "flows": 1}, "share: say how much the others take: give either share or"),
    ("background_traffic", {"share": 0.5, "own_flows": 2}, "own_flows: 2: has no effect with share; drop one of them"),
    ("background_traffic", {"share": 0}, "share: 0: must be a number above 0, at most 0.999"),
    ("background_traffic", {"share": 1}, "share: 1: must be a number above 0, at most 0.999"),
    ("background_traffic", {"flows": 0}, "flows: 0: must be a whole number of at least 1"),
    ("background_traffic", {"flows": 10**6}, "flows: 1000000: leaves less than a millionth of the NICs to own_flows 1"),
    ("node_failure", {"mean_time_between": "0 s"}, "mean_time_between: '0 s': must be at least 1 s"),
    ("node_failure", {"mean_time_between": "10 parsec"}, "'parsec' is not a unit of time"),
    ("node_failure", {"mean_time_between": 1000}, "mean_time_between: 1000: write a number and a unit in quotes"),
    ("node_failure", {"checkpoint_every": "0 s"}, "checkpoint_every: '0 s': must be above 0 s"),
    ("node_failure", {"checkpoint": "0 s"}, "checkpoint: '0 s': must be above 0 s, or give checkpoint_every"),
    ("node_failure", {"restart": "-1 s"}, "restart: '-1 s': time must be finite and not negative"),
    ("node_failure", {"nodes": [1]}, "unknown key 'nodes'"),
    ("other_nodes", {}, OTHERS),
    ("other_nodes", {"ranks_per_node": 1}, OTHERS),
    ("other_nodes", {"at_nodes": [], "nic_slowdown": 2.0}, "at_nodes: []: must name at least one node"),
    ("other_nodes", {"gpu": "Old", "compute_slowdown": 2.0}, "compute_slowdown: 2: follows from gpu 'Old'; drop one"),
    ("other_nodes", {"nic": "1 Gbit/s", "nic_slowdown": 2.0}, "nic_slowdown: 2: follows from nic '1 Gbit/s'; drop one"),
    ("other_nodes", {"nic": "0 B/s"}, "nic: '0 B/s': must be at least 1 B/s"),
    ("other_nodes", {"nic": "1 Mbit/s"}, "nic '1 Mbit/s': must be from a thousandth to a hundred times the cluster's"),
    ("other_nodes", {"nic": "10 Tbit/s"}, "must be from a thousandth to a hundred times the cluster's 10 Gbit/s"),
    ("other_nodes", {"compute_slowdown": 0.001}, "compute_slowdown: 0.001: must be a number of at least 0.01, at most"),
    ("other_nodes", {"compute_slowdown": 2.0, "ranks_per_node": 4}, "ranks_per_node 4: every node must have 1, as the"),
    ("packet_loss", {"probability": 0}, "probability: 0: must be a number above 0, at most 0.5"),
    ("packet_loss", {"probability": 0.51}, "probability: 0.51: must be a number above 0, at most 0.5"),
    ("packet_loss", {"probability": math.nan}, "probability: nan: must be finite"),
    ("packet_loss", {"round_trip": "0 s"}, "round_trip: '0 s': must be at least 1 ns"),
    ("packet_loss", {"segment": "0 B"}, "segment: '0 B': must be at least 1 B"),
    ("packet_loss", {"connections": 0}, "connections: 0: must be a whole number of at least 1"),
    ("pause", {}, "every: say when ranks pause: give either every or probability"),
    ("pause", {"every": 2, "probability": 0.5}, "every: say when ranks pause: give either every or probability"),
    ("pause", {"every": 0}, "every: 0: must be a whole number of at least 1"),
    ("pause", {"probability": 1.01}, "probability: 1.01: must be a number above 0, at most 1"),
    ("pause", {"probability": 0.0}, "probability: 0.0: must be a number above 0, at most 1"),
    ("pause", {"every": 2, "pause": "-1 s"}, "pause: '-1 s': time must be finite and not negative"),
    ("pause", {"every": 2, "pause": "1e10 s"}, "pause: '1e+16 us': must be at most 10^9 s"),
    ("pause", {"every": 2, "ranks": [-1]}, "ranks.0: -1: must be a whole number of at least 0"),
    ("pause", {"every": 2, "ranks": 3}, "ranks: 3: write a list in brackets"),
    ("slow_link", {"from": "2 s", "to": "2 s"}, "to: '2 s': must be later than from, '2 s'"),
    ("slow_link", {"from": "2 s", "to": "1 s"}, "to: '1 s': must be later than from, '2 s'"),
    ("slow_link", {"every": "1 s"}, "every: '1 s': needs an end; set to, or drop every"),
    ("slow_link", {"from": "2 s", "to": "4 s", "every": "2 s"}, "every: '2 s': must be longer than from '2 s' to"),
    ("slow_link", {"from": "-1 s"}, "from: '-1 s': time must be finite and not negative"),
    ("slow_link", {"from": 2}, "from: 2: write a number and a unit in quotes"),
    ("slow_link", {"to": "1 s", "every": "10 ms"}, "every: '10 ms': must be longer than from '0 s' to '1 s'"),
    ("slow_link", {"to": "1 us", "every": "10 us"}, "every: '10 us': must be at least 1 ms"),
]


@pytest.mark.parametrize(("kind", "keys", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_fault_that_is_none_is_refused_in_one_sentence(kind: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises((SimnetError, ValueError)) as caught:
        cluster(fault(kind, **{**USUAL.get(kind, {}), **keys}), gpu="New")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
