"""Which system pays on one cluster: rows, verdicts, bounds, crossovers, and what is said of them."""

import re
import typing

import pytest
from msgspec.structs import replace

from simnet.analysis import tuned_steps, whatif, workers
from simnet.analysis.advise import advise
from simnet.analysis.convergence import shipped
from simnet.analysis.tune import chosen, dense_systems, systems
from simnet.analysis.verdict import NO_SOONER, NOT_TIMED, PAYS, UNCERTAIN, UNKNOWN
from simnet.cluster.hardware import Calibration
from simnet.cluster.kernel_times import KernelTime
from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine import intervals
from simnet.engine.simulation import simulate
from simnet.report.advice import advice_page, answer, ranking_page
from simnet.report.text import speedup_text
from simnet.workload.workload import Gradient, Workload
from tests.helpers.advise_samples import FAST_CODEC, GBIT, WORKLOAD, advised, dense_s, least_s, row, scenario

SYSTEMS = systems()


class TestSystems:
    @pytest.mark.parametrize(
        ("name", "near"), [("Powersgd rank 4", "PowerSGD rank 4"), ("one_bit_adm", "one_bit_adam")]
    )
    def test_an_unknown_name_is_refused_with_the_nearest(self, name: str, near: str) -> None:
        with pytest.raises(SimnetError, match=f"unknown system. Did you mean '{near}'"):
            chosen([name])

    def test_a_recorded_step_is_given_by_its_file(self) -> None:
        with pytest.raises(SimnetError, match="a recorded step is a file; give it by --step FILE"):
            chosen(["recorded:file=step.json"])

    def test_gradients_of_16_bits_are_not_cast(self) -> None:
        assert set(dense_systems("fp32")) == {"DDP fp32", "DDP bf16"}
        assert set(dense_systems("fp16")) == {"DDP fp16"}


class TestRanking:
    @pytest.mark.slow
    def test_a_slow_wire_makes_systems_pay_and_the_fastest_of_them_is_named(self) -> None:
        advice = advised("SignSGD", "BinSGDM", "QSGD 4 bit", "Marsit", "1-bit Adam")
        assert advice.best is not None
        assert advice.best.name not in ("DDP fp32", "DDP bf16")
        assert advice.best.speedup.value == max(found.speedup.value for found in advice.with_verdict("pays"))
        assert [found.iteration_s for found in advice.systems] == sorted(found.iteration_s for found in advice.systems)
        said = answer(advice)["Answer"]
        assert said.startswith(f"{advice.best.label} pays: {speedup_text(advice.best.speedup.value)} ")
        assert "({:.2f} to {:.2f}) over tuned DDP, ".format(*advice.best.speedup.interval) in said

    def test_dense_steps_are_counted_in_by_their_part(self) -> None:
        found = row(advised("1-bit Adam"), "1-bit Adam")
        result = simulate(replace(scenario(), strategy=found.strategy)).result
        assert result.dense_iteration_s is not None
        assert result.iteration_s < found.iteration_s < result.dense_iteration_s
        part = 23_000 / 152_000
        expected_s = part * result.dense_iteration_s + (1 - part) * result.iteration_s
        assert found.iteration_s == pytest.approx(expected_s)

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
        assert {found.name for found in advice.systems} == {*SYSTEMS, "DDP fp32", "DDP bf16"} - set(left_out)
        assert "1-bit SGD, EF-SignSGD, TernGrad, Power" in str(ranking_page(advice))

    @pytest.mark.slow
    def test_the_advice_is_the_same_for_any_number_of_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        workload = Workload(gradient_bytes=Size(4e7), forward_s=Duration(0.01), backward_s=Duration(0.02))
        calibration = replace(FAST_CODEC, intervals={"memory_bandwidth": (0.5, 2.0)})
        given = scenario(workload=workload, calibration=calibration, draws=20)
        names = ["Marsit", "TernGrad", "BinSGDM", "SignSGD"]
        alone = advise(given, names=names)
        monkeypatch.setattr(workers, "PROBE_S", 0.0)
        monkeypatch.setattr(workers, "WORKERS_PAY_S", 0.0)
        done: list[int] = []
        assert advise(given, names=names, jobs=2, progress=done.append) == alone
        assert (len(alone.left_out), done) == (1, [1] * 4)


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
        found = row(advised("QSGD 4 bit", **parts), "QSGD 4 bit")
        assert found.bound == bound
        assert found.saved[found.bound] > 0.4
        assert all(-1e-9 <= part <= 1 for part in found.saved.values())

    def test_ddp_that_waits_for_messages_is_bound_by_latency(self) -> None:
        advice = advised("Marsit", ranks_per_node=1, gbit_per_s=100, alpha_s=5e-3, workload=self.TINY)
        assert advice.baseline_system.bound == "latency"


