"""Systems in other topologies: which are trained, with what, what they send, and what the page says of them."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

needs("sklearn")

import msgspec
from torch import nn

from binsgdm.compressors.registry import make
from evidence.studies import systems
from evidence.studies.candidates import CANDIDATES, IN_TOPOLOGY, LATER, NAMES_IN_TOPOLOGY, PLAIN, STUDIED, strategy_of
from evidence.studies.systems import TOPOLOGY_RANKS, Outcome, SystemsStudy
from simnet.strategies import STRATEGIES, choices
from tests.helpers import stacked

NUM_RANKS, RANKS_PER_NODE = 8, 2


def simulated(name: str) -> Any:
    described = strategy_of(name)
    return msgspec.convert(described, STRATEGIES.find(described.pop("kind")))


def test_every_topology_of_a_system_is_trained_in_which_the_simulator_tells_from_its_own() -> None:
    for system in STUDIED:
        own = simulated(system.name)
        for topology in system.topologies[1:]:
            is_alike = choices.train_alike(own, msgspec.structs.replace(own, topology=topology))
            assert ((system.name, topology) in NAMES_IN_TOPOLOGY) is not is_alike


def test_another_topology_runs_with_what_the_search_of_the_own_form_found() -> None:
    study = SystemsStudy()
    titles = [candidate.title for candidate in (CANDIDATES | PLAIN | IN_TOPOLOGY).values()]
    assert len(titles) == len(set(titles))
    for (own, _), name in NAMES_IN_TOPOLOGY.items():
        assert study.search_of("digits", name) is study.searches["digits", LATER.get(own, own)]
    finals = [final for final in study.finals() if (final.run.ranks, final.run.task) == (TOPOLOGY_RANKS, "digits")]
    found = {final.key["system"]: final.run for final in finals}
    assert found["qsgd_hierarchical"].trial == found["qsgd"].trial
    assert found["qsgd_hierarchical"].options == found["qsgd"].options | {"topology": "hierarchical"}


SYSTEMS_SENT = [
    ("qsgd", {"topology": "hierarchical"}),
    ("atomo", {"topology": "hierarchical"}),
    ("top_k", {"topology": "hierarchical", "ratio": 0.1, "momentum": 0.9}),
    ("power_sgd", {"topology": "hierarchical"}),
    ("ef_sign_sgd", {"topology": "scatter_reduce"}),
    ("ef_sign_sgd", {"topology": "hierarchical_scatter_reduce"}),
]


@pytest.mark.parametrize(("name", "options"), SYSTEMS_SENT, ids=str)
def test_decoding_once_changes_no_mean_in_any_topology(name: str, options: dict[str, Any]) -> None:
    model = nn.Linear(10, 8)
    once = stacked.systems_of(name, options, NUM_RANKS, RANKS_PER_NODE)
    full = [
        make(name, rank=rank, world_size=NUM_RANKS, ranks_per_node=RANKS_PER_NODE, **options)
        for rank in range(NUM_RANKS)
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stacks = [
        stacked.AveragedGradients(optimizer, systems, ranks_per_node=RANKS_PER_NODE, seed=7) for systems in (once, full)
    ]
    draws = torch.Generator().manual_seed(2)
    for _ in range(3):
        gradients = torch.randn(NUM_RANKS, 88, generator=draws)
        mean, wanted = (stack.mean(gradients) for stack in stacks)
        assert torch.equal(mean, wanted)


def test_a_topology_is_told_from_the_own_form_by_pairs_of_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "qsgd_hierarchical"
    monkeypatch.setattr(Outcome, "counted", (("adam", "sgd", "qsgd"), (name,)))
    study = SystemsStudy(tmp_path / "search.json", tmp_path, tmp_path / "plain.json")
    finals = {"adam": (2.0, 2.1, 2.2), "sgd": (2.5, 2.5, 2.5), "qsgd": (2.10, 2.20, 2.30), name: (2.06, 2.158, None)}
    for system in ("adam", "sgd", "qsgd"):
        search = study.searches["characters", system]
        search.ledger.put(
            {"task": "characters", "system": system, "trial": {"optimizer": "adam", "lr": 0.01}},
            {"losses": [finals[system][0]]},
        )
    for system, losses in finals.items():
        for seed, loss in enumerate(losses):
            if loss is not None:
                key = {"system": system, "ranks": TOPOLOGY_RANKS, "seed": seed}
                study.curves["characters"].put(key, {"steps": [120], "values": [loss]})
    outcome = Outcome(study, "characters")
    assert outcome.topology_seeds == [0, 1]
    assert systems.cell_text(outcome, "qsgd", "hierarchical") == "+0.059 behind (-0.041 better)"
    assert systems.cell_text(outcome, "atomo", "scatter_reduce") == "-"
