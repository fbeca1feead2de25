"""What the engine's targets time: every case is one that can run, and the exact executor's are exact."""

import pytest

from evidence.benchmarks import beside_simgrid, cases
from simnet.engine.prepared_scenario import PreparedScenario
from simnet.engine.scenario import load


@pytest.mark.parametrize("ranks", [1, 8, 96, 100_000])
def test_a_step_on_any_number_of_ranks_is_a_scenario(ranks: int) -> None:
    made = load("bert_base_10gbit", cases.scenario(ranks, cases.DDP))
    assert made.cluster.world_size == ranks
    assert PreparedScenario(made).fidelity == "folded"


def test_a_slow_rank_is_no_folded_step() -> None:
    made = load("bert_base_10gbit", cases.scenario(64, cases.DDP, [cases.SLOW_RANK]))
    assert PreparedScenario(made).fidelity == "grouped"


def test_titles_differ_so_that_each_can_be_asked_for_alone() -> None:
    for group in cases.engine().values():
        titles = [one.title for one in group]
        assert len(set(titles)) == len(titles)


def test_what_simgrid_is_compared_with_simulates_every_send() -> None:
    for row in beside_simgrid.rows(long=True):
        changed = {**row.settings, "cluster.num_nodes": row.nodes, "run.fidelity": "exact"}
        made = load("reference_ddp_step", changed)
        assert PreparedScenario(made).fidelity == "exact"
        assert made.cluster.world_size == row.nodes * beside_simgrid.LOCAL_RANKS


def test_a_machine_without_a_compiler_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.argv", ["beside_simgrid"])
    beside_simgrid.main()
    assert capsys.readouterr().out == "skipped: g++: not on the PATH; apt-get install g++\n"
