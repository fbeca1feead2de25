"""Slow ranks, jitter and pauses: what was put in is found, and a scenario with the faults simulates it."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simnet.calibration import variation, variation_files
from simnet.calibration.variation import RunVariation
from simnet.cluster import topology
from simnet.engine.random_factors import Variation
from simnet.engine.scenario import Scenario, load
from simnet.engine.simulation import simulate
from tests.helpers import rank_runs
from tests.helpers.scenario_samples import pod, write

ITERATIONS = 400
QUANTILES = (0.5, 0.95)


def found(compute_s: Any) -> RunVariation:
    return variation.fit(rank_runs.samples(compute_s))


def faults(compute_s: Any, kind: str) -> list[Any]:
    return [one for one in found(compute_s).faults if one["kind"] == kind]


@pytest.mark.parametrize("slow", [{3: 1.3}, {3: 1.06}, {1: 1.1, 6: 1.5}, {4: 1.3, 5: 1.3, 6: 1.3, 7: 1.3}])
def test_slow_ranks_are_found_by_node_and_local_rank_with_their_slowdown(slow: dict[int, float]) -> None:
    for seed in range(5):
        slowest = faults(rank_runs.times(slow=slow, seed=seed), "slow_rank")
        assert [2 * one["node"] + one["local_rank"] for one in slowest] == list(slow)
        assert [one["compute_slowdown"] for one in slowest] == pytest.approx(list(slow.values()), rel=0.03)


def test_intervals_hold_the_factor_that_was_put_in() -> None:
    fits = [found(rank_runs.times(slow={0: 1.2}, seed=seed)).ranks for seed in range(40)]
    assert sum(one[0].low <= 1.2 <= one[0].high for one in fits) >= 36
    assert sum(all(rank.low <= 1 <= rank.high for rank in one[1:]) for one in fits) >= 34


def test_jitter_that_is_not_lognormal_is_given_as_samples_of_mean_one() -> None:
    rng = np.random.default_rng(1)
    compute_s = 0.1 * np.where(rng.random((8, 100)) < 0.3, 1.1, 0.95) * rng.lognormal(0, 0.004, (8, 100))
    (jitter,) = found(compute_s).faults
    samples = jitter["samples"]
    assert isinstance(samples, list)
    assert len(samples) == variation.MOST_SAMPLES
    assert np.mean(samples) == pytest.approx(1, abs=1e-3)
    mine = compute_s / compute_s.mean(axis=1, keepdims=True)
    assert np.quantile(samples, [0.05, 0.5, 0.95]) == pytest.approx(np.quantile(mine, [0.05, 0.5, 0.95]), rel=0.01)


def test_one_lognormal_in_twenty_is_refused_by_the_test_at_five_per_cent() -> None:
    rng = np.random.default_rng(0)
    refused = sum(not variation.fits_lognormal(rng.lognormal(0, 0.2, 400)) for _ in range(400))
    assert 8 <= refused <= 35


def test_pauses_are_found_with_length_and_probability_and_leave_the_jitter_alone() -> None:
    fitted = found(rank_runs.times(probability=0.02, pause_s=0.15, steps=400))
    jitter, pause = fitted.faults
    assert jitter["cv"] == pytest.approx(0.05, rel=0.05)
    assert pause["kind"] == "pause"
    assert "ranks" not in pause
    assert pause["probability"] == pytest.approx(0.02, rel=0.3)
    assert float(str(pause["pause"]).removesuffix(" ms")) == pytest.approx(150, rel=0.03)
    assert sum(one.pauses for one in fitted.ranks) == round(pause["probability"] * 8 * 400)  # type: ignore[operator]


def test_one_long_step_is_no_pause_and_no_jitter() -> None:
    compute_s = rank_runs.times()
    compute_s[2, 17] += 1
    fitted = found(compute_s)
    assert [one["kind"] for one in fitted.faults] == ["compute_jitter"]
    assert fitted.cv == pytest.approx(0.05, rel=0.1)
    assert fitted.notes == ("1 long step, too few for a pause, left out of the jitter",)
    assert fitted.ranks[2].paused_s == pytest.approx(1, rel=0.02)


def test_pauses_of_all_ranks_in_the_same_steps_come_every_so_many() -> None:
    compute_s = rank_runs.times()
    compute_s[:, 24::25] += 0.3
    fitted = found(compute_s)
    (pause,) = [one for one in fitted.faults if one["kind"] == "pause"]
    assert pause["every"] == 25
    assert "probability" not in pause
    assert "all ranks pause in the same steps" in fitted.notes[0]


def test_of_two_ranks_one_may_be_slow_and_what_all_ranks_share_and_fast_ranks_are_said() -> None:
    fitted = found(rank_runs.times(ranks=2, slow={1: 1.2}))
    assert [one.is_slow for one in fitted.ranks] == [False, True]
    assert fitted.ranks[0].factor == 1
    assert fitted.notes == (), "the first is the ordinary one, and not a fast one"
    compute_s = rank_runs.times(cv=0.02) * np.random.default_rng(0).lognormal(0, 0.1, 100)
    (note,) = found(compute_s).notes
    assert "of the variance is common to all ranks in a step" in note
    compute_s = np.full((4, 20), 0.1)
    compute_s[:3] *= 2
    most = found(compute_s)
    assert most.faults == ()
    (note,) = most.notes
    assert note.startswith("rank 3: faster than the others")
    text = variation.text(found(rank_runs.times(cv=1e-4)))
    assert tomllib.loads(text) == {}
    assert "# Nothing was found" in text


NO_RANK, ONE, AN_EVEN_NUMBER, HALF = (dict.fromkeys(range(number), 1.4) for number in (0, 1, 20, 21))
ALL_APART = {rank: 1 + rank / 100 for rank in range(42)}
MANY_APART = {rank: 1 + 3 * rank / 200 for rank in range(200)}


@pytest.mark.parametrize("slow", [NO_RANK, ONE, AN_EVEN_NUMBER, HALF, ALL_APART, MANY_APART])
def test_factors_are_on_the_median_of_the_others_slow_ranks_left_out(slow: dict[int, float]) -> None:
    ranks = found(rank_runs.times(ranks=max(42, len(slow)), slow=slow)).ranks
    assert {one.rank for one in ranks if one.is_slow} >= {rank for rank, factor in slow.items() if factor > 1.2}
    for mine in ranks:
        others = [one.compute_s for one in ranks if one is not mine and not one.is_slow]
        assert mine.factor == pytest.approx(mine.compute_s / np.median(others), rel=1e-12)


def scenario(fitted: RunVariation, folder: Path) -> Scenario:
    """Return a scenario in which messages take nearly no time, with the faults as they are written."""
    fast = {"bandwidth": "1000 TB/s", "latency": "0 s"}
    cluster = {"num_nodes": 4, "ranks_per_node": 2, "intra_node": fast, "inter_node": fast}
    # Ranks meet before the optimizer: what follows would be averaged with the next iteration.
    half = f"{fitted.compute_s / 2 * 1e3:.6f} ms"
    workload = {"num_elements": 1000, "forward": half, "backward": half, "optimizer": "1 ns"}
    path = write(folder / "pod.toml", pod(cluster=cluster, workload=workload, strategy={"kind": "all_reduce"}))
    path.write_text(path.read_text().replace('[baseline]\nkind = "all_reduce"', "") + variation.text(fitted))
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
    measured_s, fitted = RUNS[name], found(RUNS[name])
    loaded = scenario(fitted, tmp_path)
    drawing = Variation(topology.build(loaded.cluster, loaded.calibration), seed=0)
    drawn = [drawing.of(iteration, 1) for iteration in range(ITERATIONS)]
    simulated_s = np.array(
        [fitted.compute_s * one.compute + (0 if one.pauses_s is None else one.pauses_s) for one in drawn]
    ).T
    # A 95th percentile of 400 draws of the heavy tail varies by 2 %, measured and simulated alike.
    for mine, measured in zip(simulated_s, measured_s, strict=True):
        assert np.quantile(mine, QUANTILES) == pytest.approx(np.quantile(measured, QUANTILES), rel=0.1)
    assert np.quantile(simulated_s, QUANTILES) == pytest.approx(np.quantile(measured_s, QUANTILES), rel=0.03)
    slowest_s, iterations_s = measured_s.max(axis=0), simulate(loaded).result.iterations_s
    assert np.quantile(iterations_s, QUANTILES) == pytest.approx(np.quantile(slowest_s, QUANTILES), rel=0.05)


def test_traces_and_a_measurement_of_one_run_give_the_same_faults(tmp_path: Path) -> None:
    compute_s = rank_runs.times(steps=60, slow={3: 1.2}, probability=0.02)
    rank_runs.traces(tmp_path / "cpu", compute_s)
    rank_runs.traces(tmp_path / "gpu", compute_s, on_gpu=True)
    rank_runs.measurement(tmp_path / "m.json", compute_s)
    texts = [
        variation.text(variation.fit(variation_files.read([tmp_path / name]))) for name in ("cpu", "gpu", "m.json")
    ]
    whole = [tomllib.loads(text)["cluster"]["faults"] for text in texts]
    assert [one["kind"] for one in whole[0]] == ["slow_rank", "compute_jitter", "pause"]
    for faults in whole[1:]:
        for one, other in zip(faults, whole[0], strict=True):
            assert one.keys() == other.keys()
            for key in {"compute_slowdown", "cv", "probability"} & one.keys():
                assert one[key] == pytest.approx(other[key], rel=1e-3)
