"""What a scenario file means that names no strategy."""

from pathlib import Path

import pytest

import simnet
from simnet.analysis import advise, tune
from simnet.analysis.advise import with_strategy
from simnet.engine.scenario import Scenario, load_experiment, settings_of
from tests.helpers.cli import run
from tests.helpers.refusals import refused
from tests.helpers.scenario_samples import write

OURS = {
    "calibration": "a100_tcp_estimate",
    "workload": "bert_large",
    "cluster": {
        "num_nodes": 4,
        "ranks_per_node": 8,
        "gpu": "A100-80GB",
        "intra_node": {"bandwidth": "300 GB/s", "latency": "2 us"},
        "inter_node": {"bandwidth": "25 Gbit/s", "latency": "14 us"},
    },
}


@pytest.fixture(autouse=True)
def few_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank four systems: all of them take tens of seconds."""
    few = {name: variants for name, variants in tune.systems().items() if name in {"BinSGDM", "FSDP", "ZeRO-1", "HSDP"}}
    for module in (tune, advise):
        monkeypatch.setattr(module, "systems", lambda: few)


@pytest.fixture
def ours(tmp_path: Path) -> str:
    return str(write(tmp_path / "ours.toml", OURS))


def test_an_experiment_that_names_a_strategy_is_left(ours: str) -> None:
    experiment = load_experiment(ours, {"strategy": "fsdp"})
    assert with_strategy(experiment) is experiment
    swept = load_experiment(ours, axes={"strategy": ["fsdp", "binsgdm"]})
    assert with_strategy(swept) is swept


def test_where_nothing_can_be_ranked_a_strategy_is_asked_for(ours: str) -> None:
    with refused("strategy: missing", "add strategy = 'binsgdm'"):
        with_strategy(load_experiment(ours, {"run.fidelity": "exact"}))


@pytest.mark.slow
def test_without_a_strategy_what_advise_would_use_is_taken_and_every_command_says_so(ours: str) -> None:
    advice = simnet.advise(ours, progress=False)
    assert advice.best is not None
    simulated = simnet.simulate(ours)
    assert simulated.scenario.strategy == advice.best.strategy
    assert simulated.speedup == pytest.approx(advice.best.speedup.value)
    for command in (("simulate", ours), ("sweep", ours, "--set", "cluster.num_nodes=2,4")):
        first = " ".join(run(*command).stdout.split("\n\n")[0].split())
        assert first.endswith(f"names no strategy: {advice.best.label} is taken, as simnet advise would use.")


@pytest.mark.slow
def test_the_batch_is_cut_as_for_what_advise_would_use(tmp_path: Path) -> None:
    large = {**OURS, "workload": {"use": "llama_3b", "batch_per_rank": 16}, "run": {"draws": 0}}
    path = str(write(tmp_path / "large.toml", large))
    advice = simnet.advise(path, progress=False)
    chosen = advice.best or advice.baseline_system
    assert chosen.batches != settings_of(advice.scenario)
    loaded = simnet.load(path)
    assert (settings_of(loaded), loaded.strategy) == (chosen.batches, chosen.strategy)
    assert chosen.batches.text() in loaded.question


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [{"workload.batch_per_rank": 16}, {"run.grad_accumulation": 8}])
def test_a_batch_that_was_set_is_cut_and_keeps_its_samples(tmp_path: Path, overrides: dict[str, object]) -> None:
    large = {**OURS, "workload": {"use": "llama_3b", "batch_per_rank": 2}, "run": {"draws": 0}}
    path = str(write(tmp_path / "large.toml", large))
    scenario = load_experiment(path, {"strategy": "fsdp", **overrides}).at({})
    loaded = simnet.load(path, overrides)
    assert settings_of(loaded) != settings_of(scenario)
    assert _samples(loaded) == _samples(scenario)


@pytest.mark.slow
def test_a_batch_that_is_swept_is_not_cut(tmp_path: Path) -> None:
    large = {**OURS, "workload": {"use": "llama_3b", "batch_per_rank": 16}, "run": {"draws": 0}}
    path = str(write(tmp_path / "large.toml", large))
    chosen = simnet.load(path)
    experiment = with_strategy(load_experiment(path, axes={"workload.batch_per_rank": [2, 4]}))
    scenarios = [experiment.at({"workload.batch_per_rank": batch}) for batch in (2, 4)]
    assert chosen.workload.batch_per_rank != 16
    assert [_samples(scenario) for scenario in scenarios] == [2, 4]
    assert "micro-batch" not in experiment.question
    assert "workload.memory.gradient_as_bucket_view = True is taken" in experiment.question


def _samples(scenario: Scenario) -> int:
    return scenario.workload.batch_per_rank * scenario.grad_accumulation
