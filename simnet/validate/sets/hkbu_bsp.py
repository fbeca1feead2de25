"""HKBU without overlap: one fused all-reduce after backward; the payload bandwidth from the 8-GPU rows alone."""

from collections.abc import Sequence

from msgspec.structs import replace

from simnet.hardware import Calibration
from simnet.units import Duration
from simnet.validate import parts
from simnet.validate.measurements import Measurements, Row
from simnet.validate.outcome import Alternative, Limit, Outcome, Parameter, Prediction, alternative
from simnet.validate.sets import hkbu
from simnet.validate.sets.hkbu import NETWORKS, Network

METHOD = "BSP-A2A"
CALIBRATION_GPUS = 8
TARGET = Limit(mean=0.03, worst=0.06)

ABOUT = """\
Eight nodes of four GPUs on PCIe, 10 Gbit Ethernet or 100 Gbit InfiniBand, PyTorch 1.4, NCCL 2.4, fp32; \
64 samples a GPU of ResNet-50 and BERT-Base, but 8 of BERT-Large, so that its compute is the shortest. All \
gradients go through one all-reduce after backward, so an iteration is the compute time of one GPU plus one flat \
ring. One number a network is fitted: the payload bandwidth of the link that limits the ring, by least squares of \
the relative error of the three 8-GPU rows. On Ethernet that link is the NIC. On InfiniBand it is PCIe: its rate is \
below that of the NIC, and the ring inside a single node is no faster. A latency is not fitted, since one message \
an iteration cannot show it; it is the mean of NCCL's own table over the ring (3 of 4 hops PCI, 5.7 us; 1 of 4 \
network, 14 us). The launch cost of the next set, paid once here, would add 0.3 ms at most and is left out."""
MISSES = """\
All within target. ResNet-50 comes out up to {slow} slow and BERT-Base up to {fast} fast: "1 GPU" leaves out hooks, \
the copy into the fused buffer and the averaging, a cost per byte that the fit counts as wire and that differs by \
model."""


def run(rows: Measurements, *, alternatives: bool) -> Outcome:
    """Calibrate on 8 GPUs, predict 16 and 32."""
    fitted = {network: fit(rows, network) for network in NETWORKS}
    wanted = {network: _rows(rows, network, hkbu.PREDICTED_GPUS) for network in NETWORKS}
    predictions = _predictions(rows, wanted, fitted)
    return Outcome(
        name="hkbu_bsp",
        title="HKBU without overlap (BSP)",
        unit="ms",
        parameters=(
            *hkbu.compute_parameters(rows, _rows(rows, NETWORKS[0], (8,)) + _rows(rows, NETWORKS[1], (8,))),
            *(parameter(rows, network, efficiency) for network, efficiency in fitted.items()),
        ),
        predictions=predictions,
        target=TARGET,
        bound=TARGET,
        about=ABOUT,
        misses=_misses(predictions),
        alternatives=_alternatives(rows, wanted) if alternatives else (),
    )


def fit(rows: Measurements, network: Network, models: Sequence[str] = tuple(hkbu.MODELS)) -> float:
    """Return the efficiency of the limiting link that fits the 8-GPU rows of these models best."""
    known = [row for row in calibration_rows(rows, network) if row.model in models]

    def errors(tried: Calibration) -> list[float]:
        return [prediction.error for prediction in hkbu.predictions(rows, network, tried, known)]

    return parts.fit_efficiency(calibrated(network, 1.0), network.link, errors)


def calibrated(network: Network, efficiency: float) -> Calibration:
    """Return the network's calibration with this efficiency on its limiting link, and nothing else fitted."""
    bare = replace(parts.calibration(network.part), collective_launch_s=Duration(0))
    for link in ("intra_node", "inter_node"):
        bare = parts.with_efficiency(bare, link, efficiency if link == network.link else 1.0)
    return bare


def calibration_rows(rows: Measurements, network: Network) -> tuple[Row, ...]:
    """Return the rows that the bandwidth is fitted to."""
    return _rows(rows, network, (CALIBRATION_GPUS,))


def parameter(rows: Measurements, network: Network, efficiency: float) -> Parameter:
    """Return the fitted efficiency with its unit and rows."""
    return Parameter(
        part=network.part,
        key=f"{network.link}.efficiency",
        value=efficiency,
        text=f"{efficiency:.4f} ({efficiency * network.nominal_gbit_per_s:.2f} Gbit/s of payload)",
        how="least squares",
        rows=calibration_rows(rows, network),
    )


def _rows(rows: Measurements, network: Network, gpus: tuple[int, ...]) -> tuple[Row, ...]:
    return rows.select(hkbu.SOURCE, network=network.column, method=METHOD, gpus=gpus)


def _predictions(
    rows: Measurements, wanted: dict[Network, tuple[Row, ...]], fitted: dict[Network, float]
) -> tuple[Prediction, ...]:
    return tuple(
        prediction
        for network, efficiency in fitted.items()
        for prediction in hkbu.predictions(rows, network, calibrated(network, efficiency), wanted[network])
    )


def _misses(predictions: tuple[Prediction, ...]) -> str:
    slow = max(p.error for p in predictions if p.row.model == "ResNet-50")
    fast = max(-p.error for p in predictions if p.row.model == "BERT-Base")
    return MISSES.format(slow=f"{slow:.1%}", fast=f"{fast:.1%}")


def _alternatives(rows: Measurements, wanted: dict[Network, tuple[Row, ...]]) -> tuple[Alternative, ...]:
    per_model = tuple(
        prediction
        for model in hkbu.MODELS
        for prediction in _predictions(
            rows,
            {network: tuple(row for row in wanted[network] if row.model == model) for network in NETWORKS},
            {network: fit(rows, network, [model]) for network in NETWORKS},
        )
    )
    return (alternative("one bandwidth a model", "the same rows", per_model),)
