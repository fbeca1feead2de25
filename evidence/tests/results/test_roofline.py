"""The shipped shares of rooflines are those of the published trainings, and the page tells how far off they are."""

import pytest

from evidence.studies import roofline as study
from simnet.core.files import data_path
from simnet.workload import roofline


def test_the_shipped_shares_are_those_of_the_published_trainings() -> None:
    shipped = data_path(*roofline.FILE).read_text(encoding="utf-8")
    assert shipped == study.text(), "python -m evidence.studies.roofline --write"


def test_nine_in_ten_trainings_are_inside_the_interval_of_the_other_publications() -> None:
    inside = []
    for row in study.rows():
        kind = next(kind for kind in study.KINDS if row.is_of(kind))
        rule = study.of_kind(kind, without=row.source)
        assert rule is not None
        inside.append(rule.interval[0] <= row.share <= rule.interval[1])
    assert 0.9 <= sum(inside) / len(inside) < 1
    for page in (study.PAGE, study.PAGE.parents[1] / "explanation" / "how-it-works.md"):
        assert f"{sum(inside)} of {len(inside)} trainings" in page.read_text(encoding="utf-8")


def test_the_data_of_the_page_tell_how_far_off_the_roofline_is() -> None:
    assert study.DATA.read_text(encoding="utf-8") == study.table().csv(), "python -m evidence.studies.roofline --write"
    assert f"](data/{study.DATA.name})" in study.PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
def test_work_is_what_the_model_of_a_row_computes_and_moves() -> None:
    from evidence.studies import roofline_work

    row = next(row for row in study.rows() if row.model == "MPT-125m")
    work = roofline_work.work_of(row)
    assert {key: float(value) for key, value in work.items()} == {key: getattr(row, key) for key in work}
    # Source: mosaicml/llm-foundry @061f2c7, scripts/train/benchmarking/README.md: 6 N + 12 l w T a token. Positions,
    # which N holds, are only added; fused attention computes its scores once more in backward, 14 in place of 12.
    width, layers, _ = roofline_work.MPT[row.model]
    multiplied = 125_311_488 - width * roofline_work.TOKENS
    wanted = roofline_work.TOKENS * (6 * multiplied + 14 * layers * width * roofline_work.TOKENS)
    assert row.forward_flops + row.backward_flops == pytest.approx(wanted, rel=0.002)
