"""The figures of a sweep: which are drawn from what, and what is said where none can be."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from simnet.commands.main import cli
from simnet.errors import SimnetError
from simnet.report.plot import plot
from tests.unit.report_samples import sweep_document

ALL = ["speedup_over_nodes", "speedup_over_bandwidth", "throughput", "breakdown", "heat_map"]
Document = dict[str, Any]


def write(folder: Path, document: Document) -> Path:
    path = folder / "results.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def names(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


def texts(figure: Path) -> str:
    """Return all text of an SVG figure in one line; it stands in comments above its outlines."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    root = ElementTree.parse(figure, parser).getroot()
    return " ".join((node.text or "").strip() for node in root.iter() if node.tag is ElementTree.Comment)


@pytest.fixture
def small() -> Document:
    return sweep_document(("bert_base",), (10, 100), (1, 8))


def test_a_sweep_over_nodes_and_bandwidth_gives_all_five_figures(small: Document, tmp_path: Path) -> None:
    paths = plot(write(tmp_path, small), tmp_path / "new" / "figures")
    assert names(paths) == ALL
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("file_format", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_figures_come_in_vector_formats_too(file_format: Any, start: bytes, small: Document, tmp_path: Path) -> None:
    for path in plot(write(tmp_path, small), tmp_path, file_format):
        assert path.suffix == f".{file_format}"
        assert path.read_bytes().startswith(start)


def test_the_folder_of_a_sweep_stands_for_its_results(small: Document, tmp_path: Path) -> None:
    write(tmp_path, small)
    assert names(plot(tmp_path, tmp_path)) == ALL


@pytest.mark.parametrize(
    ("rates", "nodes", "drawn"),
    [
        ((10,), (1, 8), ["speedup_over_nodes", "throughput", "breakdown"]),
        ((10, 100), (8,), ["speedup_over_bandwidth", "breakdown"]),
    ],
)
def test_one_axis_gives_the_figures_that_need_no_other(
    rates: tuple[float, ...], nodes: tuple[int, ...], drawn: list[str], tmp_path: Path
) -> None:
    assert names(plot(write(tmp_path, sweep_document(bandwidths=rates, nodes=nodes)), tmp_path)) == drawn


def test_without_a_baseline_no_speedup_is_drawn(tmp_path: Path) -> None:
    document = sweep_document(("bert_base",), (10, 100), (1, 8), baseline=False)
    assert names(plot(write(tmp_path, document), tmp_path)) == ["throughput", "breakdown"]


def test_the_same_results_give_the_same_bytes(small: Document, tmp_path: Path) -> None:
    results = write(tmp_path, small)
    first = [path.read_bytes() for path in plot(results, tmp_path / "a", "pdf")]
    assert [path.read_bytes() for path in plot(results, tmp_path / "b", "pdf")] == first


def test_every_figure_tells_the_question_and_the_kind_of_its_calibration(small: Document, tmp_path: Path) -> None:
    for path in plot(write(tmp_path, small), tmp_path, "svg"):
        told = texts(path)
        assert "How much faster does BinSGDM train" in told
        assert "made_up_2020 (estimate)" in told
        assert "BERT-Base" in told


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("speedup_over_nodes", ["nodes (of 8 GPUs)", "speedup (times)", "10 Gbit/s", "1.0: same time"]),
        ("speedup_over_bandwidth", ["NIC bandwidth of a node [Gbit/s]", "speedup (times)", "8 nodes"]),
        ("throughput", ["nodes (of 8 GPUs)", "throughput [samples/s]", "linear (compute alone)", "all_reduce"]),
        ("breakdown", ["iteration time [ms]", "exposed communication", "right: all_reduce"]),
        ("heat_map", ["nodes (of 8 GPUs)", "NIC bandwidth [Gbit/s]", "4.16"]),
    ],
)
def test_the_axes_have_units_and_the_lines_have_names(
    name: str, labels: list[str], small: Document, tmp_path: Path
) -> None:
    plot(write(tmp_path, small), tmp_path, "svg")
    told = texts(tmp_path / f"{name}.svg")
    assert [label for label in labels if label not in told] == []


def test_points_that_are_missing_leave_a_gap(small: Document, tmp_path: Path) -> None:
    del small["points"][0]
    plot(write(tmp_path, small), tmp_path, "svg")
    assert " - " in texts(tmp_path / "heat_map.svg")


def damaged(document: Document) -> str:
    return json.dumps(document)[:-100]


def without_cluster(document: Document) -> str:
    for point in document["points"]:
        del point["scenario"]["cluster"]
    return json.dumps(document)


def many_panels(document: Document) -> str:
    points = [
        {**point, "set": {**point["set"], "workload.batch_per_rank": batch}}
        for batch in range(13)
        for point in document["points"]
    ]
    return json.dumps({**document, "points": points})


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (lambda _: "", "is empty: run the sweep again"),
        (damaged, "is damaged, no whole JSON document"),
        (lambda _: "\udcff", "is damaged, no whole JSON document"),
        (lambda _: "[1, 2]", "no 'format' key"),
        (lambda document: json.dumps({**document, "format": 7}), "format 7: this version reads format 1"),
        (lambda document: json.dumps({**document, "points": []}), "no point was simulated"),
        (lambda document: json.dumps({**document, "points": "x"}), "is damaged"),
        (without_cluster, "no cluster with nodes and an inter-node bandwidth"),
        (lambda document: json.dumps({**document, "points": document["points"][:1]}), "at least two values"),
        (many_panels, "13 panels: at most 12"),
    ],
)
def test_results_that_cannot_be_drawn_are_told_in_one_sentence(
    contents: Callable[[Document], str], message: str, small: Document, tmp_path: Path
) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(contents(small).encode("utf-8", "surrogateescape"))
    with pytest.raises(SimnetError, match=message) as caught:
        plot(path, tmp_path / "figures")
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "figures").exists()


def test_results_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(SimnetError, match=r"cannot be read \(No such file or directory\): name the results.json"):
        plot(tmp_path, tmp_path)


def test_a_place_that_cannot_be_written_is_told(small: Document, tmp_path: Path) -> None:
    results = write(tmp_path, small)
    with pytest.raises(SimnetError, match="cannot be written"):
        plot(results, results / "figures")


def test_the_command_prints_what_it_wrote(small: Document, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["plot", str(write(tmp_path, small)), "-o", str(tmp_path)])
    assert done.exit_code == 0
    assert done.output.split() == [str(tmp_path / f"{name}.png") for name in ALL]


def test_the_command_exits_with_2_and_one_line_on_damaged_results(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{", encoding="utf-8")
    done = CliRunner().invoke(cli, ["plot", str(tmp_path), "-o", str(tmp_path)])
    assert done.exit_code == 2
    assert done.output.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]
