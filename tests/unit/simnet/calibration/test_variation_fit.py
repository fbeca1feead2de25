"""Slow ranks, jitter and pauses: what was put in is found, and nothing is found where nothing is."""

from typing import Any

import numpy as np
import pytest

from simnet.calibration import jitter_fit, pause_fit, slow_rank_fit, variation_fit
from simnet.calibration.rank_samples import MetCollective, RankSamples, interval_of_median, least_steps
from simnet.calibration.variation_fit import FittedVariation
from tests.helpers import rank_runs


def found(compute_s: Any) -> FittedVariation:
    return variation_fit.fit(rank_runs.samples(compute_s))


def faults(compute_s: Any, kind: str) -> list[Any]:
    return [one for one in found(compute_s).faults if one["kind"] == kind]


@pytest.mark.parametrize("seed", range(20))
def test_ranks_that_are_alike_have_jitter_and_nothing_else(seed: int) -> None:
    fitted = found(rank_runs.times(seed=seed))
    assert [one["kind"] for one in fitted.faults] == ["compute_jitter"]
    assert fitted.cv == pytest.approx(0.05, rel=0.1)
    assert fitted.compute_s == pytest.approx(rank_runs.STEP_S, rel=0.01)
    assert fitted.notes == ()


@pytest.mark.parametrize("cv", [0.02, 0.1, 0.3])
def test_few_of_many_runs_with_any_jitter_have_a_slow_rank_or_a_pause(cv: float) -> None:
    kinds = [one["kind"] for seed in range(30) for one in found(rank_runs.times(cv=cv, steps=30, seed=seed)).faults]
    assert kinds.count("slow_rank") <= 2, "of 30 runs of 8 ranks, whose intervals hold together with 90 %"
    assert kinds.count("pause") == 0


@pytest.mark.parametrize("slow", [{3: 1.3}, {3: 1.06}, {1: 1.1, 6: 1.5}, {4: 1.3, 5: 1.3, 6: 1.3, 7: 1.3}])
def test_slow_ranks_are_found_by_node_and_local_rank_with_their_slowdown(slow: dict[int, float]) -> None:
    for seed in range(5):
        slowest = faults(rank_runs.times(slow=slow, seed=seed), "slow_rank")
        assert [2 * one["node"] + one["local_rank"] for one in slowest] == list(slow)
        assert [one["compute_slowdown"] for one in slowest] == pytest.approx(list(slow.values()), rel=0.03)


def test_a_slowdown_below_two_per_cent_is_none_however_sure_it_is() -> None:
    fitted = found(rank_runs.times(cv=0.005, steps=2000, slow={2: 1.015}))
    assert fitted.ranks[2].low > 1.01
    assert not fitted.ranks[2].is_slow


def test_intervals_hold_the_factor_that_was_put_in() -> None:
    fits = [found(rank_runs.times(slow={0: 1.2}, seed=seed)).ranks for seed in range(40)]
    assert sum(one[0].low <= 1.2 <= one[0].high for one in fits) >= 36
    assert sum(all(rank.low <= 1 <= rank.high for rank in one[1:]) for one in fits) >= 34


def test_a_rank_that_is_faster_is_said() -> None:
    compute_s = rank_runs.times()
    compute_s[5] /= 1.2
    (note,) = found(compute_s).notes
    assert note.startswith("rank 5: faster than the others by more than 2 %")


def test_jitter_that_is_not_lognormal_is_given_as_samples_of_mean_one() -> None:
    rng = np.random.default_rng(1)
    compute_s = 0.1 * np.where(rng.random((8, 100)) < 0.3, 1.1, 0.95) * rng.lognormal(0, 0.004, (8, 100))
    (jitter,) = found(compute_s).faults
    samples = jitter["samples"]
    assert isinstance(samples, list)
    assert len(samples) == jitter_fit.MOST_SAMPLES
    assert np.mean(samples) == pytest.approx(1, abs=1e-3)
    mine = compute_s / compute_s.mean(axis=1, keepdims=True)
    assert np.quantile(samples, [0.05, 0.5, 0.95]) == pytest.approx(np.quantile(mine, [0.05, 0.5, 0.95]), rel=0.01)


