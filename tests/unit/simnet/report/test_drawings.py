"""The figures of a sweep: which are drawn from what, and what stands in them; nothing is rendered but where text is."""

import math
from collections.abc import Callable
from itertools import product
from typing import Any, cast

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from simnet.analysis import sweeps
from simnet.core import files
from simnet.core.errors import SimnetError
from simnet.engine.result import SweepResult
from simnet.engine.scenario import load_experiment
from simnet.report import drawings, figure
from tests.helpers.report_samples import sweep_document, sweep_of, with_value

NETWORK = ["speedup_over_nodes", "speedup_over_bandwidth", "throughput", "breakdown", "heat_map"]
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


def draw(document: Document) -> dict[str, Figure]:
    return drawn_from(sweep_of(document))


def drawn_from(results: SweepResult) -> dict[str, Figure]:
    with figure.styled():
        return drawings.draw(results, where="results.json")


def texts(drawn: Figure) -> str:
    """Return all text of a figure in one line."""
    return " ".join(text.get_text() for text in drawn.findobj(Text))


@pytest.fixture
def small() -> Document:
    return sweep_document(("bert_base",), (10, 100), (1, 8))


@pytest.fixture(scope="module")
def network() -> dict[str, Figure]:
    """Return the figures of a sweep over nodes and bandwidth, not to be changed."""
    return draw(sweep_document(("bert_base",), (10, 100), (1, 8)))


@pytest.mark.parametrize(
    ("rates", "nodes", "drawn"),
    [
        ((10, 100), (1, 8), NETWORK),
        ((10,), (1, 8), ["speedup_over_nodes", "throughput", "breakdown"]),
        ((10, 100), (8,), ["speedup_over_bandwidth", "breakdown"]),
    ],
)
def test_figures_are_drawn_that_have_their_axes(
    rates: tuple[float, ...], nodes: tuple[int, ...], drawn: list[str]
) -> None:
    assert list(draw(sweep_document(("bert_base",), rates, nodes))) == drawn


def test_without_a_baseline_no_speedup_is_drawn() -> None:
    document = sweep_document(("bert_base",), (10, 100), (1, 8), baseline=False)
    assert list(draw(document)) == ["throughput", "breakdown"]


@pytest.mark.parametrize("name", NETWORK)
def test_every_figure_has_the_question_the_workload_and_the_kind_of_its_calibration(
    name: str, network: dict[str, Figure]
) -> None:
    shown = texts(network[name])
    for text in ("How much faster does BinSGDM train", "made_up_2020 (estimate)", "BERT-Base"):
        assert text in shown


SWEPT = [name for name in files.names("experiments") if load_experiment(name).axes]


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEPT)
def test_every_shipped_experiment_that_sweeps_can_be_plotted(name: str) -> None:
    # A few iterations draw what hundreds do.
    experiment = load_experiment(name)
    if "iterations" in cast(Document, experiment.resolved.get("run", {})):
        experiment = load_experiment(name, {"run.iterations": 3})
    points = sweeps.expand(experiment)
    drawn = drawn_from(sweeps.collect_results(experiment, points, sweeps.run(points)))
    assert "breakdown" in drawn
    assert {"speedup", "speedup_over_nodes", "speedup_over_bandwidth"} & set(drawn)
    with figure.styled():
        assert figure.image(drawn["breakdown"])


def test_a_sweep_over_numbers_gives_a_line_for_each_other_value(small: Document) -> None:
    drawn = draw(over(small, "workload.batch_per_rank", [16, 4], {"strategy.overlap": [True, False]}))
    assert list(drawn) == ["speedup", "breakdown"]
    shown = texts(drawn["speedup"])
    for text in ("batch per rank", "overlap true", "overlap false", "1.0: same", "BERT-Base, 1 node at 10 Gbit/s"):
        assert text in shown
    assert "overlap false" in texts(drawn["breakdown"])


