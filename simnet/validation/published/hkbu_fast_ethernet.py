"""HKBU on 100 Gbit Ethernet over TCP: the bandwidth of the NICs by number of nodes, judged on rows that suggested none.

NCCL over TCP reaches a fifth of such NICs, and less on more nodes. The form (two and four nodes are fitted, beyond them
the bandwidth stays) comes from another publication, the PCIe and the launch from other networks of this one.
"""

from collections.abc import Iterator
from dataclasses import replace

from simnet.validation import extrapolation
from simnet.validation.outcome import Alternative, Limit, Outcome
from simnet.validation.published import hkbu
from simnet.validation.shipped_parts import cached, with_value
from simnet.validation.study import Fit, Study

ORDER = 2.5
NETWORK = hkbu.FAST_ETHERNET
CALIBRATED = {2: 8, 4: 16}
"""GPUs of the fitted rows by number of nodes."""
METHODS = (hkbu.BSP, hkbu.WFBP)
LAUNCH = "collective_launch"


def evaluate() -> Outcome:
    """Calibrate on the rows without overlap of 8 and 16 GPUs, predict the other rows of all methods and sizes."""
    study = by_nodes()
    return Outcome(
        title="HKBU on 100 Gbit Ethernet",
        unit="ms",
        bound=Limit(mean=0.06, worst=0.15),
        parameters=(
            *hkbu.compute_parameters(study.held_out),
            *hkbu.overlapped(hkbu.INFINIBAND).parameters,
            *hkbu.overlapped(hkbu.ETHERNET).parameters[1:],
            *study.parameters,
        ),
        predictions=study.predictions,
        facts={"rates": [study.value(_key(nodes)) * NETWORK.nominal_gbit_per_s for nodes in CALIBRATED]},
        make_alternatives=_alternatives,
    )


@cached
def by_nodes() -> Study:
    """Return the study with a bandwidth for two and one for four nodes."""
    fits = tuple(
        Fit(
            part=NETWORK.part,
            key=_key(nodes),
            how="least squares",
            rows=hkbu.rows(NETWORK, method=hkbu.BSP, gpus=gpus),
            text=lambda part: f"{part:.4f} ({part * NETWORK.nominal_gbit_per_s:.2f} Gbit/s of payload)",
        )
        for nodes, gpus in CALIBRATED.items()
    )
    start = hkbu.with_pcie(hkbu.bsp(NETWORK).initial)
    start = with_value(start, LAUNCH, hkbu.overlapped(hkbu.ETHERNET).value(LAUNCH))
    return _study(replace(hkbu.bsp(NETWORK), initial=start, fits=fits))


def _study(study: Study) -> Study:
    known = {row for fit in study.fits for row in fit.rows}
    wanted = hkbu.rows(NETWORK, method=METHODS)
    held_out = tuple(row for row in wanted if row.gpus > 1 and row not in known)
    return extrapolation.with_range(replace(study, held_out=held_out))


def _key(nodes: int) -> str:
    return f"by_nodes.{nodes}.efficiency"


def _alternatives() -> Iterator[Alternative]:
    study = by_nodes()
    yield Alternative(
        "the model above, 32 GPUs only", "the same rows", [one for one in study.predictions if one.row.gpus == 32]
    )
    one_rate = replace(study, fits=(replace(study.fits[0], key="inter_node.efficiency"),))
    yield Alternative("one bandwidth, from 8 GPUs alone", "8 GPUs", one_rate.predictions)
    trend = study.fitted
    two, four = (study.value(_key(nodes)) for nodes in CALIBRATED)
    trend = with_value(trend, _key(8), four * four / two)
    yield Alternative(
        "the change from two to four nodes goes on", "the same rows", replace(study, initial=trend, fits=()).predictions
    )
