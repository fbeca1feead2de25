"""The topology in which a system is found best, and what accumulation, kernels and trainings do to the answer."""

import pytest
from msgspec.structs import replace

from simnet.analysis.advise import advise
from simnet.analysis.convergence import shipped
from simnet.analysis.time_to_target import times_to_target
from simnet.analysis.tune import chosen
from simnet.analysis.verdict import UNCERTAIN
from simnet.engine.scenario import RunSettings
from simnet.report.advice import answer
from tests.helpers.advise_samples import row, scenario


def test_what_accumulation_does_to_the_answer_is_told() -> None:
    given = replace(scenario(), run=RunSettings(grad_accumulation=2))
    advice = advise(given, names=["BinSGDM"])
    assert [one.micro_batches for one in advice.accumulated] == [1, 2, 8]
    assert advice.accumulated[1].speedup == pytest.approx(row(advice, "BinSGDM").speedup.value)
    often = replace(scenario(), run=RunSettings(grad_accumulation=8))
    expected = row(advise(often, names=["BinSGDM"]), "BinSGDM").speedup.value
    assert advice.accumulated[2].speedup == pytest.approx(expected)
    assert answer(advice)["Batches"].startswith("BinSGDM over tuned DDP by micro-batches per step (as here 2): ")
    assert "x with 2, " in answer(advice)["Batches"]


def test_trainings_of_the_workload_count_with_their_doubts_and_others_only_warn() -> None:
    given, trainings = scenario(ranks_per_node=1), shipped()
    ours, others = (
        row(advise(given, names=["SignSGD"], trainings=trainings, are_of_user=are), "SignSGD") for are in (True, False)
    )
    assert [record.speedup for record in ours.records] == [record.speedup for record in others.records]
    assert (ours.verdict, others.verdict) == (UNCERTAIN, "pays")


@pytest.mark.slow
def test_an_advice_and_a_time_to_target_say_the_same_of_a_system() -> None:
    given, trainings = scenario(gbit_per_s=4, draws=20), shipped()
    advice = advise(given, names=chosen(["BinSGDM", "Marsit", "random_k"]), trainings=trainings, are_of_user=True)
    compared = 0
    for task, convergence in trainings.items():
        rate = given.cluster.inter_node.bytes_per_s
        (there,) = times_to_target(given, convergence, bandwidths=[rate]).bandwidths
        for one in advice.others:
            for record in one.records:
                if record.task == task:
                    found = there.find(one.strategy.kind)
                    assert found is not None
                    compared += 1
                    assert (record.speedup is None) is (found.speedup is None)
                    if record.speedup and found.speedup:
                        assert record.speedup.value == pytest.approx(found.speedup.value)
                        assert record.speedup.interval == pytest.approx(found.speedup.interval)
                        assert record.speedup.if_kernels_slow == pytest.approx(found.speedup.if_kernels_slow)
    assert compared >= 8
