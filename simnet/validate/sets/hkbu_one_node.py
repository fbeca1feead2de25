"""HKBU on the four GPUs of one node: no network, PCIe as fitted to the 8-GPU InfiniBand rows."""

from dataclasses import replace

from simnet.validate.outcome import Limit, Outcome
from simnet.validate.sets import hkbu
from simnet.validate.shipped import PublishedNetwork, with_value
from simnet.validate.study import Study, all_predictions

ORDER = 11
GPUS = 4


def evaluate() -> Outcome:
    """Predict the single-node rows with the values fitted to the 8-GPU rows."""
    pcie, _ = hkbu.overlapped(hkbu.INFINIBAND).parameters
    launches = (hkbu.overlapped(network).parameters[1] for network in hkbu.NETWORKS)
    compute = hkbu.compute_parameters(row for network in hkbu.NETWORKS for row in hkbu.rows(network, gpus=GPUS))
    return Outcome(
        title="HKBU inside one node",
        unit="ms",
        bound=Limit(mean=0.08, worst=0.19),
        parameters=(*compute, pcie, *launches),
        predictions=all_predictions(map(_study, hkbu.NETWORKS)),
        facts={"overlapped": hkbu.OVERLAPPED},
    )


def _study(network: PublishedNetwork) -> Study:
    pcie = hkbu.overlapped(hkbu.INFINIBAND).value("intra_node.efficiency")
    start = with_value(hkbu.overlapped(network).fitted, "intra_node.efficiency", pcie)
    return replace(hkbu.overlapped(network), initial=start, fits=(), held_out=hkbu.rows(network, gpus=GPUS))
