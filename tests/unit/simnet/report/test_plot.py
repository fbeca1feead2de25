"""The figures of a sweep: which are drawn from what, and what stands in them; nothing is rendered but where text is."""

import json
import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from simnet.analysis import sweeps
from simnet.core import files
from simnet.core.errors import SimnetError
from simnet.engine.result import SweepResult
from simnet.engine.scenario import load_experiment
from simnet.report import figure, plot
from simnet.report.chart import SAME_TIME
from simnet.report.sweep_page import sweep_page
from tests.helpers.cli import BANDWIDTH, run
from tests.helpers.golden import assert_golden
from tests.helpers.report_samples import sweep_document, sweep_of, with_value

Document = dict[str, Any]
STRATEGIES = [
    {"kind": "all_reduce", "algorithm": "hierarchical", "wire_dtype": "bf16"},
    {"kind": "binsgdm", "topology": "flat"},
    {"kind": "binsgdm"},
]
BATCH, SLOWDOWN = "workload.batch_per_rank", "cluster.faults.0.compute_slowdown"


def network(*, baseline: bool = True) -> Document:
    return sweep_document(("bert_base",), (10, 100), (1, 8), baseline=baseline)


def over(key: str, values: list[Any], more: dict[str, list[Any]] | None = None) -> Document:
    """Return a sweep over other keys than nodes and bandwidth: copies of one point, ever slower."""
    document, keys = network(), {key: values, **(more or {})}
    first = document["points"][0]
    points = [
        {
            **first,
            "set": dict(zip(keys, place, strict=True)),
            "result": {**first["result"], "iterations_s": [n]},
            "speedup": 1 / n,
        }
        for n, place in enumerate(product(*keys.values()), start=1)
    ]
    return {**document, "points": points}


def varying(values: list[Any], strategy: list[float], baseline: list[float], key: str = SLOWDOWN) -> Document:
    """Return a sweep of the same iterations, times the place of the point counted from 1, at each value of one key."""
    document = over(key, values)
    for place, point in enumerate(document["points"], start=1):
        point["result"] = {**point["result"], "iterations_s": [time_s * place for time_s in strategy]}
        point["baseline"] = {**point["baseline"], "iterations_s": [time_s * place for time_s in baseline]}
    return {**document, "axes": [{"key": key, "values": values}]}


def draw(document: Document) -> dict[str, Figure]:
    return drawn_from(sweep_of(document))


def drawn_from(results: SweepResult) -> dict[str, Figure]:
    with figure.styled():
        return plot.draw(results, where="results.json")


def texts(drawn: Figure) -> set[str]:
    """Return all text of a figure but that of ticks, which matplotlib chooses."""
    everything = {" ".join(text.get_text().split()) for text in drawn.findobj(Text)}
    return {text for text in everything if re.search(r"[A-Za-z]{2}", text) and not text.startswith("$")}


def each(change: Callable[[int, Document], object]) -> Callable[[], Document]:
    """Return what makes the sweep of the network with every point changed, by its place and itself."""

    def make() -> Document:
        document = network()
        for place, point in enumerate(document["points"]):
            change(place, point)
        return document

    return make


def shorten(_: int, point: Document) -> None:
    point["result"] |= {key: point["baseline"][key] for key in ("breakdown", "iterations_s")}


def set_apart(_: int, point: Document) -> None:
    point["result"]["strategy"] = "all_reduce"
    for side, algorithm in (("strategy", "tree"), ("baseline", "ring")):
        point["scenario"][side] = {"kind": "all_reduce", "algorithm": algorithm}


def stop_computing(_: int, point: Document) -> None:
    for side in ("result", "baseline"):
        point[side] |= {
            "breakdown": point[side]["breakdown"] | dict.fromkeys(("forward_s", "backward_s", "optimizer_s"), 0)
        }


def two_strategies() -> Document:
    document = network()
    renamed = [
        {**point, "result": {**point["result"], "strategy": kind}, "set": {**point["set"], "strategy": kind}}
        for kind in ("binsgdm", "one_bit_adam")
        for point in document["points"]
    ]
    return {**document, "points": renamed}


