"""One experiment to many results."""

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from simnet.analysis import code_hash, sweeps
from simnet.analysis.journal import NAME, Journal
from simnet.analysis.sweeps import SweepPoint, expand
from simnet.core import files
from simnet.core.errors import SimnetError
from simnet.engine import raw_scenario
from simnet.engine.raw_scenario import RawScenario
from simnet.engine.result import RefusedPoint, RunResult, to_json
from simnet.engine.scenario import Experiment, Scenario, load_experiment
from simnet.report import rows
from tests.helpers.journals import change
from tests.helpers.journals import rows as rows_of
from tests.helpers.scenario_samples import SWEEP, pod, write

ROOT = Path(__file__).parents[4]
MANY = {"cluster.num_nodes": list(range(1, 41)), "workload.batch_per_rank": [1, 2, 3, 4]}


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return load_experiment(str(write(tmp_path / "pod.toml", pod(sweep=SWEEP))))


class TestExpand:
    def test_the_grid_is_full_and_the_last_axis_runs_fastest(self, experiment: Experiment) -> None:
        points = expand(experiment)
        assert [point.values["cluster.num_nodes"] for point in points] == [1, 2, 4, 1, 2, 4]
        assert [point.scenario.cluster.num_nodes for point in points] == [1, 2, 4, 1, 2, 4]
        assert points[3].scenario.cluster.inter_node.bytes_per_s == 12.5e9

    def test_too_many_points_are_refused_before_any_is_made(self, tmp_path: Path) -> None:
        axes = {key: list(range(1, 1002)) for key in ("cluster.num_nodes", "workload.batch_per_rank")}
        path = str(write(tmp_path / "pod.toml", pod(sweep=axes)))
        with pytest.raises(
            SimnetError, match=r"sweep: 1002001 points: at most 100000, or 10000000 with --format parquet; split it"
        ):
            expand(load_experiment(path))

    def test_a_point_that_does_not_hold_together_is_refused(self, tmp_path: Path) -> None:
        path = str(write(tmp_path / "pod.toml", pod(sweep={"cluster.num_nodes": [1, 0]})))
        with pytest.raises(SimnetError, match=r"pod.toml: sweep: cluster.num_nodes: 0: must be"):
            expand(load_experiment(path))

    def test_parts_that_stay_the_same_are_read_and_checked_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read, checked = [], []
        real_read, real_check = files.read_file, RawScenario.converted
        monkeypatch.setattr(files, "read_file", lambda path: read.append(path.stem) or real_read(path))
        monkeypatch.setattr(
            raw_scenario.RawScenario,
            "converted",
            lambda *given: checked.append(given[1].__name__) or real_check(*given),
        )
        raw_scenario._read_part.cache_clear()
        points = expand(load_experiment("speedup"))
        assert (len(points), sorted(read)) == (
            56,
            ["a100_8x8_10gbit", "a100_tcp_estimate", "bert_base", "resnet50", "speedup"],
        )
        assert Counter(checked) == {"Scenario": 1, "Cluster": 55, "Workload": 1}

    @pytest.mark.parametrize("name", files.names("experiments"))
    def test_every_point_is_the_scenario_that_the_experiment_has_there(self, name: str) -> None:
        experiment = load_experiment(name)
        points = [point.values for point in expand(experiment)] if experiment.axes else [{}, {}]
        assert list(experiment.each(points)) == [experiment.at(values) for values in points]

    def test_a_part_that_has_changed_meanwhile_is_read_again(self, tmp_path: Path) -> None:
        part = write(tmp_path / "part.toml", pod()["cluster"])
        experiment = load_experiment(str(write(tmp_path / "pod.toml", pod(sweep={"cluster": ["part.toml"]}))))
        assert experiment.at({"cluster": "part.toml"}).cluster.num_nodes == 2
        write(part, pod(cluster__num_nodes=16)["cluster"])
        assert experiment.at({"cluster": "part.toml"}).cluster.num_nodes == 16

    def test_a_part_that_was_read_before_is_an_input_all_the_same(self, tmp_path: Path) -> None:
        part = write(tmp_path / "part.toml", pod()["cluster"])
        path = str(write(tmp_path / "pod.toml", pod(cluster="part.toml")))
        load_experiment(path)
        with files.watch_inputs():
            load_experiment(path)
            with pytest.raises(SimnetError, match="is an input"):
                files.refuse_input(part)


