"""What one reads after `simnet simulate`, as whole pages: `tests/golden/pages`."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from simnet.engine.result import RunResult
from simnet.report.result_page import result_page
from simnet.report.text import WIDTH
from simnet.strategies import DenseAllReduce
from simnet.workload.gpu_memory import GpuMemory
from tests.helpers.golden import assert_golden
from tests.helpers.report_samples import run_result


def changed(run: RunResult, **parts: dict[str, Any]) -> RunResult:
    """Return a run with keys of parts of its scenario changed."""
    scenario = run.scenario
    made = {name: replace(getattr(scenario, name), **keys) for name, keys in parts.items()}
    return replace(run, scenario=replace(scenario, **made))


def alone() -> RunResult:
    """Return a run of one GPU without a baseline, whose parts have no names."""
    unnamed = {"name": "inline", "title": ""}
    run = changed(run_result(baseline=False), cluster=unnamed, workload=unnamed, calibration=unnamed)
    return replace(changed(run, cluster={"num_nodes": 1, "ranks_per_node": 1, "gpu": ""}), world_size=1)


def counted() -> RunResult:
    """Return a run of counted steps of tokens, of which the first are dense, with what is known of its memory."""
    held = {"moment": "backward", "parameters": 30e9, "gradients": 2e9, "optimizer": 8e9}
    run = changed(run_result(), workload={"tokens_per_sample": 2048})
    assert run.baseline is not None
    own = replace(run.result, total_s=7200.0, dense_iteration_s=0.5, memory=GpuMemory(**held, gpu_bytes=80e9))
    other = replace(run.baseline, memory=GpuMemory(**held, unknown=("activations",)))
    counted = replace(run.scenario, run=replace(run.scenario.run, steps=1000))
    return replace(run, scenario=counted, result=own, baseline=other, end_to_end_speedup=2.5)


def of_one_strategy() -> RunResult:
    """Return a run of two settings of one strategy, whose gradients are not those of its workload."""
    run = run_result()
    given = replace(run.scenario, strategy=DenseAllReduce(algorithm="hierarchical"))
    return replace(run, scenario=given, result=replace(run.result, strategy="all_reduce"), gradient_bytes=1.5e9)


def verbose() -> RunResult:
    """Return a run of which every text is longer than a line."""
    long_name = "_".join(["long"] * 12)
    run = changed(
        run_result(), cluster={"name": long_name, "gpu": "Very Long Accelerator 80 GB"}, calibration={"name": long_name}
    )
    asked = replace(run.scenario, question=" ".join(["Why"] * 60) + "?")
    return replace(run, scenario=asked, notes=(" ".join(["because"] * 40),))


@pytest.mark.parametrize("make", [run_result, alone, counted, of_one_strategy, verbose])
def test_a_page_is_the_committed_one(make: Any) -> None:
    text = str(result_page(make()))
    assert_golden(f"{make.__name__}.txt", text)
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize("column", [0, 1])
def test_the_shares_of_the_breakdown_add_up_to_the_whole(column: int) -> None:
    lines = str(result_page(run_result())).splitlines()
    parts = [re.findall(r"([\d.]+) %", line) for line in lines if re.match("  [a-z]", line)]
    shares = [float(found[column]) for found in parts[:6]]
    assert sum(shares) == pytest.approx(100.0, abs=0.3)  # six roundings of 0.05


def test_no_text_can_steer_the_terminal() -> None:
    bad = "\x1b]0;pwn\x07x\x00\u202e"
    run = changed(run_result(), workload={"name": bad})
    text = str(result_page(replace(run, scenario=replace(run.scenario, question=bad), notes=(bad,))))
    assert text.count("?]0;pwn?x") == 3
    assert all(line.isprintable() for line in text.splitlines())
