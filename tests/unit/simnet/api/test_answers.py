"""Answers show themselves: as a line, as text, as HTML, as a data frame, as a figure."""

import html.parser
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

import simnet
from tests.helpers.needs import needs
from tests.helpers.refusals import refused

mpl.use("agg")
BERT = "bert_base_10gbit"
NODES, RATE = "cluster.num_nodes", "cluster.inter_node.bandwidth"
BATCH = "workload.batch_per_rank"
HOSTILE = '<script>alert("x")</script> & \x1b[31m'


class Tags(html.parser.HTMLParser):
    """The tags of a page, and whether all that are opened are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def answers() -> dict[str, simnet.Answer]:
    over = "cluster.inter_node.bandwidth"
    return {
        "run": simnet.simulate(BERT),
        "sweep": simnet.sweep(BERT, {NODES: [2, 4], over: ["10 Gbit/s", "100 Gbit/s"]}, draws=0),
        "crossover": simnet.crossover(BERT, over=over, start="10 Gbit/s", end="400 Gbit/s", draws=0),
        "advice": simnet.advise(BERT, systems=["BinSGDM", "PowerSGD rank 4"], draws=0),
        "targets": simnet.time_to_target(BERT, "characters", same_task=True, draws=0),
        "fit": simnet.calibrate("tests/golden/card_cpu/kernels.json", accept_poor_fit=True, bootstrap_draws=20),
        "published": simnet.validate(published=True, sets=["hkbu_bsp"]),
    }


NAMES = ("run", "sweep", "crossover", "advice", "targets", "fit", "published")


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_is_a_short_line_well_formed_html_and_a_frame(
    answers: dict[str, simnet.Answer], name: str
) -> None:
    answer = answers[name]
    line = repr(answer)
    assert "\n" not in line
    assert len(line) < 200
    assert line.startswith(type(answer).__name__ + "(")
    assert {"table", "p"} & Tags(answer._repr_html_()).seen
    assert not answer.to_frame().empty
    assert str(answer) == str(answer.page())


def test_names_of_files_are_escaped() -> None:
    scenario = simnet.load(BERT).replace(**{"name": HOSTILE, "question": HOSTILE, "workload.title": HOSTILE})
    run = simnet.simulate(scenario, draws=0)
    for text in (run._repr_html_(), simnet.sweep(scenario, {NODES: [2, 4]}, draws=0)._repr_html_()):
        assert "<script" not in text
        assert "\x1b" not in text
        assert "&lt;script&gt;" in text
    assert "\x1b" not in repr(run)
    assert "\x1b" not in str(run)


def test_an_answer_is_written_as_the_command_prints_it_and_as_html(
    answers: dict[str, simnet.Answer], tmp_path: Path
) -> None:
    run, sweep = answers["run"], answers["sweep"]
    assert isinstance(run, simnet.RunAnswer)
    assert isinstance(sweep, simnet.SweepAnswer)
    run.write_json(tmp_path / "run.json")
    assert simnet.simulate(str(tmp_path / "run.json")).speedup == pytest.approx(run.speedup)
    text = run._repr_html_()
    assert text.index("10.4x") < text.index("<summary>Assumptions")
    assert text.count('role="img"') == 2
    assert "a100_tcp_estimate" in text
    assert "exposed communication" in text
    needs("plotly")
    sweep.report(tmp_path / "sweep.html")
    assert "At best, on 4 nodes at 10 Gbit/s" in (tmp_path / "sweep.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_is_drawn_into_axes_that_are_given_or_new(answers: dict[str, simnet.Answer], name: str) -> None:
    given = Figure().subplots()
    assert answers[name].plot(ax=given) is given
    for axes in (given, answers[name].plot()):
        assert axes.has_data()
        assert axes.get_xlabel()
    pyplot.close("all")


@pytest.mark.parametrize(
    ("axes", "label", "lines"),
    [
        ({NODES: [2, 4]}, "nodes (of 8 GPUs)", ["10 Gbit/s"]),
        ({NODES: [2, 4], RATE: ["10 Gbit/s", "25 Gbit/s"]}, "NIC bandwidth [Gbit/s]", ["2 nodes", "4 nodes"]),
        ({NODES: [2, 4], BATCH: [8, 16]}, "batch per rank", ["nodes 2", "nodes 4"]),
        ({"cluster.intra_node.bandwidth": ["50 GB/s", "100 GB/s"]}, "bandwidth inside a node", []),
    ],
)
def test_axes_and_lines_of_a_sweep_have_the_labels_of_the_commands_figures(
    axes: dict[str, Any], label: str, lines: list[str]
) -> None:
    drawn = simnet.sweep(BERT, axes, draws=0).plot()
    assert drawn.get_xlabel() == label
    legend = drawn.get_legend()
    named = [text.get_text() for text in legend.get_texts()] if legend else []
    assert [text for text in named if "same time" not in text] == lines
    pyplot.close("all")


def test_what_an_answer_does_not_hold_is_neither_written_nor_drawn(
    answers: dict[str, simnet.Answer], tmp_path: Path
) -> None:
    fit = answers["fit"]
    assert isinstance(fit, simnet.CalibrationAnswer)
    fit.write(tmp_path / "mine.toml")
    assert simnet.load(BERT, {"calibration": str(tmp_path / "mine.toml")}).calibration.name == "mine"
    with refused("nothing to write"):
        fit.write_workload(tmp_path / "workload.toml")
    with refused("published sets in"):
        simnet.validate(published=True, sets=["hkbu_bsp", "one_bit_speedup"]).plot()
