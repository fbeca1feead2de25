"""Systems in other topologies: which are trained, and with what."""

from typing import Any

from tests.helpers.needs import needs

needs("torch", "sklearn")

import msgspec

from evidence.studies.candidates import CANDIDATES, IN_TOPOLOGY, LATER, NAMES_IN_TOPOLOGY, PLAIN, STUDIED, strategy_of
from evidence.studies.systems import TOPOLOGY_RANKS, SystemsStudy
from simnet.strategies import STRATEGIES
from simnet.strategies.base import train_alike


def simulated(name: str) -> Any:
    described = strategy_of(name)
    return msgspec.convert(described, STRATEGIES.find(described.pop("kind")))


def test_every_topology_of_a_system_is_trained_in_which_the_simulator_tells_from_its_own() -> None:
    for system in STUDIED:
        strategy = simulated(system.name)
        for topology in system.topologies[1:]:
            is_alike = train_alike(strategy, msgspec.structs.replace(strategy, topology=topology))
            assert ((system.name, topology) in NAMES_IN_TOPOLOGY) is not is_alike


def test_another_topology_runs_with_the_settings_of_its_base() -> None:
    study = SystemsStudy()
    titles = [candidate.title for candidate in (CANDIDATES | PLAIN | IN_TOPOLOGY).values()]
    assert len(titles) == len(set(titles))
    for (base, _), name in NAMES_IN_TOPOLOGY.items():
        assert study.search_of("digits", name) is study.searches["digits", LATER.get(base, base)]
    finals = [final for final in study.finals() if (final.run.ranks, final.run.task) == (TOPOLOGY_RANKS, "digits")]
    runs = {final.key["system"]: final.run for final in finals}
    assert runs["qsgd_hierarchical"].trial == runs["qsgd"].trial
    assert runs["qsgd_hierarchical"].options == runs["qsgd"].options | {"topology": "hierarchical"}
