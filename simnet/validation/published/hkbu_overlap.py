"""HKBU with overlap: an all-reduce for each tensor (WFBP) or merged group (MG-WFBP), overlapped with backward."""

import math
from collections.abc import Iterator
from dataclasses import replace

from msgspec import structs

from simnet.core.units import Duration
from simnet.validation.outcome import Alternative, Limit, Outcome
from simnet.validation.published import hkbu
from simnet.validation.shipped_parts import PublishedNetwork
from simnet.validation.study import Study, all_predictions

ORDER = 2
TARGET = Limit(mean=0.05, worst=0.15)
LOW_LATENCY_S = 3.8e-6
"""Mean hop of NCCL's table where the 63 % of tensors that have at most 16 KiB go by its protocol LL.

LL: 3 of 4 hops PCI, 1.0 us; 1 of 4 network, 2.7 us. Simple: 5.7 and 14 us (src/graph/tuning.cc @5067397).
"""


def evaluate() -> Outcome:
    """Calibrate the bandwidth on 8-GPU BSP rows and one cost of overlap a network on 8-GPU rows, predict the rest."""
    studies = _studies()
    compute = hkbu.compute_parameters(row for study in studies for row in study.held_out)
    return Outcome(
        title="HKBU with overlap (WFBP, MG-WFBP)",
        unit="ms",
        target=TARGET,
        bound=TARGET,
        parameters=(*compute, *(parameter for study in studies for parameter in study.parameters)),
        predictions=all_predictions(studies),
        facts={
            "ethernet": (f"{hkbu.ETHERNET.label}, {hkbu.WFBP}", f"{hkbu.ETHERNET.label}, MG-WFBP"),
            "wfbp": f"{hkbu.INFINIBAND.label}, {hkbu.WFBP}",
            "pcie": _pcie_gbit_per_s(),
            "slowdown": lambda: hkbu.slowed_backward(hkbu.INFINIBAND, links_too=True).fitted.backward_slowdown,
            "gap": hkbu.largest_wait_and_start_up_ms(),
        },
        make_alternatives=_alternatives,
    )


def _studies() -> tuple[Study, ...]:
    return tuple(hkbu.overlapped(network) for network in hkbu.NETWORKS)


def _pcie_gbit_per_s() -> float:
    """Return what PCIe gives beside backward [Gbit/s]."""
    fitted = hkbu.overlapped(hkbu.INFINIBAND)
    share = fitted.value(hkbu.EFFICIENCY) * fitted.value(hkbu.OVERLAP_EFFICIENCY)
    return share * hkbu.INFINIBAND.nominal_gbit_per_s


def _alternatives() -> Iterator[Alternative]:
    same = "the same rows"
    ethernet, infiniband = _studies()
    larger = [one for one in all_predictions((ethernet, infiniband)) if one.row.gpus != hkbu.CALIBRATED]
    yield Alternative("the model above, 16 and 32 GPUs only", same, larger)
    yield Alternative(
        "no overlap_efficiency, a launch on both networks",
        "8-GPU WFBP rows",
        all_predictions((ethernet, hkbu.only_launch(hkbu.INFINIBAND))),
    )
    slowed = hkbu.slowed_backward(hkbu.INFINIBAND)
    yield Alternative(
        f"backward_slowdown on InfiniBand in place of it ({slowed.fitted.backward_slowdown:.2f})",
        same,
        all_predictions((ethernet, slowed)),
    )
    both = hkbu.slowed_backward(hkbu.INFINIBAND, links_too=True)
    yield Alternative(
        f"overlap_efficiency and, on InfiniBand, backward_slowdown ({both.fitted.backward_slowdown:.2f})",
        "the same rows, one number more",
        all_predictions((ethernet, both)),
    )
    launch_s = ethernet.value("collective_launch")
    yield Alternative(
        "the launch of 10GbE on InfiniBand, too",
        same,
        all_predictions((ethernet, _with_start(hkbu.INFINIBAND, collective_launch_s=Duration(launch_s)))),
    )
    yield Alternative(
        "no latency of the ring's hops", same, all_predictions(_with_latency(network, 0.0) for network in hkbu.NETWORKS)
    )
    yield Alternative(
        f"hops of {1e6 * LOW_LATENCY_S:.1f} us on InfiniBand: NCCL's protocol LL for small tensors",
        same,
        all_predictions((ethernet, _with_latency(hkbu.INFINIBAND, LOW_LATENCY_S))),
    )
    for text, rate in (
        ("the optimizer at the data sheet's memory bandwidth", hkbu.DATA_SHEET_BYTES_PER_S),
        ("no optimizer in the compute time", math.inf),
    ):
        otherwise = [hkbu.with_memory(hkbu.overlapped(network), network, rate) for network in hkbu.NETWORKS]
        yield Alternative(text, same, all_predictions(otherwise))


def _with_start(network: PublishedNetwork, **values: object) -> Study:
    """Return the study with other fixed values under its last fit."""
    study = hkbu.overlapped(network)
    return replace(study, initial=structs.replace(study.fitted, **values), fits=study.fits[1:])


def _with_latency(network: PublishedNetwork, seconds: float) -> Study:
    fitted = hkbu.overlapped(network).fitted
    links = {
        link: structs.replace(getattr(fitted, link), alpha_s=Duration(seconds)) for link in ("intra_node", "inter_node")
    }
    return _with_start(network, **links)
