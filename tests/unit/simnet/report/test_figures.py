"""Figures of runs and sweeps, from results to files: chosen by name, one look, the same bytes for the same data."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from msgspec.structs import replace

from simnet.cluster.faults import CollectiveJitter, Pause, SlowLink, SlowRank
from simnet.core.errors import SimnetError
from simnet.core.units import Duration
from simnet.engine.result import to_json
from simnet.report import figure
from simnet.report.figure import Format
from simnet.report.plot import of_run, plot
from simnet.report.result_page import fault_text, lost_time_lines, result_page, signed
from simnet.report.table import Table
from simnet.report.text import speedup_text
from tests.helpers.cli import run
from tests.helpers.refusals import refused
from tests.helpers.report_samples import sweep_document, uneven_run, write_results


def test_the_caption_names_both_references() -> None:
    run = uneven_run()
    caption = of_run(run, "breakdown").get_label()
    assert f"Over flat fp32 DDP: {speedup_text(run.speedup_over_flat)}. Compared with tuned DDP (bf16" in caption
    assert "ver flat" not in of_run(replace(run, references=None), "breakdown").get_label()


@pytest.mark.slow
def test_figures_of_a_run_are_chosen_by_name_and_drawn_by_default(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(to_json(uneven_run().without_spans()))
    everything = ["breakdown", "iterations", "lost_time"]
    for names, drawn in (((), everything), (["lost_time"], ["lost_time"])):
        assert [figure_path.stem for figure_path in plot(path, tmp_path / str(len(drawn)), "svg", names=names)] == drawn


def test_a_figure_without_its_data_is_refused(tmp_path: Path) -> None:
    alike = replace(uneven_run().result, iterations_s=(0.1, 0.1), lost_time=None)
    (tmp_path / "run.json").write_bytes(to_json(replace(uneven_run(), result=alike, baseline=None, speedup=None)))
    for name, why in (("iterations", "all iterations take as long"), ("lost_time", "simulate with --lost-time")):
        with refused(f"--figure: '{name}': ", why, "; there is breakdown"):
            plot(tmp_path / "run.json", tmp_path, names=[name])


def test_the_page_has_a_row_for_each_fault_with_both_strategies_if_that_was_asked_for() -> None:
    run = uneven_run()
    text = str(result_page(run))
    numbers = r"\+20 ms +39\.6 %"
    row = rf"^slow rank: node 1, compute +{numbers} +\+10 ms +\+40 ms +-20 ms +-19\.8 % "
    assert re.search(row, text, re.MULTILINE)
    assert re.search(rf"^of it by interaction +{numbers}", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 100
    (table,) = (block for block in lost_time_lines(run) if isinstance(block, Table))
    assert len({len(row) for row in table.rows}) == 1
    plain = replace(run, result=replace(run.result, lost_time=None), baseline=None, speedup=None)
    assert "interaction" not in str(result_page(plain))


def test_differences_have_a_sign_and_rounding_is_zero() -> None:
    assert [signed(lost_s, 0.1) for lost_s in (0.03821, -0.0005, 1e-9)] == ["+38.2 ms", "-500 us", "0"]


def test_a_fault_is_named_by_what_it_says_beyond_its_defaults() -> None:
    pause = Pause(ranks=(1, 2), pause=Duration(0.05), every=10)
    for fault, text in (
        (SlowRank(node=3, local_rank=5, compute_slowdown=1.3), "slow rank: node 3, local rank 5, compute slowdown 1.3"),
        (SlowLink(place=1, rate=0.5, from_s=Duration(5)), "slow link: from 5 s, place 1, rate 0.5"),
        (pause, "pause: ranks 1 2, pause 50 ms, every 10"),
        (replace(pause, ranks=tuple(range(9))), "pause: ranks (9 values), pause 50 ms, every 10"),
        (CollectiveJitter(cv=0.1), "jitter of collectives: cv 0.1"),
    ):
        assert fault_text(fault) == text


def two_figures() -> dict[str, Any]:
    """Return a sweep that gives two figures."""
    return sweep_document(("bert_base",), (10, 100), (8,))


def test_one_point_gives_no_figure_and_nothing_is_written(tmp_path: Path) -> None:
    results = write_results(tmp_path, sweep_document(("bert_base",), (10,), (8,)))
    with refused("1 point: figures need at least", str(results)):
        plot(results, tmp_path / "figures")
    assert not (tmp_path / "figures").exists()


@pytest.mark.slow
def test_a_home_that_cannot_be_written_is_no_concern_of_the_user(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("no folder", encoding="utf-8")
    hidden = ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    environment = {key: value for key, value in os.environ.items() if key not in hidden} | {"HOME": str(home)}
    command = [sys.executable, "-m", "simnet", "plot", str(write_results(tmp_path, two_figures())), "-o", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert all(line.startswith("note: ") for line in done.stderr.splitlines())


@pytest.mark.slow
def test_the_command_takes_the_folder_of_a_sweep_and_prints_what_it_wrote(tmp_path: Path) -> None:
    write_results(tmp_path, sweep_document(("bert_base",), (10, 100), (1, 8)))
    done = run("plot", tmp_path, "-o", tmp_path)
    assert done.exit_code == 0
    names = ["speedup_over_nodes", "speedup_over_bandwidth", "throughput", "breakdown", "heat_map"]
    assert done.stdout.split() == [str(tmp_path / f"{name}.png") for name in names]
    assert done.stderr == "note: breakdown shows 8 nodes alone; draw the others with --figure breakdown_of_all\n"


def test_parts_of_a_step_are_drawn_at_every_number_of_nodes_where_that_is_asked_for(tmp_path: Path) -> None:
    write_results(tmp_path, sweep_document(("bert_base",), (10, 100), (1, 4, 8)))
    done = run("plot", tmp_path, "-o", tmp_path, "--figure", "breakdown_of_all", "--format", "svg")
    assert (done.exit_code, done.stderr) == (0, "")
    drawn = (tmp_path / "breakdown_of_all.svg").read_text(encoding="utf-8")
    titles = ("1 node", "4 nodes", "8 nodes", "2 nodes")
    assert [f"<!-- {nodes} -->" in drawn for nodes in titles] == [True, True, True, False]


@pytest.mark.slow
def test_only_figures_with_bands_speak_of_them(tmp_path: Path) -> None:
    swept = ["sweep", "speedup", "--set", "workload=bert_base", "--set", "cluster.num_nodes=1,8", "--draws", "20"]
    assert run(*swept, "--jobs", "1", "-o", tmp_path).exit_code == 0
    captions = {path.stem: text for path, text in plot(tmp_path, tmp_path).items()}
    assert {name for name, text in captions.items() if "Bands: 90 % intervals over 20 draws" in text} == {
        "speedup_over_nodes", "speedup_over_bandwidth", "throughput",
    }  # fmt: skip


def drawn(left: float = 0.1) -> Figure:
    """Return a figure with a clip path, which matplotlib names by its place."""
    made = Figure(figsize=(2, 2))
    made.add_axes((left, 0.1, 0.8, 0.8)).plot([1, 2], [1, 2])
    return made


@pytest.mark.slow
@pytest.mark.parametrize(("form", "dated"), [("png", b"Software"), ("pdf", b"CreationDate"), ("svg", b"dc:date")])
def test_the_same_data_give_the_same_bytes_without_a_date(form: Format, dated: bytes) -> None:
    with figure.styled():
        # Layouts found anew differ by as much.
        images = {figure.image(drawn(left), form) for left in (0.1, 0.1 + 1e-15)}
    assert len(images) == 1
    assert dated not in images.pop()


def test_clip_paths_of_an_svg_are_still_found() -> None:
    with figure.styled():
        svg = figure.image(drawn(), "svg").decode()
    assert svg.count('clip-path="url(#clip1)"') == svg.count('<clipPath id="clip1"') == 1


def test_an_ending_that_is_no_figure_is_refused_before_anything_is_drawn() -> None:
    assert figure.format_of(Path("a.PNG")) == "png"
    with pytest.raises(SimnetError, match=r"^x.jpg: '.jpg': a figure is a .png, .pdf or .svg file; name one"):
        figure.format_of(Path("x.jpg"))