def test_one_lognormal_in_twenty_is_refused_by_the_test_at_five_per_cent() -> None:
    rng = np.random.default_rng(0)
    refused = sum(not jitter_fit.fits_lognormal(rng.lognormal(0, 0.2, 400)) for _ in range(400))
    assert 8 <= refused <= 35


def test_times_that_do_not_vary_have_no_jitter() -> None:
    fitted = found(rank_runs.times(cv=1e-4))
    assert fitted.faults == ()
    assert fitted.cv == 0


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


def test_a_rank_that_pauses_alone_is_named() -> None:
    compute_s = rank_runs.times()
    compute_s[6, ::10] += 0.1
    (pause,) = faults(compute_s, "pause")
    assert (pause["ranks"], pause["probability"]) == ([6], 0.1)


def test_pauses_of_all_ranks_in_the_same_steps_come_every_so_many() -> None:
    compute_s = rank_runs.times()
    compute_s[:, 24::25] += 0.3
    fitted = found(compute_s)
    (pause,) = [one for one in fitted.faults if one["kind"] == "pause"]
    assert pause["every"] == 25
    assert "probability" not in pause
    assert "all ranks pause in the same steps" in fitted.notes[0]


def test_long_steps_that_are_not_rare_are_jitter() -> None:
    rng = np.random.default_rng(3)
    compute_s = np.where(rng.random((8, 100)) < 0.3, 0.15, 0.1) * rng.lognormal(0, 0.01, (8, 100))
    assert [one["kind"] for one in found(compute_s).faults] == ["compute_jitter"]


def test_pauses_are_found_in_the_whole_step_where_compute_does_not_show_them() -> None:
    compute_s = rank_runs.times()
    own_s = compute_s + 0.001
    own_s[1, [5, 50]] += 0.4
    fitted = variation_fit.fit(RankSamples(where="x", ranks_per_node=2, compute_s=compute_s, own_s=own_s))
    assert [one["kind"] for one in fitted.faults] == ["compute_jitter", "pause"]
    assert fitted.ranks[1].pauses == 2


def test_variation_that_all_ranks_share_is_said() -> None:
    rng = np.random.default_rng(0)
    compute_s = rank_runs.times(cv=0.02) * rng.lognormal(0, 0.1, 100)
    (note,) = found(compute_s).notes
    assert "of the variance is common to all ranks in a step" in note


def test_who_came_last_and_by_how_long_it_held_up_the_typical_rank() -> None:
    compute_s = rank_runs.times(ranks=4, steps=10)
    met = [MetCollective(ranks=(0, 1, 2, 3), last=2, waits_s=(0.1, 0.2, 0.0, 0.3)) for _ in range(5)]
    met += [
        MetCollective(ranks=(0, 1), last=1, waits_s=(0.5, 0.0)),
        MetCollective(ranks=(2, 3), last=2, waits_s=(0, 0)),
    ]
    mine = RankSamples(where="x", ranks_per_node=2, compute_s=compute_s, own_s=compute_s, collectives=tuple(met))
    ranks = variation_fit.fit(mine).ranks
    assert [one.came_last for one in ranks] == pytest.approx([0, 1 / 6, 5 / 6, 0])
    assert [one.held_s for one in ranks] == pytest.approx([0, 0.25 / 10, 5 * 0.15 / 10, 0])


@pytest.mark.parametrize("num_ranks", [2, 8, 1000])
def test_the_least_number_of_steps_has_an_interval_and_one_less_has_none(num_ranks: int) -> None:
    enough = np.arange(1.0, least_steps(num_ranks) + 1)
    assert interval_of_median(enough, num_ranks) == (1, len(enough))
    assert interval_of_median(enough[:-1], num_ranks)[0] < 0.01


def test_two_ranks_of_which_one_is_slow() -> None:
    times_s = list(rank_runs.times(ranks=2, slow={1: 1.2}))
    first, second = slow_rank_fit.fit(times_s)
    assert (first.is_slow, second.is_slow) == (False, True)
    assert (first.factor, first.is_fast) == (1, False), "the ordinary one, and not a fast one"


def test_nothing_pauses_where_times_are_alike() -> None:
    paused = pause_fit.find(rank_runs.times())
    assert not paused.any()
    assert pause_fit.fit(rank_runs.times(), paused) == ()
