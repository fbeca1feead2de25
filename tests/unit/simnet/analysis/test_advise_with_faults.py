"""Advice on a cluster as it is: ranked by the median of its iterations, with the 95th percentile beside it."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from simnet.analysis import workers
from simnet.analysis.advice import Advice
from simnet.analysis.advise import advise
from simnet.analysis.advise_with_faults import ITERATIONS, num_runs
from simnet.analysis.tune import chosen
from simnet.cluster.hardware import Calibration, Fault
from simnet.core.units import Bandwidth
from simnet.engine.scenario import RunSettings, Scenario
from simnet.report.advice import FIELDS, advice_page, ranking_page
from simnet.report.rows import json_text, row_of
from tests.helpers.advise_samples import scenario
from tests.helpers.fault_samples import fault

GBIT_PER_S = 40.0
SLOW_CODEC = Calibration(memory_bytes_per_s=Bandwidth(1e11))
"""With these DDP hides most of its messages, and what 1-bit costs in its kernels is not worth it."""
HALVED = fault("slow_link", place=1, rate=0.5)
JITTER = fault("compute_jitter", cv=0.1)
SYSTEMS = ("BinSGDM", "one_bit_adam")


def asked(*faults: Fault, gbit_per_s: float = GBIT_PER_S, **run: Any) -> Scenario:
    plain = scenario(gbit_per_s=gbit_per_s, draws=0, calibration=SLOW_CODEC)
    cluster = replace(plain.cluster, faults=faults)
    return replace(plain, cluster=cluster, run=RunSettings(draws=0, **run))


def advised(*faults: Fault, **more: Any) -> Advice:
    return advise(asked(*faults, **more), names=chosen(SYSTEMS))


@pytest.mark.slow
def test_a_fault_that_changes_nothing_leaves_every_step_as_it_was() -> None:
    """Also where steps are not all alike: those of a dense stage, and the rounds of local steps."""
    names_ = chosen(("one_bit_adam", "Marsit", "local SGD 4", "DiLoCo 30", "streaming DiLoCo 100", "HSDP"))
    here = asked(gbit_per_s=5)
    nothing = fault("slow_link", place=1, rate=1.0)
    usual = advise(here, names=names_)
    faulty = advise(replace(here, cluster=replace(here.cluster, faults=(nothing,))), names=names_)
    assert [system.name for system in faulty.systems] == [system.name for system in usual.systems]
    for system, same in zip(usual.systems, faulty.systems, strict=True):
        assert same.faulty is not None
        assert same.iteration_s == same.faulty.p95_s == pytest.approx(system.iteration_s)
        assert same.speedup.value == pytest.approx(system.speedup.value)


def test_what_is_told_has_both_percentiles_with_faults_and_none_without() -> None:
    usual, halved = advised(), advised(HALVED)
    document = json.loads(json_text(row_of(FIELDS, halved)))
    for system, shown in zip(halved.systems, document["systems"], strict=True):
        assert system.faulty is not None
        assert (shown["p50_s"], shown["p95_s"]) == (system.faulty.p50_s, system.faulty.p95_s)
    assert [system["p95_s"] for system in json.loads(json_text(row_of(FIELDS, usual)))["systems"]] == [None] * len(
        usual.systems
    )
    assert ["p95" in str(ranking_page(advice)) for advice in (halved, usual)] == [True, False]
    assert "With faults: slow link; medians of " in str(advice_page(halved))
    assert "by the 95th percentile" in str(advice_page(halved))
    assert halved.iterations == 1, "nothing varies"


@pytest.mark.slow
def test_forty_iterations_are_enough_where_the_user_asks_for_no_number() -> None:
    assert advised(JITTER).iterations == ITERATIONS


def test_progress_is_told_once_for_each_run_at_most() -> None:
    progress: list[int] = []
    here = asked(HALVED)
    advise(here, names=chosen(SYSTEMS), progress=progress.append)
    assert 0 < sum(progress) <= num_runs(here, len(chosen(SYSTEMS)))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_advice_in_one_process_and_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PROBE_S", 0.0)
    monkeypatch.setattr(workers, "WORKERS_PAY_S", 0.0)
    alone, together, other = (
        advise(asked(JITTER, HALVED, iterations=2, seed=seed), names=chosen(SYSTEMS), jobs=jobs)
        for jobs, seed in ((1, 3), (2, 3), (1, 4))
    )
    assert row_of(FIELDS, alone) == row_of(FIELDS, together)
    assert row_of(FIELDS, alone) != row_of(FIELDS, other)
