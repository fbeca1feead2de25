"""A recorded step is simulated as the strategy would be that does the same."""

import pytest
from msgspec.structs import replace

from simnet.analysis.sweeps import SweepPoint
from simnet.core.units import Size
from simnet.engine import scenario
from simnet.engine.result import to_json
from simnet.engine.simulation import simulate
from simnet.strategies import DenseAllReduce, RecordedStep
from tests.helpers import scenario_samples, step_files
from tests.helpers.refusals import refused
from tests.helpers.step_files import collective, compute

MB = 1e6


def point(tmp_path, data, strategy=None, **changes):
    """Return a scenario file's scenario whose strategy is a recorded step."""
    step_files.write(tmp_path / "step.json", data)
    table = {"kind": "recorded", "file": "step.json", **(strategy or {})}
    return scenario.load(
        str(scenario_samples.write(tmp_path / "pod.toml", scenario_samples.pod(strategy=table, **changes)))
    )


def test_a_recorded_ddp_takes_what_ddp_takes(tmp_path):
    # 110 M elements of 4 bytes in 11 buckets of 40 MB, as DDP's equal pieces.
    dense = DenseAllReduce(bucket_cap=Size(40 * MB))
    asked = point(tmp_path, step_files.step(step_files.layout(step_files.ddp(11, 40 * MB))))
    recorded = simulate(asked).result
    known = simulate(replace(asked, strategy=dense)).result
    assert known.num_buckets == recorded.num_buckets == 11
    assert recorded.iteration_s == pytest.approx(known.iteration_s, rel=1e-12)
    assert recorded.nic_bytes_per_node == pytest.approx(known.nic_bytes_per_node)
    assert recorded.compression_ratio == pytest.approx(1.0)


def test_recorded_seconds_are_taken_as_they_are_and_bytes_over_the_memory_bandwidth(tmp_path):
    ops = [compute("forward", seconds=1.0), compute("backward", seconds=2.0), compute("encode", seconds=0.5)]
    data = step_files.step(step_files.layout([ops]), compute="timed")
    run = simulate(point(tmp_path, data, {"compute": "recorded"}))
    assert run.result.iteration_s == pytest.approx(3.5)
    assert any("never communicates" in note for note in run.notes)
    assert "compute takes the seconds that were recorded on cpu" in run.notes
    ops = [compute("forward"), compute("backward"), compute("optimizer"), compute("encode", gbytes=0.5, flops=75e9)]
    run = simulate(point(tmp_path, step_files.step(step_files.layout([ops]))))
    assert run.result.breakdown.encode_s == pytest.approx(1e9 / 100e9)  # 100 GB/s, 150 FLOPs as a byte
    data = step_files.step(step_files.layout(step_files.ddp(), gradient_bytes=88e6))
    notes = simulate(point(tmp_path, data)).notes
    assert any("SHA-256" in note for note in notes), "by which the result tells the file"
    assert any("gradients of 88 MB, the workload of 440 MB" in note for note in notes)
    with refused("no compute of 'optimizer' in 2 x 8 ranks"):
        simulate(point(tmp_path, step_files.step(step_files.layout([[compute("forward"), compute("backward")]]))))


def test_gloo_may_reduce_and_scatter_by_an_all_reduce(tmp_path):
    ops = [compute("forward"), compute("backward"), compute("optimizer")]
    for as_, factor in (("ring", 1.0), ("all_reduce", 2.0)):
        data = step_files.step(step_files.layout([ops, [collective("reduce_scatter", 16e6)]]))
        run = simulate(point(tmp_path, data, {"reduce_scatter_as": as_}))
        assert run.result.nic_bytes_per_node == pytest.approx(factor * 15e6)


@pytest.mark.parametrize(
    ("strategy", "changes", "rule"),
    [
        ({"file": "none.json"}, {}, "none.json: no such file"),
        ({"file": ""}, {}, "strategy.file: '': is empty"),
        ({"bucketing": "fused"}, {}, "strategy.bucketing: has no effect on a recorded step"),
        ({"overlap": False}, {}, "strategy.overlap: has no effect on a recorded step"),
        ({"algorithm": "rng"}, {}, "strategy.algorithm: 'rng': unknown. Did you mean 'ring'?"),
        ({"compute": "recorded"}, {}, "strategy.compute: 'recorded': "),
        ({}, {"run": {"grad_accumulation": 2}}, "run.grad_accumulation: 2: "),
    ],
)
def test_what_does_not_fit_is_refused(strategy, changes, rule, tmp_path):
    data = step_files.step(step_files.layout(step_files.ddp()))
    with refused(rule):
        simulate(point(tmp_path, data, strategy, **changes))


def test_groups_of_a_mesh_take_the_same_on_both_executors(tmp_path):
    ops = [compute("forward"), compute("backward"), compute("backward"), compute("optimizer", after=[[1, 2], [2, 1]])]
    in_node = [
        collective("all_gather", 8e6, 0),
        collective("reduce_scatter", 9e6, 0, after=[[0, 1]]),
        collective("broadcast", 3e6, 0),
    ]
    between = [collective("all_reduce", 6e6, 1, after=[[0, 1]]), collective("all_to_all", 2e6, 2, after=[[0, 2]])]
    layout = step_files.layout([ops, in_node, between], 4, 4, [(4, 1), (4, 4), (2, 1)])
    asked = point(tmp_path, step_files.step(layout), cluster__num_nodes=4, cluster__ranks_per_node=4)
    exact = replace(asked, run=replace(asked.run, fidelity="exact"))
    assert simulate(asked).result.fidelity == "folded"
    assert simulate(exact).result.iteration_s == pytest.approx(simulate(asked).result.iteration_s, rel=1e-9)


def test_a_changed_file_is_simulated_anew(tmp_path):
    asked = point(tmp_path, step_files.step(step_files.layout(step_files.ddp(3, 1e6))))
    before, key = simulate(asked).result.iteration_s, SweepPoint(values={}, scenario=asked).key
    step_files.write(tmp_path / "step.json", step_files.step(step_files.layout(step_files.ddp(3, 99e6))))
    assert simulate(asked).result.iteration_s > 1.1 * before
    assert SweepPoint(values={}, scenario=asked).key != key


def test_a_result_is_simulated_again_from_any_folder(tmp_path, monkeypatch):
    run = simulate(point(tmp_path, step_files.step(step_files.layout(step_files.ddp()))))
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    relative = replace(run.scenario, strategy=RecordedStep(file="step.json"))
    kept = tmp_path / "results" / "run.json"
    kept.write_bytes(to_json(simulate(relative).without_spans()))
    assert simulate(scenario.load(str(kept))).result.iteration_s == run.result.iteration_s
