"""Figures and tables of sweeps whose iterations vary: medians, 95th percentiles, and which key they are drawn over."""

import json
from pathlib import Path
from typing import Any

import pytest

from simnet.engine.result import SweepResult
from simnet.report import figure
from simnet.report.chart import SAME_TIME
from simnet.report.drawings import draw
from simnet.report.sweep_page import sweep_page
from tests.helpers.cli import run
from tests.helpers.report_samples import sweep_document, sweep_of

SLOWDOWN = "cluster.faults.0.compute_slowdown"
BANDWIDTH = "cluster.inter_node.bandwidth"


def document(keys: dict[str, list[Any]], own: list[float], baseline: list[float]) -> dict[str, Any]:
    """Return a sweep of the same iterations, times the place of the point counted from 1, at each value of one key."""
    whole = sweep_document(("bert_base",), (10,), (8,))
    first = whole["points"][0]
    ((key, values),) = keys.items()
    points = [
        {
            **first,
            "set": {key: value},
            "result": {**first["result"], "iterations_s": [one * place for one in own]},
            "baseline": {**first["baseline"], "iterations_s": [one * place for one in baseline]},
        }
        for place, value in enumerate(values, start=1)
    ]
    return {**whole, "points": points, "axes": [{"key": key, "values": values}]}


def lines_of(axes: Any) -> list[Any]:
    """Return the lines of data, without that of the same time."""
    return [line for line in axes.get_lines() if line.get_label() != SAME_TIME]


OWN, BASELINE = [0.1] * 10 + [0.2] * 11, [0.4] * 20 + [0.5]


@pytest.fixture
def sweep() -> SweepResult:
    return sweep_of(document({SLOWDOWN: [1.0, 1.5, 2.0]}, OWN, BASELINE))


def test_a_sweep_over_a_number_of_a_fault_has_both_figures(sweep: SweepResult) -> None:
    with figure.styled():
        assert {"iteration_time", "speedup_of_tails"} <= set(draw(sweep, where="x"))


def test_medians_are_lines_and_the_band_ends_at_the_95th_percentile(sweep: SweepResult) -> None:
    with figure.styled():
        found = draw(sweep, where="x", names=["iteration_time"])["iteration_time"]
        assert figure.image(found)
    (axes,) = found.axes
    lines = {str(line.get_label()): list(line.get_ydata()) for line in axes.get_lines()}
    medians = [[one * place for place in (1, 2, 3)] for one in (0.2, 0.4)]
    assert list(lines.values()) == [pytest.approx(one) for one in medians]
    tops = [max(y for _, y in band.get_paths()[0].vertices) for band in axes.collections]
    assert tops == pytest.approx([0.6, 1.2])
    assert "Time of an iteration: median, shaded up to the 95th percentile" in found.get_label()


def test_speedups_of_medians_and_of_95th_percentiles_are_two_lines(sweep: SweepResult) -> None:
    slower_tail = sweep_of(document({SLOWDOWN: [1.0, 2.0]}, OWN, [0.4] * 10 + [0.6] * 11))
    with figure.styled():
        (axes,) = draw(slower_tail, where="x", names=["speedup_of_tails"])["speedup_of_tails"].axes
    (medians, tails, *_) = (list(line.get_ydata()) for line in lines_of(axes))
    assert (medians, tails) == (pytest.approx([3, 3]), pytest.approx([3, 3]))
    with figure.styled():
        (axes,) = draw(sweep, where="x", names=["speedup_of_tails"])["speedup_of_tails"].axes
    assert list(lines_of(axes)[1].get_ydata()) == pytest.approx([0.4 / 0.2] * 3)


def test_a_sweep_of_iterations_that_are_alike_has_neither() -> None:
    alike = sweep_of(document({"run.grad_accumulation": [1, 2]}, [0.1], [0.4]))
    with figure.styled():
        assert set(draw(alike, where="x")) == {"speedup", "breakdown"}


def test_a_list_of_points_has_medians_and_95th_percentiles_where_iterations_vary(sweep: SweepResult) -> None:
    head, *rows = str(sweep_page(sweep)).splitlines()[2:6]
    assert head.split() == [
        *(SLOWDOWN, "iteration", "p50", "p95", "baseline", "baseline", "p95", "throughput", "speedup"),
    ]  # fmt: skip
    assert "200 ms  200 ms" in rows[0]


def test_a_matrix_has_one_of_medians_and_95th_percentiles_below() -> None:
    whole = sweep_document(("bert_base",), (10, 100), (2, 8))
    for point in whole["points"]:
        point["result"]["iterations_s"] = OWN
        point["baseline"]["iterations_s"] = BASELINE
    text = str(sweep_page(sweep_of(whole)))
    assert "speedup of medians / of 95th percentiles of the iterations:" in text
    assert text.count("2.00x / 2.00x") == 4


def test_a_swept_fault_is_drawn_over_its_number_with_a_panel_for_each_bandwidth(tmp_path: Path) -> None:
    faults = '[{kind="slow_rank", node=0, compute_slowdown=1.0}, {kind="compute_jitter", cv=0.1}]'
    settings = [f"cluster.faults={faults}", f"{SLOWDOWN}=1.0,2.0", f"{BANDWIDTH}=10 Gbit/s,100 Gbit/s"]
    settings += ["cluster.num_nodes=2", "cluster.ranks_per_node=2", "run.iterations=20"]
    given = [text for setting in settings for text in ("--set", setting)]
    assert run("sweep", "bert_base_10gbit", *given, "--jobs", "1", "-o", str(tmp_path)).exit_code == 0
    csv = (tmp_path / "results.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert {"p50_s", "p95_s", "baseline_p50_s", "baseline_p95_s"} <= set(csv)
    points = json.loads((tmp_path / "results.json").read_text())["points"]
    assert len(points) == 4
    with figure.styled():
        found = draw(sweep_of({**json.loads((tmp_path / "results.json").read_text())}), where="x")
    assert [axes.get_title() for axes in found["iteration_time"].axes] == [
        "NIC bandwidth 10 Gbit/s",
        "NIC bandwidth 100 Gbit/s",
    ]
    assert found["iteration_time"].axes[0].get_xlabel() == "compute slowdown"
