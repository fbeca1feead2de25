"""Fitted variation as a table: who is slow, how often others wait for it, and what is left out of a long one."""

import pytest

from simnet.calibration import variation
from simnet.calibration.rank_samples import RankSamples, met
from simnet.calibration.variation import RunVariation
from simnet.report.calibration import MOST_RANKS, variation_page
from tests.helpers import rank_runs


def fit(**run: object) -> RunVariation:
    compute_s = rank_runs.times(**run)  # type: ignore[arg-type]
    everyone = tuple(range(len(compute_s)))
    collectives = tuple(met(everyone, column.max() - column) for column in compute_s.T)
    return variation.fit(
        RankSamples(where="run", ranks_per_node=2, compute_s=compute_s, own_s=compute_s, collectives=collectives)
    )


def rows(fitted: RunVariation, **how: bool) -> list[str]:
    lines = str(variation_page(fitted, **how)).splitlines()
    start = next(at for at, line in enumerate(lines) if line.split()[:1] == ["rank"])
    after = lines[start + 1 :]
    return after[: after.index("")] if "" in after else after


def test_the_head_says_what_was_measured_and_each_rank_has_a_row() -> None:
    fitted = fit(slow={3: 1.3})
    text = str(variation_page(fitted))
    assert text.startswith("run: 8 ranks on 4 nodes, 100 steps; mean compute ")
    assert len(rows(fitted)) == 8
    slow = rows(fitted)[3].split()
    assert slow[:2] == ["3", "1.1"]
    assert slow[-1] == "slow"
    assert float(slow[4]) == pytest.approx(1.3, rel=0.03)
    assert "slow" not in "".join(rows(fitted)[:3])


def test_where_nobody_waits_a_dash_stands_for_it() -> None:
    fitted = variation.fit(rank_runs.samples(rank_runs.times()))
    assert all(line.split().count("-") == 3 for line in rows(fitted))


def test_of_many_ranks_those_that_cost_most_are_shown() -> None:
    fitted = fit(ranks=64, slow={50: 1.5})
    assert len(rows(fitted)) == MOST_RANKS
    assert any(line.split()[0] == "50" and line.endswith("slow") for line in rows(fitted))
    assert "note: 32 faster ranks are not shown: --all-rows" in str(variation_page(fitted))
    assert len(rows(fitted, all_rows=True)) == 64