class TestCrossover:
    @pytest.mark.parametrize("name", ["BinSGDM", "SignSGD"])
    def test_both_take_the_same_time_there_each_at_its_best(self, name: str) -> None:
        given = scenario(gbit_per_s=10, calibration=Calibration(memory_bytes_per_s=Bandwidth(2e11)))
        found = row(advise(given, names=[name]), name)
        ((low, high),) = found.faster_in
        assert low is None
        assert high is not None
        for factor, is_faster in ((1 - 2 * tuned_steps.TOLERANCE, True), (1 + 2 * tuned_steps.TOLERANCE, False)):
            there = whatif.at_bandwidth(given, factor * high)
            assert (least_s(SYSTEMS[name], there) < dense_s(there)) is is_faster
        assert found.crossovers == (high,)

    def test_it_pays_up_to_where_the_speedup_is_the_least_that_counts(self) -> None:
        given = scenario(gbit_per_s=10)
        found = row(advise(given, names=["BinSGDM"], trainings=shipped()), "BinSGDM")
        ((_, pays_to),), ((_, faster_to),) = found.pays_in, found.faster_in
        assert pays_to is not None
        assert faster_to is not None
        assert pays_to < faster_to
        there = whatif.at_bandwidth(given, pays_to)
        usual, slow = (dense_s(there) / least_s(SYSTEMS["BinSGDM"], one) for one in (there, whatif.slow_kernels(there)))
        assert found.speedup.interval is not None
        margin = found.speedup.interval[0] / found.speedup.value
        assert min(usual * margin, slow) == pytest.approx(PAYS, rel=2 * tuned_steps.TOLERANCE)

    def test_the_curve_has_the_bandwidths_tried_each_tuned(self) -> None:
        given = scenario(gbit_per_s=8)
        curve = dict(row(advise(given, names=["BinSGDM"]), "BinSGDM").curve)
        assert {*tuned_steps.NIC_RATES, Bandwidth(8 * GBIT)} == set(curve)
        there = whatif.at_bandwidth(given, 25 * GBIT)
        assert curve[Bandwidth(25 * GBIT)] == pytest.approx(dense_s(there) / least_s(SYSTEMS["BinSGDM"], there))

    def test_slower_networks_than_are_sold_are_tried_below_the_slowest(self) -> None:
        found = row(advised("BinSGDM", gbit_per_s=0.2), "BinSGDM")
        assert found.curve[0][0] == pytest.approx(0.02 * GBIT)
        assert found.curve[-1][0] == 10 * GBIT

    def test_one_node_has_no_bandwidth_of_a_nic(self) -> None:
        found = row(advised("BinSGDM", num_nodes=1), "BinSGDM")
        assert (found.curve, found.faster_in, found.pays_in) == ((), (), ())


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
        found = row(advice, "SignSGD")
        assert found.speedup.interval is not None
        low, high = found.speedup.interval
        assert low < found.speedup.value < high
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
    def test_an_interval_that_reaches_below_is_perhaps(self) -> None:
        key = "kernels.top_k_encode.time_per_element"
        sure, wide = (
            row(
                advised("Top-k 1 %", calibration=replace(self.FITTED, intervals={key: (1.0, high)}), draws=40),
                "Top-k 1 %",
            )
            for high in (1.1, 1e6)
        )
        assert sure.speedup.value == wide.speedup.value
        assert (sure.speedup.verdict, wide.speedup.verdict) == ("pays", UNCERTAIN)

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

    def test_of_a_speedup_that_slow_kernels_undo_they_are_to_be_measured_first(self) -> None:
        advice = advised("BinSGDM", gbit_per_s=10, calibration=Calibration(memory_bytes_per_s=Bandwidth(40e9)))
        found = row(advice, "BinSGDM")
        assert found.speedup.value >= PAYS > found.speedup.least
        assert found.speedup.verdict == NOT_TIMED
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
        assert re.search(r"Marsit met the target in \d+ of 15 runs", answer(advice)["Loss"])
        assert getattr(advised("marsit", "BinSGDM").best, "name", "") == "BinSGDM"

    def test_what_nobody_has_trained_never_pays(self) -> None:
        advice = advise(scenario(), names=chosen(["BinSGDM", "local_sgd", "HSDP"]))
        assert not any(one.verdict == "pays" for one in advice.others if one.needs_training)
        assert {row(advice, name).verdict for name in ("BinSGDM", "local SGD 8")} == {UNKNOWN}

    @pytest.mark.slow
    def test_a_kernel_without_an_estimate_is_to_be_measured_first(self) -> None:
        advice = advised("Top-k 1 %", "power_sgd", gbit_per_s=0.5)
        assert {found.name for found in advice.with_verdict(NOT_TIMED)} == {"Top-k 1 %", "PowerSGD rank 4"}
        assert advice.best is None
        assert "top_k_encode" in row(advice, "Top-k 1 %").speedup.unmeasured
        assert ": neither a time nor a usable estimate" in answer(advised("Top-k 1 %", gbit_per_s=0.5))["Kernels"]
        measured = row(advised("Top-k 1 %", gbit_per_s=0.5, calibration=self.FITTED), "Top-k 1 %")
        assert measured.speedup.unmeasured == ()
        assert measured.speedup.verdict == "pays"


def test_what_casts_to_the_format_of_the_gradients_is_not_ranked_twice() -> None:
    names = {one.name for one in advised("FSDP", "FSDP bf16", workload=replace(WORKLOAD, dtype="bf16")).others}
    assert names == {"FSDP"}
    assert {one.name for one in advised("FSDP", "FSDP bf16").others} == {"FSDP", "FSDP bf16"}