def test_a_sweep_over_tables_gives_a_bar_for_each_with_its_settings(small: Document) -> None:
    drawn = draw(over(small, "strategy", STRATEGIES))
    assert list(drawn) == ["speedup", "breakdown"]
    for shown in map(texts, drawn.values()):
        assert "binsgdm, topology flat" in shown
        assert "hierarchical" in shown
    assert "upper: BinSGDM" in texts(drawn["breakdown"])


def test_a_strategy_too_short_beside_its_baseline_is_drawn_alone_too(
    small: Document, network: dict[str, Figure]
) -> None:
    assert "8 nodes, without the baseline" in texts(network["breakdown"])
    alike = [
        {
            **point,
            "result": {**point["result"], **{key: point["baseline"][key] for key in ("breakdown", "iterations_s")}},
        }
        for point in small["points"]
    ]
    drawn = draw({**small, "points": alike})
    assert "without the baseline" not in texts(drawn["breakdown"])


def test_two_settings_of_one_strategy_are_told_apart(small: Document) -> None:
    for point in small["points"]:
        point["result"]["strategy"] = "all_reduce"
        point["scenario"]["strategy"] = {"kind": "all_reduce", "algorithm": "tree"}
        point["scenario"]["baseline"] = {"kind": "all_reduce", "algorithm": "ring"}
    drawn = draw(small)
    told = texts(drawn["throughput"])
    assert "DDP (fp32, tree)" in told
    assert "DDP (fp32, ring)" in told


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("speedup_over_nodes", ["nodes (of 8 GPUs)", "speedup over DDP (fp32, ring)", "10 Gbit/s", "1.0: same time"]),
        ("speedup_over_bandwidth", ["NIC bandwidth [Gbit/s]", "speedup over DDP (fp32, ring)", "8 nodes"]),
        ("throughput", ["nodes (of 8 GPUs)", "throughput [samples/s]", "linear (compute alone)", "DDP (fp32, ring)"]),
        ("breakdown", ["iteration time [ms]", "exposed communication", "right: DDP (fp32, ring)"]),
        ("heat_map", ["nodes (of 8 GPUs)", "NIC bandwidth [Gbit/s]", "4.16"]),
    ],
)
def test_the_axes_have_units_and_the_lines_have_names(name: str, labels: list[str], network: dict[str, Figure]) -> None:
    shown = texts(network[name])
    assert [label for label in labels if label not in shown] == []


def test_points_that_are_missing_leave_a_gap(small: Document) -> None:
    del small["points"][0]
    drawn = draw(small)
    assert "- 4.16 0.95" in texts(drawn["heat_map"])


def test_a_sweep_without_compute_has_no_linear_ideal(small: Document) -> None:
    for key in ("forward_s", "backward_s", "optimizer_s"):
        small = with_value(with_value(small, f"result.breakdown.{key}", 0), f"baseline.breakdown.{key}", 0)
    drawn = draw(small)
    assert "linear (compute alone)" not in texts(drawn["throughput"])


def test_strategies_that_differ_are_called_strategy(small: Document) -> None:
    renamed = [
        {**point, "result": {**point["result"], "strategy": kind}, "set": {**point["set"], "strategy": kind}}
        for kind in ("binsgdm", "one_bit_adam")
        for point in small["points"]
    ]
    drawn = draw({**small, "points": renamed})
    assert "Speedup of strategy over DDP (fp32, ring)" in texts(drawn["speedup_over_nodes"])
    assert "left: strategy" in texts(drawn["breakdown"])


def test_baselines_that_differ_are_called_baseline(small: Document) -> None:
    for index, point in enumerate(small["points"]):
        point["baseline"]["strategy"] = ("all_reduce", "one_bit_adam")[index % 2]
    drawn = draw(small)
    assert "Speedup of BinSGDM over baseline" in texts(drawn["speedup_over_nodes"])


def test_times_far_apart_can_be_drawn(small: Document) -> None:
    for point, low, high in ((small["points"][0], 1e-30, 1e30), (small["points"][-1], 1e30, 1e-30)):
        point["speedup"] = high
        point["result"] |= {"iterations_s": [low], "samples_per_s": high}
    drawn = draw(small)
    assert list(drawn) == NETWORK
    for one in drawn.values():
        with figure.styled():
            assert figure.image(one)


