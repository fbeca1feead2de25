"""Which system pays on one cluster: rows, verdicts, bounds, crossovers, and what is said of them."""

import math
import re
import typing

import pytest
from msgspec.structs import replace

from simnet.analysis import tuned_steps, whatif
from simnet.analysis.advice import Advice
from simnet.analysis.advise import advise
from simnet.analysis.convergence import shipped
from simnet.analysis.time_to_target import times_to_target
from simnet.analysis.tune import TIE, Contender, chosen, dense_systems, first_of_ties, systems
from simnet.analysis.verdict import NO_SOONER, NOT_TIMED, PAYS, UNCERTAIN, UNKNOWN
from simnet.cluster.hardware import Calibration, SlowNode
from simnet.cluster.kernel_times import KernelTime
from simnet.core.units import Bandwidth, Duration, Size, format_seconds
from simnet.engine import intervals
from simnet.engine.scenario import RunSettings, load_experiment
from simnet.engine.simulation import simulate
from simnet.report.advice import advice_page, answer, ranking_page
from simnet.report.text import speedup_text
from simnet.strategies import BinSGDM
from simnet.strategies.calls import FLAGS, NO_CALL, NO_FLAG, PASTED, calls, effort
from simnet.workload.workload import ComputeTime, Gradient, Workload
from tests.helpers.advise_samples import FAST_CODEC, GBIT, WORKLOAD, advised, dense_s, least_s, row, scenario
from tests.helpers.refusals import refused

SYSTEMS = systems()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Powersgd rank 4", "unknown system. Did you mean 'PowerSGD rank 4'"),
        ("one_bit_adm", "unknown system. Did you mean 'one_bit_adam'"),
        ("recorded:file=step.json", "a recorded step is a file; give it by --step FILE"),
    ],
)
def test_what_is_no_system_is_refused(name: str, message: str) -> None:
    with refused(message):
        chosen([name])


def test_gradients_of_16_bits_are_not_cast_and_not_ranked_twice() -> None:
    assert set(dense_systems("fp32")) == {"DDP fp32", "DDP bf16"}
    assert set(dense_systems("fp16")) == {"DDP fp16"}
    for dtype, names in (("bf16", {"FSDP"}), ("fp32", {"FSDP", "FSDP bf16"})):
        workload = replace(WORKLOAD, dtype=dtype)
        assert {system.name for system in advised("FSDP", "FSDP bf16", workload=workload).others} == names


class TestRanking:
    @pytest.mark.slow
    def test_a_slow_wire_makes_systems_pay_and_the_fastest_of_them_is_named(self) -> None:
        advice = advised("SignSGD", "BinSGDM", "QSGD 4 bit", "Marsit", "1-bit Adam")
        assert advice.best is not None
        assert advice.best.name not in ("DDP fp32", "DDP bf16")
        assert advice.best.speedup.value == max(system.speedup.value for system in advice.with_verdict("pays"))
        assert [system.iteration_s for system in advice.systems] == sorted(
            system.iteration_s for system in advice.systems
        )
        said = answer(advice)["Answer"]
        assert said.startswith(f"{advice.best.label} pays: {speedup_text(advice.best.speedup.value)} ")
        assert "({:.2f} to {:.2f}) over tuned DDP, ".format(*advice.best.speedup.interval) in said

    @pytest.mark.slow
    def test_dense_steps_are_counted_in_by_their_part(self) -> None:
        adam = row(advised("1-bit Adam"), "1-bit Adam")
        result = simulate(replace(scenario(), strategy=adam.strategy)).result
        assert result.dense_iteration_s is not None
        assert result.iteration_s < adam.iteration_s < result.dense_iteration_s
        part = 23_000 / 152_000
        expected_s = part * result.dense_iteration_s + (1 - part) * result.iteration_s
        assert adam.iteration_s == pytest.approx(expected_s)

    @pytest.mark.slow
    def test_what_cannot_be_predicted_is_listed_with_the_reason(self) -> None:
        workload = Workload(gradient_bytes=Size(4e7), forward_s=Duration(0.01), backward_s=Duration(0.02))
        advice = advised(workload=workload)
        left_out = dict(advice.left_out)
        assert set(left_out) == {
            "1-bit SGD", "EF-SignSGD", "TernGrad", "PowerSGD rank 4", "GradZip rank 4", "ATOMO budget 3",
            "FSDP", "FSDP bf16", "HSDP", "HSDP bf16", "HSDP + BinSGDM", "HSDP + int8",
        }  # fmt: skip
        assert all("needs the shapes of the tensors" in reason for reason in left_out.values())
        assert {system.name for system in advice.systems} == {*SYSTEMS, "DDP fp32", "DDP bf16"} - set(left_out)
        assert "1-bit SGD, EF-SignSGD, TernGrad, Power" in str(ranking_page(advice))


