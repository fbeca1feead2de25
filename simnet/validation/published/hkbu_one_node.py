"""HKBU on the four GPUs of one node: no network, PCIe as fitted to the 8-GPU InfiniBand rows."""

from collections.abc import Iterator
from dataclasses import replace

from simnet.cluster.hardware import Calibration
from simnet.validation.outcome import Alternative, Limit, Outcome
from simnet.validation.published import hkbu
from simnet.validation.shipped_parts import PublishedNetwork
from simnet.validation.study import Study, all_predictions

ORDER = 11
GPUS = 4


def evaluate() -> Outcome:
    """Predict the single-node rows with the values fitted to the 8-GPU rows of InfiniBand."""
    fitted = hkbu.overlapped(hkbu.INFINIBAND).fitted
    compute = hkbu.compute_parameters(row for network in hkbu.NETWORKS for row in hkbu.rows(network, gpus=GPUS))
    return Outcome(
        title="HKBU inside one node",
        unit="ms",
        bound=Limit(mean=0.03, worst=0.06),
        parameters=(*compute, *hkbu.overlapped(hkbu.INFINIBAND).parameters),
        predictions=all_predictions(_study(network, fitted) for network in hkbu.NETWORKS),
        facts={"overlapped": hkbu.OVERLAPPED},
        make_alternatives=_alternatives,
    )


def _alternatives() -> Iterator[Alternative]:
    for text, study in (
        ("no overlap_efficiency, a launch", hkbu.only_launch(hkbu.INFINIBAND)),
        ("backward_slowdown in its place", hkbu.slowed_backward(hkbu.INFINIBAND)),
    ):
        found = all_predictions(_study(network, study.fitted) for network in hkbu.NETWORKS)
        yield Alternative(text, "8-GPU rows of InfiniBand", found)


def _study(network: PublishedNetwork, fitted: Calibration) -> Study:
    return replace(hkbu.overlapped(network), initial=fitted, fits=(), held_out=hkbu.rows(network, gpus=GPUS))