SWEEPS: dict[str, Callable[[], Document]] = {
    "nodes and bandwidth": network,
    "nodes": lambda: sweep_document(("bert_base",), (10,), (1, 8)),
    "bandwidth": lambda: sweep_document(("bert_base",), (10, 100), (8,)),
    "without a baseline": lambda: network(baseline=False),
    "numbers": lambda: over(BATCH, [16, 4], {"strategy.overlap": [True, False]}),
    "tables": lambda: over("strategy", STRATEGIES),
    "a step as short as its baseline": each(shorten),
    "two settings of one strategy": each(set_apart),
    "without compute": each(stop_computing),
    "two strategies": two_strategies,
    "two baselines": each(
        lambda place, point: point["baseline"].update(strategy=("all_reduce", "one_bit_adam")[place % 2])
    ),
    "two algorithms of the baseline": each(
        lambda place, point: point["scenario"]["baseline"].update(algorithm=("ring", "tree")[place % 2])
    ),
    "iterations that vary": lambda: varying([1.0, 1.5, 2.0], OWN, BASELINE),
    "iterations that are alike": lambda: varying([1, 2], [0.1], [0.4], "run.grad_accumulation"),
}
OWN, BASELINE = [0.1] * 10 + [0.2] * 11, [0.4] * 20 + [0.5]


@pytest.mark.slow
def test_each_sweep_has_the_committed_figures_with_their_text() -> None:
    usual = {key: texts(drawn) for key, drawn in draw(network()).items()}
    lines = []
    for name, make in SWEEPS.items():
        lines.append(f"{name}: as the first, but with (+) and without (-)")
        for key, drawn in draw(make()).items():
            shown, first = texts(drawn), usual.get(key, set()) if name != "nodes and bandwidth" else set()
            lines += [f"  {key}", *(f"    + {text}" for text in sorted(shown - first))]
            lines += [f"    - {text}" for text in sorted(first - shown)]
    assert_golden("figures.txt", "\n".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in files.names("experiments") if load_experiment(name).axes])
def test_every_shipped_experiment_that_sweeps_can_be_plotted(name: str) -> None:
    # One iteration draws what hundreds do.
    experiment = load_experiment(name)
    if "iterations" in cast(Document, experiment.resolved.get("run", {})):
        experiment = load_experiment(name, {"run.iterations": 1})
    points = sweeps.expand(experiment)
    drawn = drawn_from(sweeps.collect_results(experiment, points, sweeps.run(points)))
    assert "breakdown" in drawn
    assert {"speedup", "speedup_over_nodes", "speedup_over_bandwidth"} & set(drawn)
    with figure.styled():
        assert figure.image(drawn["breakdown"])


@pytest.mark.slow
def test_times_far_apart_and_points_that_are_missing_can_be_drawn() -> None:
    document = network()
    for point, low, high in ((document["points"][0], 1e-30, 1e30), (document["points"][-1], 1e30, 1e-30)):
        point["speedup"] = high
        point["result"] |= {"iterations_s": [low], "samples_per_s": high}
    for drawn in draw(document).values():
        with figure.styled():
            assert figure.image(drawn)
    document = network()
    del document["points"][0]
    assert [text.get_text() for text in draw(document)["heat_map"].axes[0].texts] == ["-", "4.16", "0.95", "1.30"]


TITLES = ["a $x_{$ $$", "a\x00b\x1b]0;pwn\x07", "\u4e2d\ufffe", "w" * 100_000, " ", "a_b^c\\d"]


def image_of(document: Document, name: str) -> bytes:
    drawn = draw(document)[name]
    with figure.styled():
        return figure.image(drawn)


@pytest.mark.slow
@pytest.mark.parametrize("title", TITLES)
def test_any_title_and_label_can_be_drawn_without_a_warning(title: str, recwarn: pytest.WarningsRecorder) -> None:
    document = with_value(with_value(network(), "scenario.workload.title", title), "scenario.calibration.name", title)
    assert image_of({**document, "question": title}, "heat_map")
    if title == TITLES[0]:
        labels = [f"{title}0" for title in TITLES]
        for name in ("speedup", "breakdown"):
            assert image_of(
                over("strategy", [{"kind": "binsgdm", "intra_node_dtype": label} for label in labels]), name
            )
            assert image_of(over(BATCH, [1, 2], {"note": labels}), name)
    assert [str(warning.message) for warning in recwarn] == []


def many_panels() -> Document:
    document = network()
    points = [{**point, "set": {**point["set"], BATCH: batch}} for batch in range(13) for point in document["points"]]
    return {**document, "points": points}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (many_panels, "13 panels: at most 12"),
        (lambda: over("run.note", [f"{n}th" for n in range(41)]), "41 rows of bars: at"),
        (lambda: over("b.c", list("abcdefghijklm"), {"d": [1, 2]}), "13 panels: at most"),
    ],
)
def test_more_than_fits_one_figure_is_refused(make: Callable[[], Document], message: str) -> None:
    with pytest.raises(SimnetError, match=rf"^results.json: {message}"):
        draw(make())