class TestRun:
    def test_results_come_in_the_order_of_the_points(self, experiment: Experiment) -> None:
        results = sweeps.run(expand(experiment))
        assert [result.world_size for result in results] == [8, 16, 32, 8, 16, 32]

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

    def test_points_of_one_cluster_shape_follow_each_other(
        self, experiment: Experiment, simulated: list[Scenario]
    ) -> None:
        sweeps.run(expand(experiment))
        assert [scenario.cluster.num_nodes for scenario in simulated] == [1, 1, 2, 2, 4, 4]

    def test_results_share_the_scenarios_of_their_points(self, experiment: Experiment, tmp_path: Path) -> None:
        points = expand(experiment)
        for _ in range(2):
            results = sweeps.run(points, tmp_path)
            assert all(result.scenario is point.scenario for result, point in zip(results, points, strict=True))

    def test_the_same_scenario_is_simulated_once(self, tmp_path: Path, simulated: list[Scenario]) -> None:
        axes = {"cluster": [pod()["cluster"], pod()["cluster"]]}
        base = load_experiment(str(write(tmp_path / "pod.toml", pod())), axes=axes)
        results = sweeps.run(expand(base))
        assert len(simulated) == 1
        assert results[0] == results[1]

    def test_progress_tells_first_what_needs_no_simulation(
        self, experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sweeps, "PART_S", 0)
        points = expand(experiment)
        sweeps.run(points[:2], tmp_path / "out")
        told: list[int] = []
        sweeps.run(points, tmp_path / "out", progress=told.append)
        assert told == [2, 1, 1, 1, 1]

    def test_progress_counts_the_same_scenario_as_often_as_it_is_asked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sweeps, "PART_S", 0)
        axes = {"cluster.num_nodes": [2, 2, 4]}
        points = expand(load_experiment(str(write(tmp_path / "pod.toml", pod())), axes=axes))
        told: list[int] = []
        sweeps.run(points, tmp_path / "out", progress=told.append)
        assert told == [0, 2, 1]
        told.clear()
        sweeps.run(points, tmp_path / "out", progress=told.append)
        assert told == [3]

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

    def test_a_point_that_fails_says_why_and_the_others_are_kept(self, tmp_path: Path) -> None:
        changed = pod(sweep={"workload.gradients": ["bert_base", "./nonesuch.json"]})
        del changed["workload"]["num_elements"]
        path = write(tmp_path / "pod.toml", changed)
        point, other = expand(load_experiment(str(path)))
        broken = SweepPoint(values={"workload.gradients": "both"}, scenario=_contradicting(point.scenario))
        result, contradiction, missing = sweeps.run([point, broken, other], tmp_path)
        assert isinstance(result, RunResult)
        assert contradiction == RefusedPoint(
            set={"workload.gradients": "both"},
            reason="workload: gradients and num_elements: must be given once; give one of gradients, tensors, "
            "gradient, num_elements",
        )
        assert "nonesuch.json': no such file" in missing.reason
        assert [row.refused for row in rows_of(tmp_path) if row.refused] == [missing.reason, contradiction.reason]
        assert len(rows_of(tmp_path)) == 3

    def test_another_gradients_file_is_another_point(self, tmp_path: Path) -> None:
        gradients = tmp_path / "mine.json"
        workload = {"gradients": "./mine.json", "forward": "1 s", "backward": "1 s"}
        path = write(tmp_path / "pod.toml", pod(workload=workload, sweep={"cluster.num_nodes": [2]}))
        keys = []
        for content in ("1", "2"):
            gradients.write_text(content)
            keys.append(expand(load_experiment(str(path)))[0].key)
        assert keys[0] != keys[1]


def test_other_code_is_another_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "pod.toml", pod(sweep={"cluster.num_nodes": [2]}))
    (tmp_path / "training").mkdir()
    monkeypatch.setattr(code_hash, "__file__", str(tmp_path / "analysis" / "code_hash.py"))
    keys = []
    for code in ("1", "2"):
        (tmp_path / "training" / "code.py").write_text(code)
        code_hash.of_simnet.cache_clear()
        keys.append(expand(load_experiment(str(path)))[0].key)
    code_hash.of_simnet.cache_clear()
    assert keys[0] != keys[1]


def _contradicting(scenario: Scenario) -> Scenario:
    """Return the scenario with gradients given twice."""
    import msgspec

    workload = msgspec.structs.replace(scenario.workload, num_elements=5)
    return msgspec.structs.replace(scenario, workload=workload)


class TestDocument:
    def test_it_has_what_the_reports_read(self, experiment: Experiment) -> None:
        points = expand(experiment)
        whole = sweeps.collect_results(experiment, points, sweeps.run(points))
        document = json.loads(to_json(whole, indent=1))
        assert document["axes"][1] == {"key": "cluster.num_nodes", "values": [1, 2, 4]}
        assert document["points"][1]["set"] == {"cluster.inter_node.bandwidth": "10 Gbit/s", "cluster.num_nodes": 2}
        assert document["question"] == "From which bandwidth on?"
        assert whole.name == "pod"

    def test_csv_has_the_columns_of_all_rows_and_tables_as_json(self) -> None:
        given: Sequence[dict[str, object]] = [{"a": 1, "part": {"use": "x"}}, {"a": None, "b": [1, 2]}]
        read = list(csv.DictReader(io.StringIO(rows.table(given).csv())))
        assert read == [{"a": "1", "part": '{"use": "x"}', "b": ""}, {"a": "", "part": "", "b": "[1, 2]"}]
