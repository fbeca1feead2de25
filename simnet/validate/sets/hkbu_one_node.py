"""HKBU on the four GPUs of one node: no network between, PCIe as the 8-GPU InfiniBand rows give it."""

from dataclasses import replace

from simnet.validate.outcome import Limit
from simnet.validate.parts import with_value
from simnet.validate.sets.hkbu import INFINIBAND, NETWORKS, OVERLAPPED, Network, compute_parameters, overlapped, rows
from simnet.validate.study import Published, Study, all_predictions

PLACE = 11
GPUS = 4


def published() -> Published:
    """Predict the single-node rows from what the 8-GPU rows gave."""
    pcie, _ = overlapped(INFINIBAND).parameters
    launches = (overlapped(network).parameters[1] for network in NETWORKS)
    compute = compute_parameters(row for network in NETWORKS for row in rows(network, gpus=GPUS))
    return Published(
        title="HKBU inside one node",
        unit="ms",
        bound=Limit(mean=0.08, worst=0.19),
        parameters=(*compute, pcie, *launches),
        predictions=all_predictions(map(_study, NETWORKS)),
        facts={"overlapped": OVERLAPPED},
    )


def _study(network: Network) -> Study:
    pcie = overlapped(INFINIBAND).value("intra_node.efficiency")
    start = with_value(overlapped(network).fitted, "intra_node.efficiency", pcie)
    return replace(overlapped(network), start=start, fits=(), predicts=rows(network, gpus=GPUS))