def test_listed_points_of_which_no_two_share_a_line_are_bars() -> None:
    pairs = [(batch, 64 // batch) for batch in (1, 2, 4, 8, 16, 32, 64)] + [(100 + n, 200 + n) for n in range(7)]
    document = over(BATCH, [batch for batch, _ in pairs])
    for point, (_, steps) in zip(document["points"], pairs, strict=True):
        point["set"]["run.steps"] = steps
    drawn = draw(document)
    assert list(drawn) == ["speedup", "breakdown"]
    assert "batch per rank 16, steps 4" in texts(drawn["speedup"])
    assert len(drawn["speedup"].axes[0].patches) == len(pairs)


class TestTails:
    """Iterations that vary: medians, 95th percentiles, and which key they are drawn over."""

    def drawn(self, document: Document, name: str) -> list[Any]:
        with figure.styled():
            return plot.draw(sweep_of(document), where="x", names=[name])[name].axes

    def test_medians_are_lines_and_the_band_ends_at_the_95th_percentile(self) -> None:
        (axes,) = self.drawn(varying([1.0, 1.5, 2.0], OWN, BASELINE), "iteration_time")
        medians = [pytest.approx([median_s * place for place in (1, 2, 3)]) for median_s in (0.2, 0.4)]
        assert [list(line.get_ydata()) for line in axes.get_lines()] == medians
        tops = [max(y for _, y in band.get_paths()[0].vertices) for band in axes.collections]
        assert tops == pytest.approx([0.6, 1.2])

    def test_speedups_of_medians_and_of_95th_percentiles_are_two_lines(self) -> None:
        for baseline, speedups in (([0.4] * 10 + [0.6] * 11, (3, 3)), (BASELINE, (2, 2))):
            (axes,) = self.drawn(varying([1.0, 2.0], OWN, baseline), "speedup_of_tails")
            lines = [list(line.get_ydata()) for line in axes.get_lines() if line.get_label() != SAME_TIME]
            assert lines[:2] == [pytest.approx([speedup] * 2) for speedup in speedups]

    def test_tables_have_both(self) -> None:
        head, *rows = str(sweep_page(sweep_of(varying([1.0, 1.5], OWN, BASELINE)))).splitlines()[2:5]
        assert head.split() == [
            *(SLOWDOWN, "step", "p50", "p95", "baseline", "baseline", "p95", "throughput", "speedup"),
        ]  # fmt: skip
        assert "200 ms  200 ms" in rows[0]
        whole = sweep_document(("bert_base",), (10, 100), (2, 8))
        for point in whole["points"]:
            point["result"]["iterations_s"], point["baseline"]["iterations_s"] = OWN, BASELINE
        text = str(sweep_page(sweep_of(whole)))
        assert "speedup of medians / of 95th percentiles of the steps:" in text
        assert text.count("2.00x / 2.00x") == 4

    @pytest.mark.slow
    def test_a_swept_fault_is_drawn_over_its_number_with_a_panel_for_each_bandwidth(self, tmp_path: Path) -> None:
        faults = '[{kind="slow_rank", node=0, compute_slowdown=1.0}, {kind="compute_jitter", cv=0.1}]'
        settings = [f"cluster.faults={faults}", f"{SLOWDOWN}=1.0,2.0", f"{BANDWIDTH}=10 Gbit/s,100 Gbit/s"]
        settings += ["cluster.num_nodes=2", "cluster.ranks_per_node=2", "run.iterations=20"]
        flags = [text for setting in settings for text in ("--set", setting)]
        flags += ["--draws", "0", "--jobs", "1", "-o", str(tmp_path)]
        assert run("sweep", "bert_base_10gbit", *flags).exit_code == 0
        csv = (tmp_path / "results.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
        assert {"p50_s", "p95_s", "baseline_p50_s", "baseline_p95_s"} <= set(csv)
        axes = self.drawn(json.loads((tmp_path / "results.json").read_text()), "iteration_time")
        assert [panel.get_title() for panel in axes] == ["NIC bandwidth 10 Gbit/s", "NIC bandwidth 100 Gbit/s"]
        assert axes[0].get_xlabel() == "compute slowdown"
