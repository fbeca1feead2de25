"""HiPress on its authors' cluster: 16 nodes of two GTX 1080 Ti, compressed parameter servers on all nodes."""

from collections.abc import Iterator
from dataclasses import replace

from simnet.cluster.hardware import Calibration, LinkCalibration
from simnet.validation.outcome import Alternative, Limit, Outcome
from simnet.validation.published import hipress, hkbu
from simnet.validation.shipped_parts import cached
from simnet.validation.study import Study

ORDER = 13
NODES = hipress.LOCAL
PCIE_GBIT_PER_S = NODES.gbit_per_s[0]


def evaluate() -> Outcome:
    """Calibrate on dense rows of one, two and four nodes, predict the other dense rows and all compressed ones."""
    study = _study()
    (pcie,) = hkbu.bsp(hkbu.INFINIBAND).parameters
    return Outcome(
        title="HiPress on 16 nodes of two GPUs",
        unit="ms",
        bound=Limit(mean=0.09, worst=0.18),
        parameters=(
            *hipress.compute_parameters(NODES),
            replace(pcie, part="this set only"),
            *study.parameters,
        ),
        predictions=study.predictions,
        facts={
            "ring": hipress.RING,
            "onebit": hipress.ONEBIT,
            "batches": hipress.printed_batches(),
            "speedups": hipress.speedups(study),
            "gathered": _most_gathered(),
        },
        make_alternatives=_alternatives,
    )


@cached
def _study() -> Study:
    pcie = LinkCalibration(efficiency=hkbu.bsp(hkbu.INFINIBAND).value(hkbu.EFFICIENCY))
    return hipress.study(NODES, Calibration(intra_node=pcie), hipress.fits(NODES))


def _alternatives() -> Iterator[Alternative]:
    pcie = hipress.ring_fit(NODES, hkbu.EFFICIENCY, 1, PCIE_GBIT_PER_S)
    fits = (pcie, *hipress.fits(NODES)[1:])
    yield Alternative(
        "PCIe fitted to one node in place of backward's slowdown",
        "the same rows",
        hipress.study(NODES, Calibration(), fits).predictions,
    )
    yield from hipress.other_topologies(_study(), NODES)
    yield Alternative(
        "each tensor exchanged by itself",
        "the same rows",
        hipress.with_strategy(_study(), NODES, {"bucketing": "per_tensor"}).predictions,
    )


def _most_gathered() -> float:
    """Return how many times its published time a compressed row takes at most where every GPU gathers from all."""
    found = hipress.with_strategy(_study(), NODES, {"topology": "gather"}).predictions
    return max(1 + one.error for one in found)
