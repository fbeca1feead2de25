"""HKBU on the four GPUs of one node: no network between, PCIe as the 8-GPU InfiniBand rows give it."""

from simnet.hardware import Calibration
from simnet.validate import parts
from simnet.validate.measurements import Measurements, Row
from simnet.validate.outcome import Limit, Outcome, Parameter, Prediction
from simnet.validate.sets import hkbu, hkbu_bsp, hkbu_overlap
from simnet.validate.sets.hkbu import NETWORKS, Network

GPUS = 4
BOUND = Limit(mean=0.08, worst=0.19)

ABOUT = """\
The rows of four GPUs, all in one node, of which the sets above use none. Nothing is fitted to them: PCIe is that of \
the 8-GPU InfiniBand rows, the launch that of each network's 8-GPU WFBP rows. Of MG-WFBP's planner we hold no entry \
for four GPUs, so it is given the simulated cost. They are measured twice, under either network, which takes no part. \
No target."""
MISSES = """\
That the ring inside a node is as slow as the one across InfiniBand, as the first set claims, holds here within {bsp} \
(BSP). Overlapped BERT-Base comes out short by {base}: it is late without any network between, as the set with overlap \
finds it on InfiniBand, which speaks for backward slowed by the NCCL kernels beside it."""


def run(rows: Measurements, *, alternatives: bool) -> Outcome:  # noqa: ARG001 - one signature for every set
    """Predict the single-node rows from what the 8-GPU rows gave."""
    fitted = {network: hkbu_overlap.fit(rows, network) for network in NETWORKS}
    pcie = next(network for network in NETWORKS if network.link == "intra_node")
    efficiency = fitted[pcie].intra_node.efficiency
    assert isinstance(efficiency, float)
    wanted = {network: rows.select(hkbu.SOURCE, network=network.column, gpus=GPUS) for network in NETWORKS}
    predictions = tuple(
        prediction
        for network, calibration in fitted.items()
        for prediction in hkbu.predictions(
            rows, network, parts.with_efficiency(calibration, "intra_node", efficiency), wanted[network]
        )
    )
    return Outcome(
        name="hkbu_one_node",
        title="HKBU inside one node",
        unit="ms",
        parameters=_parameters(rows, wanted, fitted, hkbu_bsp.parameter(rows, pcie, efficiency)),
        predictions=predictions,
        target=None,
        bound=BOUND,
        about=ABOUT,
        misses=_misses(predictions),
    )


def _parameters(
    rows: Measurements, wanted: dict[Network, tuple[Row, ...]], fitted: dict[Network, Calibration], pcie: Parameter
) -> tuple[Parameter, ...]:
    launches = (hkbu_overlap.launch_parameter(rows, network, found) for network, found in fitted.items())
    compute = hkbu.compute_parameters(rows, [row for found in wanted.values() for row in found])
    return (*compute, pcie, *launches)


def _misses(predictions: tuple[Prediction, ...]) -> str:
    bsp = max(abs(p.error) for p in predictions if p.row.method == hkbu_bsp.METHOD)
    base = [-p.error for p in predictions if p.row.model == "BERT-Base" and p.row.method != hkbu_bsp.METHOD]
    return MISSES.format(bsp=f"{bsp:.1%}", base=f"{min(base):.0%} to {max(base):.0%}")