class TestBound:
    SLOW_MEMORY = Calibration(memory_bytes_per_s=Bandwidth(2e9))
    TINY = Workload(tensors=(Gradient(shape=(64, 64), count=2),), forward_s=Duration(1e-4), backward_s=Duration(1e-4))

    @pytest.mark.parametrize(
        ("bound", "parts"),
        [
            ("compute", {"workload": replace(WORKLOAD, forward_s=Duration(1), backward_s=Duration(2))}),
            ("wire", {"gbit_per_s": 0.1}),
            ("latency", {"gbit_per_s": 100, "alpha_s": 5e-3, "workload": TINY}),
            ("codec", {"gbit_per_s": 100, "calibration": SLOW_MEMORY}),
        ],
    )
    def test_what_takes_most_of_a_step_bounds_it(self, bound: str, parts: dict[str, typing.Any]) -> None:
        ranked = row(advised("QSGD 4 bit", **parts), "QSGD 4 bit")
        assert ranked.bound == bound
        assert ranked.saved[ranked.bound] > 0.4
        assert all(-1e-9 <= part <= 1 for part in ranked.saved.values())


class TestCrossover:
    @pytest.mark.parametrize("name", ["BinSGDM", "SignSGD"])
    def test_both_take_the_same_time_there_each_at_its_best(self, name: str) -> None:
        here = scenario(gbit_per_s=10, calibration=Calibration(memory_bytes_per_s=Bandwidth(2e11)))
        ranked = row(advise(here, names=[name]), name)
        ((low, high),) = ranked.faster_in
        assert low is None
        assert high is not None
        for factor, is_faster in ((1 - 2 * tuned_steps.TOLERANCE, True), (1 + 2 * tuned_steps.TOLERANCE, False)):
            there = whatif.at_bandwidth(here, factor * high)
            assert (least_s(SYSTEMS[name], there) < dense_s(there)) is is_faster
        assert ranked.crossovers == (high,)

    def test_it_pays_up_to_where_the_speedup_is_the_least_that_counts(self) -> None:
        here = scenario(gbit_per_s=10)
        ranked = row(advise(here, names=["BinSGDM"], trainings=shipped()), "BinSGDM")
        ((_, pays_to),), ((_, faster_to),) = ranked.pays_in, ranked.faster_in
        assert pays_to is not None
        assert faster_to is not None
        assert pays_to < faster_to
        there = whatif.at_bandwidth(here, pays_to)
        usual, slow = (
            dense_s(there) / least_s(SYSTEMS["BinSGDM"], setting) for setting in (there, whatif.slow_kernels(there))
        )
        assert ranked.speedup.interval is not None
        margin = ranked.speedup.interval[0] / ranked.speedup.value
        assert min(usual * margin, slow) == pytest.approx(PAYS, rel=2 * tuned_steps.TOLERANCE)

    @pytest.mark.slow
    def test_the_curve_has_the_bandwidths_that_are_sold_and_slower_ones_each_tuned(self) -> None:
        here = scenario(gbit_per_s=8)
        curve = dict(row(advise(here, names=["BinSGDM"]), "BinSGDM").curve)
        assert {*tuned_steps.NIC_RATES, Bandwidth(8 * GBIT)} == set(curve)
        there = whatif.at_bandwidth(here, 25 * GBIT)
        assert curve[Bandwidth(25 * GBIT)] == pytest.approx(dense_s(there) / least_s(SYSTEMS["BinSGDM"], there))
        slower = row(advised("BinSGDM", gbit_per_s=0.2), "BinSGDM").curve
        assert (slower[0][0], slower[-1][0]) == (pytest.approx(0.02 * GBIT), 10 * GBIT)
        alone = row(advised("BinSGDM", num_nodes=1), "BinSGDM")
        assert (alone.curve, alone.faster_in, alone.pays_in) == ((), (), ())


