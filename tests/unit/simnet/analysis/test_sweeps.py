"""One experiment to many results."""

from pathlib import Path

import pytest

from simnet.analysis import sweeps
from simnet.analysis.journal import NAME, Journal
from simnet.analysis.sweeps import expand
from simnet.core.errors import SimnetError
from simnet.engine.scenario import Experiment, Scenario, load_experiment
from tests.helpers.journals import change
from tests.helpers.journals import rows as rows_of
from tests.helpers.scenario_samples import SWEEP, pod, write


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return load_experiment(str(write(tmp_path / "pod.toml", pod(sweep=SWEEP))))


class TestExpand:
    def test_a_part_that_has_changed_meanwhile_is_read_again(self, tmp_path: Path) -> None:
        part = write(tmp_path / "part.toml", pod()["cluster"])
        experiment = load_experiment(str(write(tmp_path / "pod.toml", pod(sweep={"cluster": ["part.toml"]}))))
        assert experiment.at({"cluster": "part.toml"}).cluster.num_nodes == 2
        write(part, pod(cluster__num_nodes=16)["cluster"])
        assert experiment.at({"cluster": "part.toml"}).cluster.num_nodes == 16


class TestRun:
    @pytest.mark.slow
    def test_workers_give_the_same_as_this_process(
        self, experiment: Experiment, simulated: list[Scenario], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        points = expand(experiment)
        expected = sweeps.run(points)
        simulated.clear()
        for name in ("PART_S", "PROBE_S", "WORKERS_PAY_S"):
            monkeypatch.setattr(sweeps, name, 0)
        assert sweeps.run(points, jobs=2) == expected
        assert len(simulated) == 1  # the probe

    def test_results_share_the_scenarios_of_their_points(self, experiment: Experiment, tmp_path: Path) -> None:
        points = expand(experiment)
        for _ in range(2):
            results = sweeps.run(points, tmp_path)
            assert all(result.scenario is point.scenario for result, point in zip(results, points, strict=True))

    def test_progress_tells_first_what_needs_no_simulation(
        self, experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sweeps, "PART_S", 0)
        points = expand(experiment)
        sweeps.run(points[:2], tmp_path / "out")
        told: list[int] = []
        sweeps.run(points, tmp_path / "out", progress=told.append)
        assert told == [2, 1, 1, 1, 1]

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"breakdown":{', '"breakdown":null,"more":{'),
            ('"baseline":{"strategy"', '"baseline":3,"more":{"strategy"'),
            ('"iterations_s":', '"iterations_s":"","more":'),
            ('"result":{', '"result":['),
            ('"world_size":8', '"world_size":0'),
            ('"speedup":', '"speedup":1e999,"more":'),
            ('"speedup":', '"speedup":"fast","more":'),
            ('"notes":[', '"notes":7,"more":['),
        ],
    )
    def test_a_result_that_the_simulator_did_not_write_is_refused(
        self, experiment: Experiment, tmp_path: Path, old: str, new: str
    ) -> None:
        points = expand(experiment)[:1]
        sweeps.run(points, tmp_path)
        (row,) = rows_of(tmp_path)
        assert old in str(row.result)
        change(tmp_path, "UPDATE points SET result = ?", str(row.result).replace(old, new, 1))
        damaged = (tmp_path / NAME).read_bytes()
        with pytest.raises(SimnetError, match=rf"^{tmp_path / NAME}: point 1: .*: is damaged, or no journal; delete "):
            sweeps.run(points, tmp_path)
        assert (tmp_path / NAME).read_bytes() == damaged

    def test_a_result_of_a_strategy_that_is_not_installed_is_told_with_its_place(
        self, experiment: Experiment, tmp_path: Path
    ) -> None:
        points = expand(experiment)[:1]
        sweeps.run(points, tmp_path)
        change(tmp_path, """UPDATE points SET result = replace(result, '"kind":"binsgdm"', '"kind":"elsewhere"')""")
        with Journal(tmp_path) as journal, pytest.raises(SimnetError) as refused:
            journal.outcome_at(1)
        assert str(refused.value) == (
            f"{tmp_path / NAME}: point 1: scenario.strategy.kind: 'elsewhere': unknown strategy; install the package "
            "that provides it"
        )

    def test_finished_points_are_not_simulated_again(
        self, experiment: Experiment, tmp_path: Path, simulated: list[Scenario]
    ) -> None:
        points = expand(experiment)
        first = sweeps.run(points, tmp_path)
        simulated.clear()
        assert sweeps.run(points, tmp_path) == first
        assert not simulated

    def test_another_gradients_file_is_another_point(self, tmp_path: Path) -> None:
        gradients = tmp_path / "mine.json"
        workload = {"gradients": "./mine.json", "forward": "1 s", "backward": "1 s"}
        path = write(tmp_path / "pod.toml", pod(workload=workload, sweep={"cluster.num_nodes": [2]}))
        keys = []
        for content in ("1", "2"):
            gradients.write_text(content)
            keys.append(expand(load_experiment(str(path)))[0].key)
        assert keys[0] != keys[1]
