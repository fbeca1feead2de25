"""One scenario has one number: advise, simulate, sweep, crossover, report and the API agree on every speedup."""

import random

import pytest
from msgspec.structs import replace

import simnet
from simnet.analysis.advice import Advice, RankedSystem
from simnet.engine.scenario import Scenario, to_dict, with_settings
from simnet.report.contents import of_scenario
from simnet.report.text import speedup_text

RATE = "cluster.inter_node.bandwidth"
SYSTEMS = ("BinSGDM", "1-bit Adam", "FSDP", "int8 all-reduce")
WORKLOADS = ("bert_base", "bert_large", "resnet50", "llama_1b", "vgg16")
CALIBRATIONS = ("a100_tcp_estimate", "h100_infiniband", "v100_tcp_estimate")
SHARED = 1e-9


def drawn(seed: int) -> Scenario:
    """Return a scenario drawn from shipped models, calibrations, sizes and rates, with any strategy."""
    draw = random.Random(seed)
    settings = {
        "workload": draw.choice(WORKLOADS),
        "calibration": draw.choice(CALIBRATIONS),
        "cluster.num_nodes": draw.choice((2, 3, 4, 8, 16)),
        "cluster.ranks_per_node": draw.choice((1, 4, 8)),
        RATE: f"{draw.choice((1, 5, 10, 25, 50, 100, 200))} Gbit/s",
        "workload.batch_per_rank": draw.choice((16, 32)),
        "run.grad_accumulation": draw.choice((1, 4)),
        "run.draws": 20,
    }
    return simnet.load("bert_base_10gbit", settings)


def as_advised(scenario: Scenario, row: RankedSystem) -> Scenario:
    """Return a scenario with the strategy and the batch of a ranked system."""
    return replace(with_settings(scenario, row.batches), strategy=row.strategy)


QUICK_SEEDS = (1, 2)


@pytest.mark.parametrize(
    "seed", [seed if seed in QUICK_SEEDS else pytest.param(seed, marks=pytest.mark.slow) for seed in range(30)]
)
def test_one_scenario_has_one_number(seed: int) -> None:
    scenario = drawn(seed)
    advice: Advice = simnet.advise(scenario, systems=SYSTEMS, progress=False)
    reference = advice.baseline_system
    for row in advice.systems:
        if not row.may_fit:
            continue
        asked = as_advised(scenario, row)
        run = simnet.simulate(asked)
        assert run.references is not None
        assert run.result.step_s == pytest.approx(row.iteration_s, rel=SHARED)
        assert run.references.tuned_s == pytest.approx(reference.iteration_s, rel=SHARED)
        assert run.speedup == pytest.approx(row.speedup.value, rel=SHARED)
        if row.speedup.interval is not None:
            assert run.speedup_interval == pytest.approx(row.speedup.interval, rel=1e-6)
        (point,) = simnet.sweep(asked, {"cluster.num_nodes": [asked.cluster.num_nodes]}, progress=False)
        assert (point.speedup, point.intervals) == (run.speedup, run.intervals)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30, 33))
def test_break_even_and_report_have_that_number_too(seed: int) -> None:
    scenario = drawn(seed)
    rate = scenario.cluster.inter_node.bytes_per_s
    run = simnet.simulate(scenario)
    answer = simnet.crossover(scenario, over=RATE, start=rate.text(), end="800 Gbit/s", progress=False)
    assert answer.trials[0].speedup.value == pytest.approx(run.speedup)
    assert answer.trials[0].speedup.interval == pytest.approx(run.speedup_interval)
    contents = of_scenario(scenario, int, systems=None)
    assert f"{run.speedup:.2f}x" in contents.verdict


def test_a_baseline_of_the_file_stands_beside_and_changes_no_speedup() -> None:
    plain = simnet.simulate("bert_base_10gbit", draws=0)
    named = simnet.simulate("bert_base_10gbit", {"baseline": "fsdp"}, draws=0)
    assert (named.speedup, plain.speedup_over_named) == (plain.speedup, None)
    alone = simnet.simulate("bert_base_10gbit", {"strategy": "fsdp"}, draws=0)
    assert named.speedup_over_named == pytest.approx(alone.result.step_s / named.result.step_s)
    assert f"{speedup_text(named.speedup_over_named)} over the baseline, FSDP" in str(named)


def test_what_does_not_fit_is_compared_with_nothing() -> None:
    run = simnet.simulate("what_fits", {"workload": "llama_13b"}, draws=0)
    assert run.references is not None
    assert run.references.flat_s is None
    assert run.speedup_over_flat is None
    assert f"{run.references.flat} does not fit the GPU, and is compared with nothing" in " ".join(str(run).split())
    assert run.baseline is not None
    assert run.baseline.memory is not None
    assert run.baseline.memory.fits


def test_settings_of_a_strategy_survive_the_way_to_a_file() -> None:
    advice = simnet.advise("bert_base_10gbit", systems="BinSGDM", draws=0, progress=False)
    assert advice.best is not None
    again = simnet.simulate("bert_base_10gbit", {"strategy": to_dict(advice.best.strategy)}, draws=0)
    assert again.speedup == pytest.approx(advice.best.speedup.value)