class TestCertainty:
    FITTED = replace(
        FAST_CODEC,
        kernels={
            name: KernelTime(s_per_element=Duration(1e-12))
            for name in ("top_k_encode", "top_k_decode", "gather_gradients", "mean", "sign_sgd_encode")
        },
        intervals={"memory_bandwidth": (0.5, 2.0), "kernels.top_k_encode.time_per_element": (0.5, 2.0)},
    )

    def test_a_fitted_calibration_gives_intervals(self) -> None:
        advice = advised("SignSGD", calibration=self.FITTED, draws=40)
        ranked = row(advice, "SignSGD")
        assert ranked.speedup.interval is not None
        low, high = ranked.speedup.interval
        assert low < ranked.speedup.value < high
        assert advice.baseline_system.speedup.interval is None
        assert f"({low:.2f} to {high:.2f})" in answer(advice)["Answer"]

    @pytest.mark.parametrize("given", [{}, {"memory_bandwidth": (1.0, 1.0)}])
    @pytest.mark.parametrize("kind", ["measured", "estimate"])
    def test_without_intervals_of_the_calibration_the_error_of_the_model_is_left(self, kind, given) -> None:
        certain = replace(self.FITTED, intervals=given, kind=kind)
        speedup = row(advised("1-bit Adam", calibration=certain, draws=200), "1-bit Adam").speedup
        error = intervals.model_error(certain).speedup
        assert speedup.interval == pytest.approx((speedup.value / error, speedup.value * error), rel=0.02)

    @pytest.mark.slow
    def test_kernels_timed_are_not_slowed_and_estimated_ones_are(self) -> None:
        timed_, estimated = (
            row(advised(name, calibration=self.FITTED), name).speedup for name in ("Top-k 1 %", "SignSGD")
        )
        assert timed_.if_kernels_slow is None
        assert estimated.if_kernels_slow is not None
        assert estimated.if_kernels_slow < estimated.value
        slow = replace(FAST_CODEC, codec_efficiency=FAST_CODEC.codec_efficiency / whatif.SLOW_KERNEL_FACTOR)
        alone = row(advised("SignSGD", calibration=slow), "SignSGD")
        with_estimate = row(advised("SignSGD"), "SignSGD")
        assert with_estimate.speedup.if_kernels_slow == pytest.approx(alone.speedup.value)

    @pytest.mark.slow
    def test_of_a_speedup_that_slow_kernels_undo_they_are_to_be_measured_first(self) -> None:
        advice = advised("BinSGDM", gbit_per_s=10, calibration=Calibration(memory_bytes_per_s=Bandwidth(40e9)))
        ranked = row(advice, "BinSGDM")
        assert ranked.speedup.value >= PAYS > ranked.speedup.least
        assert ranked.speedup.verdict == NOT_TIMED
        said = answer(advice)
        assert "The best other, BinSGDM, hierarchical: " in said["Answer"]
        assert "kernels not timed" in said["Answer"]
        assert "If they take 3.9 times the estimate" in said["Kernels"]

    @pytest.mark.slow
    def test_what_missed_a_target_does_not_pay_and_the_answer_says_how_often(self) -> None:
        advice = advised("marsit")
        assert row(advice, "Marsit").verdict == NO_SOONER
        assert advice.best is None
        page = " ".join(str(advice_page(advice)).split())
        assert f"(1) {NO_SOONER}: missed it in mnist_5k (1 of 5 runs reached it)" in page
        assert re.search(r"Marsit met \d+ of 15 targets", answer(advice)["Loss"])
        assert getattr(advised("marsit", "BinSGDM").best, "name", "") == "BinSGDM"

    def test_what_nobody_has_trained_never_pays(self) -> None:
        advice = advise(scenario(), names=chosen(["BinSGDM", "local_sgd", "HSDP"]))
        assert not any(system.verdict == "pays" for system in advice.others if system.needs_training)
        assert {row(advice, name).verdict for name in ("BinSGDM", "local SGD 8")} == {UNKNOWN}

    @pytest.mark.slow
    def test_a_kernel_without_an_estimate_is_to_be_measured_first(self) -> None:
        advice = advised("Top-k 1 %", "power_sgd", gbit_per_s=0.5)
        assert {system.name for system in advice.with_verdict(NOT_TIMED)} == {"Top-k 1 %", "PowerSGD rank 4"}
        assert advice.best is None
        assert "top_k_encode" in row(advice, "Top-k 1 %").speedup.unmeasured
        assert ": neither a time nor a usable estimate" in answer(advised("Top-k 1 %", gbit_per_s=0.5))["Kernels"]
        measured = row(advised("Top-k 1 %", gbit_per_s=0.5, calibration=self.FITTED), "Top-k 1 %")
        assert measured.speedup.unmeasured == ()
        assert measured.speedup.verdict == "pays"


