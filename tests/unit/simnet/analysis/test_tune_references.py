"""Flat and tuned DDP: the two references of every speedup, the same in every command."""

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from simnet.analysis.advise import advise
from simnet.analysis.tune import PLAIN, TIE, dense_systems, references
from simnet.cli.main import cli
from simnet.core.units import Bandwidth
from simnet.engine.scenario import load
from simnet.engine.simulation import simulate
from tests.helpers.advise_samples import row, scenario
from tests.helpers.fault_samples import fault


def run(*args: str) -> str:
    invoked = CliRunner().invoke(cli, list(args), prog_name="simnet")
    assert invoked.exit_code == 0, invoked.output
    return invoked.stdout


def test_the_tuned_reference_is_the_fastest_of_all_settings_of_ddp() -> None:
    here = scenario(gbit_per_s=10)
    (known,) = references([here])
    assert known is not None
    every = [strategy for variants in dense_systems("fp32").values() for strategy in variants]
    times = [simulate(replace(here, strategy=strategy)).result.iteration_s for strategy in every]
    assert known.tuned_s == pytest.approx(min(times))
    assert known.flat_s == pytest.approx(simulate(replace(here, strategy=PLAIN)).result.iteration_s)
    assert (known.flat, known.tuned) == ("flat fp32 DDP", "tuned DDP (bf16, hierarchical)")


def test_faults_slow_references_as_they_slow_the_strategy() -> None:
    here = scenario(gbit_per_s=10)
    slow = replace(here, cluster=replace(here.cluster, faults=(fault("slow_link", place=1, rate=0.5),)))
    usual, slowed = references([here, slow])
    assert usual is not None
    assert slowed is not None
    assert slowed.flat_s == pytest.approx(simulate(replace(slow, strategy=PLAIN)).result.iteration_s)
    assert slowed.flat_s > 1.5 * usual.flat_s


@pytest.mark.slow
def test_at_another_bandwidth_an_advice_cuts_the_batch_of_both_sides_anew() -> None:
    # A slow wire is worth fewer micro-batches with recomputed activations, a fast one is not.
    settings = {"run.grad_accumulation": 4, "run.draws": 0}
    ranked = row(advise(load("what_to_use", settings), names=["BinSGDM"]), "BinSGDM")
    fast = Bandwidth.parse("800 Gbit/s")
    there = load("what_to_use", settings | {"cluster.inter_node.bandwidth": fast.text()})
    assert dict(ranked.curve)[fast] == pytest.approx(
        row(advise(there, names=["BinSGDM"]), "BinSGDM").speedup.value, rel=TIE - 1
    )