TITLES = ["a $x_{$ $$", "a\x00b\x1b]0;pwn\x07", "\u4e2d\ufffe", "w" * 100_000, " ", "a_b^c\\d"]


def image_of(document: Document, name: str) -> bytes:
    drawn = draw(document)[name]
    with figure.styled():
        return figure.image(drawn)


@pytest.mark.parametrize("title", TITLES)
def test_any_title_can_be_drawn_without_a_warning(
    title: str, small: Document, recwarn: pytest.WarningsRecorder
) -> None:
    small = with_value(with_value(small, "scenario.workload.title", title), "scenario.calibration.name", title)
    assert image_of({**small, "question": title}, "heat_map")
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize("name", ["speedup", "breakdown"])
def test_any_label_can_be_drawn_without_a_warning(name: str, small: Document, recwarn: pytest.WarningsRecorder) -> None:
    strategies = [{"kind": "binsgdm", "intra_node_dtype": f"{title}{n}"} for n in range(2) for title in TITLES]
    assert image_of(over(small, "strategy", strategies), name)
    labels = [f"{title}{n}" for n in range(2) for title in TITLES]
    assert image_of(over(small, "workload.batch_per_rank", [1, 2], {"note": labels}), name)
    assert [str(warning.message) for warning in recwarn] == []


def test_a_dollar_sign_is_drawn_as_it_is(small: Document) -> None:
    drawn = draw({**small, "question": "What do $5 or $6 buy?"})["breakdown"]
    assert "What do $5 or $6 buy?" in texts(drawn)
    assert not any(text.get_parse_math() for text in drawn.findobj(Text) if text.get_text())


def many_panels(document: Document) -> Document:
    points = [
        {**point, "set": {**point["set"], "workload.batch_per_rank": batch}}
        for batch in range(13)
        for point in document["points"]
    ]
    return {**document, "points": points}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (many_panels, "13 panels: at most 12"),
        (lambda document: over(document, "run.note", [f"{n}th" for n in range(41)]), "41 rows of bars: at"),
        (lambda document: over(document, "b.c", list("abcdefghijklm"), {"d": [1, 2]}), "13 panels: at most"),
    ],
)
def test_more_than_fits_one_figure_is_refused(
    change: Callable[[Document], Document], message: str, small: Document
) -> None:
    with pytest.raises(SimnetError, match=rf"^results.json: {message}"):
        draw(change(small))


def test_several_algorithms_of_the_baseline_are_all_named(small: Document) -> None:
    for index, point in enumerate(small["points"]):
        point["scenario"]["baseline"]["algorithm"] = ("ring", "tree")[index % 2]
    assert "speedup over DDP (fp32, ring or tree)" in texts(draw(small)["speedup_over_nodes"])


def test_the_colours_of_the_heat_map_part_at_one(small: Document) -> None:
    drawn = draw(small)["heat_map"]
    axes, bar = drawn.axes
    (image,) = axes.images
    slower, same, faster = (image.cmap(image.norm(math.log(value))) for value in (0.5, 1.0, 2.0))
    assert slower[0] > slower[2]
    assert faster[2] > faster[0]
    assert min(same[:3]) > 0.95
    assert bar.get_ylabel() == "speedup"
    assert [math.exp(end) for end in bar.get_ylim()] == pytest.approx((0.949, 4.16), rel=1e-2)


def test_listed_points_of_which_no_two_share_a_line_are_bars(small: Document) -> None:
    pairs = [(batch, 64 // batch) for batch in (1, 2, 4, 8, 16, 32, 64)] + [(100 + n, 200 + n) for n in range(7)]
    document = over(small, "workload.batch_per_rank", [batch for batch, _ in pairs])
    for point, (_, steps) in zip(document["points"], pairs, strict=True):
        point["set"]["run.steps"] = steps
    drawn = draw(document)
    assert list(drawn) == ["speedup", "breakdown"]
    assert "batch per rank 16, steps 4" in texts(drawn["speedup"])
    assert len(drawn["speedup"].axes[0].patches) == len(pairs)
