"""Figures of one run, chosen by name; and the time that is lost to each fault as a table."""

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from simnet.cluster.faults import CollectiveJitter, Pause, SlowLink, SlowRank
from simnet.core.errors import SimnetError
from simnet.core.units import Duration
from simnet.engine.result import RunResult, to_json
from simnet.report.lost_time import fault_text, lost_time_lines, signed
from simnet.report.plot import of_run, plot
from simnet.report.result_page import result_page
from simnet.report.table import Table
from simnet.report.text import speedup_text
from tests.helpers.report_samples import uneven_run


@pytest.fixture
def run() -> RunResult:
    return uneven_run()


def test_the_caption_names_both_references(run: RunResult) -> None:
    caption = of_run(run, "breakdown").get_label()
    for name, speedup in (("flat fp32 DDP", run.speedup_over_flat), ("tuned DDP (bf16", run.speedup_over_tuned)):
        assert f"{speedup_text(speedup)} over {name}" in caption
    assert "over" not in of_run(replace(run, references=None), "breakdown").get_label().partition("Simulated")[2]


@pytest.mark.slow
def test_figures_of_a_run_are_chosen_by_name_and_drawn_by_default(run: RunResult, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(to_json(run.without_spans()))
    everything = plot(tmp_path / "run.json", tmp_path / "all", "svg")
    assert [path.stem for path in everything] == ["breakdown", "iterations", "lost_time"]
    assert [path.stem for path in plot(tmp_path / "run.json", tmp_path / "one", "svg", names=["lost_time"])] == [
        "lost_time"
    ]


def test_a_figure_without_its_data_is_refused(run: RunResult, tmp_path: Path) -> None:
    alike = replace(run.result, iterations_s=(0.1, 0.1), lost_time=None)
    (tmp_path / "run.json").write_bytes(to_json(replace(run, result=alike, baseline=None, speedup=None)))
    for name, why in (("iterations", "all iterations take as long"), ("lost_time", "simulate with --lost-time")):
        with pytest.raises(SimnetError, match=f"--figure: '{name}': .*{why}.*; there is breakdown"):
            plot(tmp_path / "run.json", tmp_path, names=[name])


def test_the_page_has_a_row_for_each_fault_with_both_strategies(run: RunResult) -> None:
    text = str(result_page(run))
    assert re.search(
        r"^slow rank: node 1, compute +\+20 ms +39\.6 % +\+10 ms +\+40 ms +-20 ms +-19\.8 % ", text, re.MULTILINE
    )
    assert re.search(r"^of it by interaction +\+20 ms +39\.6 %", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 100
    (table,) = (block for block in lost_time_lines(run) if isinstance(block, Table))
    assert len({len(row) for row in table.rows}) == 1


def test_a_page_of_a_run_that_nobody_asked_of_says_nothing_of_lost_time(run: RunResult) -> None:
    plain = replace(run, result=replace(run.result, lost_time=None), baseline=None, speedup=None)
    assert "interaction" not in str(result_page(plain))


def test_differences_have_a_sign_and_rounding_is_zero() -> None:
    assert [signed(one, 0.1) for one in (0.03821, -0.0005, 1e-9)] == ["+38.2 ms", "-500 us", "0"]


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (SlowRank(node=3, local_rank=5, compute_slowdown=1.3), "slow rank: node 3, local rank 5, compute slowdown 1.3"),
        (SlowLink(place=1, rate=0.5, from_s=Duration(5)), "slow link: from 5 s, place 1, rate 0.5"),
        (
            Pause(ranks=tuple(range(9)), pause=Duration(0.05), every=10),
            "pause: ranks (9 values), pause 50 ms, every 10",
        ),
        (Pause(ranks=(1, 2), pause=Duration(0.05), every=10), "pause: ranks 1 2, pause 50 ms, every 10"),
        (CollectiveJitter(cv=0.1), "jitter of collectives: cv 0.1"),
    ],
)
def test_a_fault_is_named_by_what_it_says_beyond_its_defaults(fault: Any, text: str) -> None:
    assert fault_text(fault) == text
