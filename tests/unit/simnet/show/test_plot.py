"""The figures of a sweep: which are drawn from what, and what is said where none can be."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from simnet import files, sweep
from simnet.commands.main import cli
from simnet.errors import SimnetError
from simnet.result import to_json
from simnet.scenario import load_experiment
from simnet.show import figures
from simnet.show.plot import plot
from tests.helpers.report_samples import sweep_document, sweep_of

ALL = ["speedup_over_nodes", "speedup_over_bandwidth", "throughput", "breakdown", "heat_map"]
Document = dict[str, Any]


STRATEGIES = [
    {"kind": "all_reduce", "algorithm": "hierarchical", "wire_dtype": "bf16"},
    {"kind": "binsgdm", "topology": "flat"},
    {"kind": "binsgdm"},
]


def over(document: Document, key: str, values: list[Any], more: dict[str, list[Any]] | None = None) -> Document:
    """Return a sweep over other keys than nodes and bandwidth: copies of the first point, ever slower."""
    keys = {key: values, **(more or {})}
    first = document["points"][0]
    grid = enumerate(product(*keys.values()), start=1)
    points = [
        {
            **first,
            "set": dict(zip(keys, place, strict=True)),
            "result": {**first["result"], "iterations_s": [n]},
            "speedup": 1 / n,
        }
        for n, place in grid
    ]
    return {**document, "points": points}


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


SWEPT = [name for name in files.names("experiments") if load_experiment(name).axes]


@pytest.mark.parametrize("name", SWEPT)
def test_every_shipped_experiment_that_sweeps_can_be_plotted(name: str, tmp_path: Path) -> None:
    experiment = load_experiment(name)
    points = sweep.expand(experiment)
    (tmp_path / "results.json").write_bytes(to_json(sweep.whole(experiment, points, sweep.run(points))))
    drawn = names(plot(tmp_path, tmp_path))
    assert "breakdown" in drawn
    assert {"speedup", "speedup_over_nodes", "speedup_over_bandwidth"} & set(drawn)


def test_a_sweep_over_numbers_gives_a_line_for_each_other_value(small: Document, tmp_path: Path) -> None:
    document = over(small, "workload.batch_per_rank", [16, 4], {"strategy.overlap": [True, False]})
    assert names(plot(write(tmp_path, document), tmp_path, "svg")) == ["speedup", "breakdown"]
    told = texts(tmp_path / "speedup.svg")
    assert [
        label for label in ("batch per rank", "overlap true", "overlap false", "1.0: same") if label not in told
    ] == []
    assert "BERT-Base, 1 node at 10 Gbit/s" in told
    assert "overlap false" in texts(tmp_path / "breakdown.svg")


def test_a_sweep_over_quantities_is_drawn_in_their_order(small: Document) -> None:
    points = sweep_of(over(small, "strategy.bucket_cap", ["25 MiB", "900 KiB", "1 GB"])).points
    figure = Figure()
    figures.speedup_over(figure.subplots(), points, key="strategy.bucket_cap", others=[])
    (axes,) = figure.axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["900 KiB", "25 MiB", "1 GB"]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([1 / 2, 1, 1 / 3])


def test_a_sweep_over_tables_gives_a_bar_for_each_with_its_settings(small: Document, tmp_path: Path) -> None:
    assert names(plot(write(tmp_path, over(small, "strategy", STRATEGIES)), tmp_path, "svg")) == [
        "speedup",
        "breakdown",
    ]
    for name in ("speedup", "breakdown"):
        told = texts(tmp_path / f"{name}.svg")
        assert "binsgdm, topology flat" in told
        assert "hierarchical" in told
    assert "upper: binsgdm" in texts(tmp_path / "breakdown.svg")


def test_the_axis_that_panels_share_holds_the_lines_of_all(tmp_path: Path) -> None:
    document = sweep_document(bandwidths=(10,), nodes=(2, 8))
    figure = Figure()
    grid = figure.subplots(1, 2, sharey=True)
    for axes, factor in zip(grid, (0.1, 30), strict=True):
        points = sweep_of({**document, "points": [p | {"speedup": factor} for p in document["points"][:2]]}).points
        figures.speedup_over_nodes(axes, points)
    lowest, highest = grid[0].get_ylim()
    assert lowest < 0.1
    assert highest > 30


def test_a_strategy_too_short_beside_its_baseline_is_drawn_alone_too(small: Document, tmp_path: Path) -> None:
    plot(write(tmp_path, small), tmp_path, "svg")
    assert "8 nodes, without the baseline" in texts(tmp_path / "breakdown.svg")
    alike = [
        {
            **point,
            "result": {**point["result"], **{key: point["baseline"][key] for key in ("breakdown", "iterations_s")}},
        }
        for point in small["points"]
    ]
    plot(write(tmp_path, {**small, "points": alike}), tmp_path, "svg")
    assert "without the baseline" not in texts(tmp_path / "breakdown.svg")


def test_two_settings_of_one_strategy_are_told_apart(small: Document, tmp_path: Path) -> None:
    for point in small["points"]:
        point["result"]["strategy"] = "all_reduce"
        point["scenario"]["strategy"] = {"kind": "all_reduce", "algorithm": "tree"}
        point["scenario"]["baseline"] = {"kind": "all_reduce", "algorithm": "ring"}
    plot(write(tmp_path, small), tmp_path, "svg")
    told = texts(tmp_path / "throughput.svg")
    assert "all_reduce, algorithm tree" in told
    assert "all_reduce, algorithm ring" in told


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


NESTED = "[" * 200 + "]" * 200
DAMAGE = [
    ("scenario.cluster.num_nodes", 0, "num_nodes"),
    ("scenario.cluster.num_nodes", -8, "num_nodes"),
    ("scenario.cluster.num_nodes", 1e300, "num_nodes"),
    ("scenario.cluster.num_nodes", 10**6, "at most 1000000 ranks"),
    ("world_size", 7, "world_size: 7: must be at least the number of nodes, 8"),
    ("scenario.cluster.inter_node.bandwidth", "0 Gbit/s", "scenario"),
    ("scenario.cluster.inter_node.bandwidth", 25, "scenario"),
    ("scenario.workload", [1], "workload"),
    ("scenario.workload.title", 5, "title"),
    ("scenario.calibration", [1], "calibration"),
    ("scenario.calibration", None, "calibration"),
    ("scenario.strategy", 5, "strategy"),
    ("world_size", 0, "world_size"),
    ("speedup", 0, "speedup"),
    ("speedup", -1, "speedup"),
    ("result.iterations_s", [0], "iterations_s"),
    ("result.iterations_s", [], "iterations_s"),
    ("result.iterations_s", [float("inf")], "must be finite"),
    ("result.iterations_s", [float("nan")], "must be finite"),
    ("result.samples_per_s", 0, "samples_per_s"),
    ("baseline.iterations_s", [0], "iterations_s"),
    ("result.breakdown.forward_s", -0.1, "breakdown: forward_s -0.1"),
]


def with_value(document: Document, path: str, value: object) -> Document:
    """Put a value into every point of a document."""
    *parents, key = path.split(".")
    for point in document["points"]:
        holder = point
        for parent in parents:
            holder = holder[parent]
        holder[key] = value
    return document


@pytest.mark.parametrize(("path", "value", "message"), DAMAGE)
def test_damaged_numbers_and_parts_are_told_in_one_sentence(
    path: str, value: object, message: str, small: Document, tmp_path: Path
) -> None:
    results = write(tmp_path, with_value(small, path, value))
    with pytest.raises(SimnetError, match=message) as caught:
        plot(results, tmp_path / "figures")
    assert "\n" not in str(caught.value)
    assert "is damaged" in str(caught.value)


@pytest.mark.parametrize("form", [1, 2, 3])
@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (
            "scenario.strategy",
            {"kind": "of_elsewhere"},
            "scenario.strategy.kind: 'of_elsewhere': unknown strategy; install the package that brings it",
        ),
        (
            "scenario.cluster.faults",
            [{"kind": "of_elsewhere"}],
            "scenario.cluster.faults.0.kind: 'of_elsewhere': unknown fault; install the package that brings it",
        ),
        ("scenario.strategy", None, "scenario.strategy: None: write a table with the keys kind: the file is damaged"),
        ("scenario.strategy", ["x"], "scenario.strategy: ['x']: write a table with the keys kind: the file is damaged"),
        ("scenario.strategy", {}, "scenario.strategy.kind: missing; add kind = one of "),
    ],
)
def test_a_strategy_that_is_not_installed_is_told_with_its_place(
    form: int, path: str, value: object, told: str, small: Document, tmp_path: Path
) -> None:
    results = write(tmp_path, {**with_value(small, path, value), "format": form})
    with pytest.raises(SimnetError) as caught:
        plot(results, tmp_path / "figures")
    assert str(caught.value).startswith(f"{results}: points.0.{told}")


def test_a_measurement_file_is_no_results(tmp_path: Path) -> None:
    write(tmp_path, {"what": "simnet measurements", "format": 1, "series": []})
    with pytest.raises(SimnetError, match=r"results\.json: holds 'simnet measurements', no results of a sweep: name"):
        plot(tmp_path, tmp_path / "figures")


def test_json_nested_without_end_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"a": ' + "[" * 100_000, encoding="utf-8")
    with pytest.raises(SimnetError, match="nested deeper than 50 levels"):
        plot(tmp_path, tmp_path)


def test_values_nested_without_end_are_damaged(small: Document, tmp_path: Path) -> None:
    with pytest.raises(SimnetError, match="nested deeper than 50 levels"):
        plot(write(tmp_path, with_value(small, "set.key", json.loads(NESTED))), tmp_path)


def test_times_far_apart_can_be_drawn(small: Document, tmp_path: Path) -> None:
    for point, low, high in ((small["points"][0], 1e-30, 1e30), (small["points"][-1], 1e30, 1e-30)):
        point["speedup"] = high
        point["result"] |= {"iterations_s": [low], "samples_per_s": high}
    assert names(plot(write(tmp_path, small), tmp_path)) == ALL


def test_a_sweep_without_compute_has_no_linear_ideal(small: Document, tmp_path: Path) -> None:
    for key in ("forward_s", "backward_s", "optimizer_s"):
        small = with_value(with_value(small, f"result.breakdown.{key}", 0), f"baseline.breakdown.{key}", 0)
    plot(write(tmp_path, small), tmp_path, "svg")
    assert "linear (compute alone)" not in texts(tmp_path / "throughput.svg")


def test_only_a_regular_file_is_read_as_results(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "results.json")
    for results in (tmp_path, tmp_path / "results.json", Path("/dev/null")):
        with pytest.raises(SimnetError, match="not a regular file"):
            plot(results, tmp_path)


def test_a_name_that_no_file_can_have_is_told() -> None:
    with pytest.raises(SimnetError, match=r"cannot be read: File name too long"):
        plot(Path("x" * 5000), Path())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_results_behind_a_closed_folder_are_told(small: Document, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir()
    write(closed, small)
    closed.chmod(0)
    try:
        with pytest.raises(SimnetError, match=r"cannot be read: Permission denied"):
            plot(closed / "results.json", tmp_path)
    finally:
        closed.chmod(0o700)


@pytest.mark.parametrize(
    "title", ["a $x_{$ $$", "a\x00b\x1b]0;pwn\x07", "\u4e2d\ufffe", "w" * 100_000, " ", "a_b^c\\d"]
)
def test_any_title_can_be_drawn_without_a_warning(
    title: str, small: Document, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    small = with_value(with_value(small, "scenario.workload.title", title), "scenario.calibration.name", title)
    network = {**small, "question": title}
    bars = over(network, "strategy", [{"kind": "binsgdm", "intra_node_dtype": f"{title}{n}"} for n in range(2)])
    lines = over(network, "workload.batch_per_rank", [1, 2], {"note": [title, title + "1"]})
    for index, document in enumerate((network, bars, lines)):
        plot(write(tmp_path, document), tmp_path / str(index))
    assert [str(warning.message) for warning in recwarn] == []


def test_a_dollar_sign_is_drawn_as_it_is(small: Document, tmp_path: Path) -> None:
    plot(write(tmp_path, {**small, "question": "What do $5 or $6 buy?"}), tmp_path, "svg")
    assert "What do $5 or $6 buy?" in texts(tmp_path / "breakdown.svg")


def test_a_home_that_cannot_be_written_is_no_concern_of_the_user(small: Document, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("no folder", encoding="utf-8")
    hidden = ("MPLCONFIGDIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
    environment = {key: value for key, value in os.environ.items() if key not in hidden} | {"HOME": str(home)}
    command = [sys.executable, "-m", "simnet", "plot", str(write(tmp_path, small)), "-o", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_strategies_that_differ_are_called_strategy(small: Document, tmp_path: Path) -> None:
    renamed = [
        {**point, "result": {**point["result"], "strategy": kind}, "set": {**point["set"], "strategy": kind}}
        for kind in ("binsgdm", "one_bit_adam")
        for point in small["points"]
    ]
    plot(write(tmp_path, {**small, "points": renamed}), tmp_path, "svg")
    assert "Speedup of strategy over all_reduce" in texts(tmp_path / "speedup_over_nodes.svg")
    assert "left: strategy" in texts(tmp_path / "breakdown.svg")


def test_baselines_that_differ_are_called_baseline(small: Document, tmp_path: Path) -> None:
    for index, point in enumerate(small["points"]):
        point["baseline"]["strategy"] = ("all_reduce", "one_bit_adam")[index % 2]
    plot(write(tmp_path, small), tmp_path, "svg")
    assert "Speedup of binsgdm over baseline" in texts(tmp_path / "speedup_over_nodes.svg")


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
        (damaged, "not JSON: Expecting"),
        (lambda _: "\udcff", "not JSON: no text in UTF-8"),
        (lambda _: "[1, 2]", "no 'format' key"),
        (lambda document: json.dumps({**document, "format": 7}), "format 7: this version reads formats 1 to 3"),
        (lambda document: json.dumps({**document, "points": []}), "no point was simulated"),
        (lambda document: json.dumps({**document, "points": "x"}), "is damaged"),
        (without_cluster, r"points.0.scenario.cluster: missing; add cluster = a name, or a table: the file is damaged"),
        (lambda document: json.dumps({**document, "points": document["points"][:1]}), "1 point: figures need at least"),
        (many_panels, "13 panels: at most 12"),
        (lambda document: json.dumps(over(document, "run.note", [f"{n}th" for n in range(41)])), "41 rows of bars: at"),
        (
            lambda document: json.dumps(over(document, "b.c", list("abcdefghijklm"), {"d": [1, 2]})),
            "13 panels: at most",
        ),
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
    with pytest.raises(SimnetError, match=r"cannot be read: No such file or directory: name the results.json"):
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