def test_what_accumulation_does_to_the_answer_is_told() -> None:
    accumulating = replace(scenario(), run=RunSettings(grad_accumulation=2))
    advice = advise(accumulating, names=["BinSGDM"])
    assert [accumulated.micro_batches for accumulated in advice.accumulated] == [1, 2, 8]
    assert advice.accumulated[1].speedup == pytest.approx(row(advice, "BinSGDM").speedup.value)
    often = replace(scenario(), run=RunSettings(grad_accumulation=8))
    expected = row(advise(often, names=["BinSGDM"]), "BinSGDM").speedup.value
    assert advice.accumulated[2].speedup == pytest.approx(expected)
    assert answer(advice)["Batches"].startswith("BinSGDM over tuned DDP by micro-batches per step (as here 2): ")
    assert "x with 2, " in answer(advice)["Batches"]


def test_trainings_of_the_workload_count_with_their_doubts_and_others_only_warn() -> None:
    here, trainings = scenario(ranks_per_node=1), shipped()
    ours, others = (
        row(advise(here, names=["SignSGD"], trainings=trainings, are_of_user=are), "SignSGD") for are in (True, False)
    )
    assert [record.speedup for record in ours.records] == [record.speedup for record in others.records]
    assert (ours.verdict, others.verdict) == (UNCERTAIN, "pays")


@pytest.mark.slow
def test_an_advice_and_a_time_to_target_say_the_same_of_a_system() -> None:
    here, trainings = scenario(gbit_per_s=4, draws=20), shipped()
    advice = advise(here, names=chosen(["BinSGDM", "Marsit", "random_k"]), trainings=trainings, are_of_user=True)
    rate, pairs = here.cluster.inter_node.bytes_per_s, []
    for task, convergence in trainings.items():
        (there,) = times_to_target(here, convergence, bandwidths=[rate]).bandwidths
        for system in advice.others:
            pairs += [(there.find(system.strategy.kind), record) for record in system.records if record.task == task]
    assert len(pairs) >= 8
    for target_time, record in pairs:
        assert target_time is not None
        assert (record.speedup is None) is (target_time.speedup is None)
        if record.speedup and target_time.speedup:
            assert record.speedup.value == pytest.approx(target_time.speedup.value)
            assert record.speedup.interval == pytest.approx(target_time.speedup.interval)
            assert record.speedup.if_kernels_slow == pytest.approx(target_time.speedup.if_kernels_slow)


class TestTies:
    def test_of_equal_steps_what_can_be_pasted_wins_then_what_leaves_more_memory(self) -> None:
        flags, pasted = Contender(1.0, FLAGS, 50.0), Contender(1.02, PASTED, 70.0)
        assert first_of_ties([flags, pasted]) == 1
        assert first_of_ties([flags, pasted._replace(step_s=1.04)]) == 0
        roomy = Contender(1.029, PASTED, 60.0)
        assert first_of_ties([flags, pasted, roomy]) == 2
        assert first_of_ties([flags, pasted, roomy._replace(held_bytes=69.0)]) == 1  # no clear difference
        assert first_of_ties([flags, pasted, roomy._replace(held_bytes=math.inf)]) == 1

    def test_of_systems_that_pay_alike_the_one_with_a_call_is_used(self) -> None:
        here = scenario(gbit_per_s=10, ranks_per_node=1, workload=replace(WORKLOAD, dtype="bf16"), draws=0)
        advice = advise(here, names=["ZeRO-1", "ZeRO-2", "FSDP"])
        fastest = advice.systems[0]
        assert (fastest.name, effort(fastest.strategy, here.workload)) == ("ZeRO-1", FLAGS)
        assert (advice.used.name, advice.used.verdict) == ("FSDP", "pays")
        assert fastest.iteration_s < advice.used.iteration_s < TIE * fastest.iteration_s

    @pytest.mark.slow
    @pytest.mark.parametrize("gbit_per_s", [25, 50, 100])
    def test_where_ddp_does_not_fit_the_reference_is_one_that_pytorch_has(self, gbit_per_s: int) -> None:
        large = load_experiment("what_to_use", {"workload": "llama_7b", "strategy": "all_reduce", "run.draws": 0}).at(
            {}
        )
        advice = advise(whatif.at_bandwidth(large, gbit_per_s * GBIT), names=chosen(["zero1", "zero2", "fsdp"]))
        reference = advice.baseline_system
        alike = [row for row in advice.systems if not row.needs_training and row.may_fit]
        assert reference.name.startswith("FSDP")
        assert reference.iteration_s < TIE * min(row.iteration_s for row in alike)
        assert reference.speedup.value == 1
        assert answer(advice)["To use"].endswith(calls(reference.strategy)[-1])


