"""No answer contradicts itself, with and without faults: what it says to use lies inside the limits that it names."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from simnet.analysis.advice import Advice, RankedSystem
from simnet.analysis.advise import advise
from simnet.analysis.convergence import shipped
from simnet.analysis.tune import chosen
from simnet.analysis.whatif import free_communication
from simnet.cluster.hardware import Calibration
from simnet.core.units import Bandwidth, Duration
from simnet.engine.scenario import RunSettings, Scenario
from simnet.engine.simulation import simulate
from tests.helpers.advise_samples import WORKLOAD, row, scenario
from tests.helpers.fault_samples import fault

ROUNDING = 1e-9
SYSTEMS = ("BinSGDM", "ByteGrad", "one_bit_adam", "local SGD 4", "DiLoCo 30", "fsdp", "zero1", "HSDP")
FAULTS = [
    fault("slow_rank", node=1, local_rank=1, compute_slowdown=1.5),
    fault("slow_node", node=2, compute_slowdown=1.2, nic_slowdown=3.0),
    fault("other_nodes", at_nodes=[1], nic="10 Gbit/s", compute_slowdown=1.2),
    fault("slow_link", place=1, rate=0.3),
    fault("background_traffic", at_nodes=[1], share=0.5),
    fault("packet_loss", probability=1e-4, round_trip="200 us"),
    fault("added_latency", at_nodes=[1], added="1 ms"),
    fault("compute_jitter", cv=0.1),
    fault("collective_jitter", cv=0.2),
    fault("pause", pause="20 ms", probability=0.05),
]


def asked(
    gbit_per_s: float, faults: list[Any], memory_bytes_per_s: float = 1e12, optimizer_s: float = 2e-4
) -> Scenario:
    calibration = Calibration(memory_bytes_per_s=Bandwidth(memory_bytes_per_s))
    workload = replace(WORKLOAD, optimizer_s=Duration(optimizer_s))
    plain = scenario(gbit_per_s=gbit_per_s, calibration=calibration, workload=workload)
    run = RunSettings(draws=20, iterations=4 if faults else None)
    return replace(plain, cluster=replace(plain.cluster, faults=tuple(faults)), run=run)


def alone_s(advice: Advice, system: RankedSystem) -> float:
    """Return the step of a system without communication [s]."""
    there = replace(advice.scenario, strategy=system.strategy)
    return simulate(free_communication(there)).result.p50_s


@pytest.mark.slow
@given(
    st.sampled_from((1.0, 4.0, 12.0, 30.0, 60.0, 200.0)),
    st.lists(st.sampled_from(FAULTS), max_size=3, unique=True),
    st.sampled_from((1e11, 1e12)),
    st.sampled_from((0.0002, 0.01)),
    st.sampled_from(SYSTEMS),
)
@example(12.0, [FAULTS[1]], 1e11, 0.0002, "BinSGDM")  # whose limit without faults lies below its bandwidth
@example(1.0, [], 1e12, 0.0002, "QSGD 4 bit")  # which missed a target
@example(60.0, [FAULTS[0], FAULTS[2]], 1e11, 0.0002, "BinSGDM")  # where DDP in bf16 pays over DDP in fp32
def test_what_pays_pays_at_the_clusters_own_bandwidth_and_gains_no_more_than_is_said(
    gbit_per_s: float, faults: list[Any], memory_bytes_per_s: float, optimizer_s: float, name: str
) -> None:
    scenario_ = asked(gbit_per_s, faults, memory_bytes_per_s, optimizer_s)
    advice = advise(scenario_, names=chosen([name]), trainings=shipped())
    here = scenario_.cluster.inter_node.bytes_per_s
    for system in [choice.system for choice in advice.choices] if faults else advice.others:
        inside = any((low or 0) <= here <= (high or here) for low, high in system.pays_in)
        assert inside == (system.verdict == "pays"), (system.name, system.verdict, system.pays_in)
    for system in advice.systems:
        if system.mathematics != "local_steps" and alone_s(advice, system) >= alone_s(advice, advice.baseline_system):
            assert system.speedup.value <= advice.speedup_without_comm * (1 + ROUNDING), system.name
            assert not advice.gains_beyond(system) or system.speedup.value == pytest.approx(advice.speedup_without_comm)


def test_what_gains_more_than_equal_compute_could_says_why() -> None:
    names = chosen(["fsdp", "local SGD 4"])
    advice = advise(asked(200.0, [FAULTS[-1]], optimizer_s=0.01), names=names)
    assert advice.gains_beyond(row(advice, "FSDP bf16")) == "its optimizer takes less"
    assert advice.gains_beyond(row(advice, "local SGD 4")) == "its steps do not wait for each other"
    assert advice.gains_beyond(advice.baseline_system) == ""


def test_without_communication_faults_of_links_cost_nothing_and_those_of_ranks_what_they_do() -> None:
    compute_s = WORKLOAD.forward_s + WORKLOAD.backward_s + WORKLOAD.optimizer_s
    slow_link, latency, slow_rank = FAULTS[3], FAULTS[6], FAULTS[0]
    for faults, factor in (([slow_link, latency], 1.0), ([slow_rank], 1.5)):
        advice = advise(asked(30.0, faults), names=chosen(["ByteGrad"]))
        without_s = advice.baseline_system.iteration_s / advice.speedup_without_comm
        assert without_s == pytest.approx(factor * compute_s, rel=0.01)
