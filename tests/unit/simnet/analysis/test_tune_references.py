"""Flat and tuned DDP: the two references of every speedup, the same in every command."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import simnet
from simnet.analysis.advise import advise
from simnet.analysis.tune import PLAIN, TIE, dense_systems, references
from simnet.cli.main import cli
from simnet.core.units import Bandwidth
from simnet.engine.scenario import load
from simnet.engine.simulation import simulate
from tests.helpers.advise_samples import row, scenario
from tests.helpers.fault_samples import fault

BERT = "bert_base_10gbit"
FLAT_S, TUNED_S = 0.7904, 0.3722


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


def _sweep(folder: Path) -> dict[str, Any]:
    run("sweep", BERT, "--set", "cluster.num_nodes=8,16", "--draws", "0", "-o", str(folder))
    with (folder / "results.csv").open() as file:
        return next(csv.DictReader(file))


@pytest.mark.slow
def test_all_commands_have_the_same_references_and_equal_settings_the_same_speedup(tmp_path: Path) -> None:
    simulated = json.loads(run("simulate", BERT, "--draws", "0", "--format", "json"))
    references, speedup = simulated["references"], simulated["speedup"]
    assert (references["flat_s"], references["tuned_s"]) == pytest.approx((FLAT_S, TUNED_S), rel=1e-3)
    assert speedup == pytest.approx(references["tuned_s"] / simnet.simulate(BERT, draws=0).result.step_s)
    swept = _sweep(tmp_path / "sweep")
    assert float(swept["flat_iteration_s"]) == pytest.approx(references["flat_s"])
    assert float(swept["speedup"]) == pytest.approx(speedup)
    advice = json.loads(run("advise", BERT, "--draws", "0", "--systems", "BinSGDM", "--format", "json"))
    assert list(advice["references"].values()) == pytest.approx([references["tuned_s"], references["flat_s"]])
    search = ("--break-even", "cluster.inter_node.bandwidth", "--from", "10 Gbit/s", "--to", "100 Gbit/s")
    trials = json.loads(run("sweep", BERT, *search, "--draws", "0", "--format", "json"))
    first = trials["trials"][0]
    assert (first["flat_iteration_s"], first["baseline_iteration_s"]) == pytest.approx((FLAT_S, TUNED_S), rel=1e-3)
    assert first["speedup"] == pytest.approx(speedup)
    _says_both(run("simulate", BERT, "--draws", "0"))
    raced = ("--time-to-target", "characters", "--same-task", "--at", "10 Gbit/s", "--draws", "0", "--format", "json")
    (there,) = json.loads(run("advise", BERT, *raced))["bandwidths"]
    assert (there["flat_iteration_s"], there["tuned_iteration_s"]) == pytest.approx((FLAT_S, TUNED_S), rel=1e-3)


def _says_both(text: str) -> None:
    said = " ".join(text.split())
    assert "speedup 4.89x, binsgdm over tuned DDP (bf16, hierarchical)" in said
    assert "10.4x over flat fp32 DDP (790.4 ms a step)" in said


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
