"""Fitted faults as a file: a scenario takes them, and simulates what they were fitted to."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simnet.calibration import variation_file, variation_files, variation_fit
from simnet.calibration.variation_fit import FittedVariation
from simnet.cluster import topology
from simnet.engine.random_factors import Variation
from simnet.engine.scenario import Scenario, load
from simnet.engine.simulation import simulate
from tests.helpers import rank_runs
from tests.helpers.scenario_samples import pod, write

ITERATIONS = 400
QUANTILES = (0.5, 0.95)


def found(compute_s: Any) -> FittedVariation:
    return variation_fit.fit(rank_runs.samples(compute_s))


def scenario(fitted: FittedVariation, folder: Path) -> Scenario:
    """Return a scenario in which messages take nearly no time, with the faults as they are written."""
    fast = {"bandwidth": "1000 TB/s", "latency": "0 s"}
    cluster = {"num_nodes": 4, "ranks_per_node": 2, "intra_node": fast, "inter_node": fast}
    # Ranks meet before the optimizer: what follows would be averaged with the next iteration.
    half = f"{fitted.compute_s / 2 * 1e3:.6f} ms"
    workload = {"num_elements": 1000, "forward": half, "backward": half, "optimizer": "1 ns"}
    path = write(folder / "pod.toml", pod(cluster=cluster, workload=workload, strategy={"kind": "all_reduce"}))
    path.write_text(path.read_text().replace('[baseline]\nkind = "all_reduce"', "") + variation_file.text(fitted))
    return load(str(path), {"run.iterations": ITERATIONS, "run.draws": 0})


HEAVY_TAIL = rank_runs.STEP_S * (0.9 + 0.1 * np.random.default_rng(5).exponential(1, (8, 400)))
RUNS = {
    "a slow rank": rank_runs.times(steps=400, slow={3: 1.3}, seed=1),
    "jitter": rank_runs.times(steps=400, cv=0.2, seed=2),
    "jitter as samples": HEAVY_TAIL,
    "pauses": rank_runs.times(steps=400, probability=0.02, seed=3),
    "all": rank_runs.times(steps=400, cv=0.1, slow={0: 1.2, 5: 1.1}, probability=0.01, pause_s=0.3, seed=4),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_simulation_with_the_faults_reproduces_what_they_were_fitted_to(name: str, tmp_path: Path) -> None:
    loaded = scenario(found(RUNS[name]), tmp_path)
    variation = Variation(topology.build(loaded.cluster, loaded.calibration), seed=0)
    drawn = [variation.of(iteration, 1) for iteration in range(ITERATIONS)]
    fitted_s = found(RUNS[name]).compute_s
    simulated_s = np.array([fitted_s * one.compute + (0 if one.pauses_s is None else one.pauses_s) for one in drawn]).T
    # A 95th percentile of 400 draws of the heavy tail varies by 2 %, measured and simulated alike.
    for mine, measured in zip(simulated_s, RUNS[name], strict=True):
        assert np.quantile(mine, QUANTILES) == pytest.approx(np.quantile(measured, QUANTILES), rel=0.1)
    assert np.quantile(simulated_s, QUANTILES) == pytest.approx(np.quantile(RUNS[name], QUANTILES), rel=0.03)


@pytest.mark.parametrize("name", RUNS)
def test_iterations_take_as_long_as_the_slowest_rank_of_each_measured_step(name: str, tmp_path: Path) -> None:
    result = simulate(scenario(found(RUNS[name]), tmp_path)).result
    slowest_s = RUNS[name].max(axis=0)
    assert np.quantile(result.iterations_s, QUANTILES) == pytest.approx(np.quantile(slowest_s, QUANTILES), rel=0.05)


def test_traces_and_a_measurement_of_one_run_give_the_same_faults(tmp_path: Path) -> None:
    compute_s = rank_runs.times(steps=60, slow={3: 1.2}, probability=0.02)
    rank_runs.traces(tmp_path / "cpu", compute_s)
    rank_runs.traces(tmp_path / "gpu", compute_s, on_gpu=True)
    rank_runs.measurement(tmp_path / "m.json", compute_s)
    texts = [
        variation_file.text(variation_fit.fit(variation_files.read([tmp_path / name])))
        for name in ("cpu", "gpu", "m.json")
    ]
    whole = [tomllib.loads(text)["cluster"]["faults"] for text in texts]
    assert [one["kind"] for one in whole[0]] == ["slow_rank", "compute_jitter", "pause"]
    for faults in whole[1:]:
        for one, other in zip(faults, whole[0], strict=True):
            assert one.keys() == other.keys()
            for key in {"compute_slowdown", "cv", "probability"} & one.keys():
                assert one[key] == pytest.approx(other[key], rel=1e-3)


def test_where_nothing_was_found_only_comments_are_written() -> None:
    text = variation_file.text(found(rank_runs.times(cv=1e-4)))
    assert tomllib.loads(text) == {}
    assert "# Nothing was found" in text


def test_a_name_that_breaks_a_line_stays_in_its_comment() -> None:
    samples = rank_runs.samples(rank_runs.times())
    whole = variation_fit.fit(samples)
    odd = FittedVariation(**{name: getattr(whole, name) for name in whole.__struct_fields__} | {"where": "a\nb = 1"})
    assert tomllib.loads(variation_file.text(odd)) == tomllib.loads(variation_file.text(whole))
