"""`simnet advise`: its table, JSON, figure and command."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import simnet
from simnet.analysis.advice import Advice
from simnet.core import files
from simnet.core.units import format_bytes, format_seconds
from simnet.report import comparison_charts
from simnet.report.advice import advice_page
from simnet.strategies.calls import calls, with_bucket_views
from tests.helpers import cli as helpers
from tests.helpers.advise_samples import GBIT, advised, row
from tests.helpers.scenario_samples import pod, write
from tests.helpers.time_to_target_samples import write_trainings

MARK = " (kernels not measured)"


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advised("binsgdm", "top_k", "qsgd", "terngrad", "marsit", "sign_sgd")


class TestFigure:
    def test_it_names_at_most_six_systems_what_to_use_first_and_with_its_interval(self, advice: Advice) -> None:
        curves = comparison_charts.advised(advice).curves
        used, names = advice.used, [curve.name.removesuffix(MARK) for curve in curves]
        choices = {one.system.name for one in advice.choices}
        paying = {one.name for one in advice.with_verdict("pays")}
        by_speed = [one for one in advice.others if one is not used]
        rows = [one for one in by_speed if one.name in choices]
        rows += [one for one in by_speed if one.name in paying - choices]
        rows += [one for one in by_speed if one.name not in paying | choices]
        assert len(rows) >= 6
        assert names == [f"{used.label} (90 % interval)", *(one.label for one in rows[:5])]
        assert f"{row(advice, 'Top-k 1 %').label}{MARK}" in {curve.name for curve in curves}
        ((place, speedup),) = ((at, one) for at, (rate, one) in enumerate(used.curve) if rate == GBIT)
        assert (curves[0].x[place], curves[0].y[place]) == (1.0, speedup)
        assert used.speedup.interval is not None
        assert curves[0].ends[place] == pytest.approx(used.speedup.interval)
        assert not any(curve.ends for curve in curves[1:])


class TestCommand:
    @pytest.mark.parametrize(
        ("scenario_", "given"),
        [
            ("bert_base_10gbit", {}),
            ("slow_rank", {"systems": ["binsgdm", "one_bit_adam", "qsgd", "power_sgd", "hsdp", "zero1"]}),
        ],
    )
    def test_the_answer_is_about_one_screen_and_all_has_no_wider_lines(
        self, scenario_: str, given: dict[str, Any]
    ) -> None:
        found = simnet.advise(scenario_, {"cluster.num_nodes": 4}, draws=20, **given)
        for page, most in ((found.page(), 34), (found.ranking(), 1000)):
            lines = str(page).splitlines()
            assert 10 < len(lines) <= most
            assert max(map(len, lines)) <= 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "called"),
    [
        ({"title": "Llama-like, 1.35 B"}, "Llama-like, 1.35 B"),
        ({}, "110 M parameters"),
        ({"name": "mine", "title": "Mine"}, "mine"),
    ],
)
def test_a_workload_without_a_name_is_called_by_its_title_or_by_its_size(
    workload: dict[str, object], called: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "pod.toml", pod() | {"workload": pod()["workload"] | workload})
    assert helpers.run("advise", file, "--systems", "BinSGDM").stdout.startswith(f"{called} on 2 nodes x 8 GPUs")
    trainings = write_trainings(tmp_path / "trainings.json")
    raced = helpers.run("race", file, trainings, "--same-task", "--at", "10 Gbit/s")
    assert f"steps of {called} on 2 nodes" in raced.stdout
    assert f"--same-task: steps of {called} (" in " ".join(raced.stdout.split())


def test_a_time_to_target_is_written_and_the_axes_of_an_experiment_are_said_not_to_matter(tmp_path: Path) -> None:
    out, figure = tmp_path / "times.json", tmp_path / "times.png"
    curves = write_trainings(tmp_path / "trainings.json", num_parameters=25_557_032)  # as resnet50_10gbit has
    at = ("--at", "10 Gbit/s", "--draws", "0")
    options = ("--format", "json", "-o", out, "--plot", figure)
    assert helpers.run("time-to-target", "resnet50_10gbit", curves, *at, *options).exit_code == 0
    assert len(json.loads(out.read_text())["bandwidths"]) == 1
    assert figure.read_bytes().startswith(b"\x89PNG")
    note = "note: this is one point, without the sweep over cluster.slow_nodes; choose another with --set"
    assert note in helpers.run("time-to-target", "straggler", curves, *at, "--same-task").stderr
    of_one = helpers.run("time-to-target", "bert_base_10gbit", curves, *at, "--same-task")
    assert "note: this is one point" not in of_one.stderr


@pytest.mark.slow
def test_a_large_model_is_answered_in_32_lines_with_all_that_was_asked() -> None:
    settings = {"workload": "llama_3b", "cluster.gpu": "H100-80GB", "cluster.inter_node.bandwidth": "50 Gbit/s"}
    advice = simnet.advise("what_to_use", settings, samples=3e6, price_per_gpu_hour=2.5, draws=20)
    lines = str(advice.page()).splitlines()
    assert len(lines) <= 32
    assert max(map(len, lines)) <= 100
    text = " ".join(" ".join(lines).replace(" # ", " ").split())
    for trace in ("lr=0.7 * lr", *traces(advice)):
        assert trace in text, trace


ASKED: list[dict[str, Any]] = [
    {"samples": samples, "price_per_gpu_hour": price, "micro_batches": count, "kind": kind}
    for samples, price in ((None, None), (1e3, None), (3e6, 2.5), (7.5e12, 0.01), (3e9, 1e4))
    for count, kind in ((1, "estimate"), (4, "measured"), (1, "ideal"), (16, "derived"))
]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(files.names("experiments")) - {"failing_nodes"}))  # which is not ranked
def test_what_was_asked_for_memory_inputs_and_doubts_always_show(name: str) -> None:
    """Settings that change no step are put into one advice, so that only what is written is made again."""
    settings = {"run.iterations": 2} if name in {"as_it_is", "flapping_nic", "jitter"} else {}  # fewer than their own
    found = simnet.advise(name, settings, systems=["BinSGDM", "FSDP bf16", "DiLoCo 30 1-bit"], draws=0)
    for asked in ASKED:
        scenario, kind = found.scenario, asked["kind"]
        run = replace(scenario.run, grad_accumulation=asked["micro_batches"], global_batch=None)
        calibration = replace(scenario.calibration, kind=kind, gpu="another GPU")
        scenario = replace(scenario, run=run, calibration=calibration)
        advice = replace(
            found, scenario=scenario, samples=asked["samples"], price_per_gpu_hour=asked["price_per_gpu_hour"]
        )
        page = str(advice_page(advice))
        assert max(map(len, page.splitlines())) <= 100
        for trace in traces(advice):
            assert trace in " ".join(page.replace(" # ", " ").split()), (asked, trace)


def traces(advice: Advice) -> Iterator[str]:
    """Yield what a page must hold of its options, of memory, of inputs and of doubts."""
    used, scenario = advice.used, advice.scenario
    if advice.samples is not None:
        yield f"{advice.samples:,.3g} samples in {advice.days(used):,.3g} days"
    if advice.price_per_gpu_hour is not None:
        yield f"{advice.cost(used):,.0f} at {advice.price_per_gpu_hour:g} per GPU hour"
    if scenario.grad_accumulation > 1:
        yield f" per GPU x {scenario.grad_accumulation} (simulated)"
    if used.memory is not None:
        yield format_bytes(used.memory.total_bytes)
        yield from [f" of {format_bytes(used.memory.gpu_bytes)}"] if used.memory.gpu_bytes else []
        yield from used.memory.unknown
    mfu = advice.mfu(used)
    yield from [] if mfu is None else [f"MFU {100 * mfu:.1f} %"]
    yield f"({scenario.calibration.kind}"
    if scenario.cluster.gpu:
        yield f"of {scenario.calibration.gpu}, not {scenario.cluster.gpu}"
    yield from (f"{one.speedup:.2f}x with {one.micro_batches}" for one in advice.accumulated)
    if advice.iterations:
        yield f"medians of {advice.iterations} steps"
        yield "Tail: by the 95th percentile "
    lines = calls(used.strategy, scenario.workload)
    lines = with_bucket_views(lines) if used.batches.gradient_as_bucket_view else lines
    yield from (" ".join(line.removeprefix("# ").split()) for line in lines)
    if scenario.calibration.kind != "measured" or scenario.cluster.gpu:
        yield "measured"
    if used.needs_training:
        yield "trained small only"
    if advice.usable is not None:
        yield format_seconds(advice.usable.iteration_s)
    yield from (
        doubt
        for doubt in ("within uncertainty", "kernels not timed", "convergence unknown")
        if doubt in {one.system.verdict for one in advice.choices}
    )


def test_the_speed_of_a_language_model_is_told_in_tokens_too() -> None:
    said = " ".join(helpers.run("advise", "bert_base_10gbit", "--systems", "BinSGDM").stdout.split())
    assert re.search(r"samples/s \([\d.]+ M tokens/s, \d+ B a day\)", said)