class TestUsable:
    @pytest.mark.slow
    def test_a_call_that_refuses_clipping_comes_with_one_that_does_not_and_its_time(self) -> None:
        here = scenario()
        advice = advised("BinSGDM")
        (row_, usable) = advice.used, advice.usable
        assert usable is not None
        assert (row_.strategy.overlap, usable.strategy) == (True, replace(row_.strategy, overlap=False))
        alone_s = simulate(replace(here, strategy=usable.strategy)).result.iteration_s
        assert usable.iteration_s == pytest.approx(alone_s)
        assert f"# for clipping: overlap=False, {format_seconds(alone_s)} (" in answer(advice)["To use"]
        assert advised("1-bit Adam").usable is None

    @pytest.mark.slow
    def test_a_form_that_no_flag_gives_comes_with_the_fastest_that_one_does(self) -> None:
        base = scenario(gbit_per_s=5, ranks_per_node=1, workload=replace(WORKLOAD, dtype="bf16"), draws=0)
        advice = advise(base, names=["ZeRO-2"])
        assert advice.used.name == "ZeRO-2"
        assert effort(advice.used.strategy) == NO_CALL
        assert advice.usable is not None
        text = answer(advice)["To use"]
        assert text.startswith(NO_FLAG)
        fastest_s = least_s((setting for setting in SYSTEMS["ZeRO-2"] if effort(setting) < NO_CALL), base)
        assert advice.usable.iteration_s == pytest.approx(fastest_s)
        assert f"}}, {format_seconds(fastest_s)} (" in text

    @pytest.mark.slow
    def test_on_a_cluster_with_faults_its_time_is_that_with_them(self) -> None:
        here = scenario()
        slow = replace(here.cluster, slow_nodes=(SlowNode(node=1, compute_slowdown=3.0),))
        alike, faulty = (
            advise(asked, names=["BinSGDM"], trainings=shipped()) for asked in (here, replace(here, cluster=slow))
        )
        assert alike.usable is not None
        assert faulty.usable is not None
        assert faulty.usable.iteration_s > 1.5 * alike.usable.iteration_s
        assert faulty.usable.iteration_s >= faulty.used.iteration_s


class TestDoubt:
    @pytest.mark.parametrize(
        ("parts", "said"),
        [
            ({}, "nothing measured on your GPUs; trained small only. Test it: simnet advise FILE --proof DIR"),
            ({"kind": "measured", "timed": True}, "unmeasured: compute; trained small only. "),
            ({"kind": "measured", "timed": True, "gpu": "T4"}, "nothing measured on your GPUs"),
            ({"kind": "measured"}, "unmeasured: kernels, compute; trained"),
        ],
    )
    def test_the_answer_says_what_was_not_measured_here(self, parts: dict[str, typing.Any], said: str) -> None:
        advice = of_calibration(**parts)
        assert answer(advice)["Doubt"].startswith(said)

    def test_one_gpu_has_nothing_to_prove(self) -> None:
        advice = of_calibration()
        alone = advice.scenario.replace(**{"cluster.num_nodes": 1, "cluster.ranks_per_node": 1})
        assert "--proof" not in answer(replace(advice, scenario=alone))["Doubt"]

    @pytest.mark.slow
    def test_of_what_was_measured_and_trained_here_nothing_is_said(self) -> None:
        advice = of_calibration(kind="measured", timed=True, compute="given", are_of_user=True)
        assert advice.best is not None
        assert "Doubt" not in answer(advice)


def of_calibration(
    kind: str = "estimate", *, timed: bool = False, gpu: str = "", compute: str = "derived", are_of_user: bool = False
) -> Advice:
    """Return the advice on BinSGDM by a calibration of a kind, whose kernels are timed, and with its compute."""
    names = [cost.name for cost in BinSGDM.kernels] if timed else []
    kernels = {name: KernelTime(s_per_element=Duration(1e-12)) for name in names}
    calibration = replace(FAST_CODEC, kind=kind, gpu=gpu, kernels=kernels)
    here = scenario(calibration=calibration, draws=0)
    workload, cluster = here.workload, replace(here.cluster, gpu="A100-80GB")
    if compute != "given":
        step = {"step_s": Duration(0.03), "optimizer": "adam", "kind": compute, "source": "a guess"}
        row_ = ComputeTime(gpu="A100-80GB", precision="bf16", batch=1, **step)
        workload = replace(workload, forward_s=None, backward_s=None, optimizer_s=None, compute=(row_,))
    here = replace(here, cluster=cluster, workload=workload)
    return advise(here, names=["BinSGDM"], trainings=shipped(), are_of_user=are_of_user)
