"""HKBU without overlap: one fused all-reduce after backward, its bandwidth fitted to the 8-GPU rows."""

from collections.abc import Iterator

from simnet.validation.outcome import Alternative, Limit, Outcome, Prediction
from simnet.validation.published import hkbu
from simnet.validation.shipped_parts import PublishedNetwork
from simnet.validation.study import all_predictions

ORDER = 1
TARGET = Limit(mean=0.03, worst=0.06)


def evaluate() -> Outcome:
    """Calibrate on 8 GPUs, predict 16 and 32."""
    known = [row for network in hkbu.NETWORKS for row in hkbu.rows(network, method=hkbu.BSP, gpus=hkbu.CALIBRATED)]
    fitted = (parameter for network in hkbu.NETWORKS for parameter in hkbu.bsp(network).parameters)
    return Outcome(
        title="HKBU without overlap (BSP)",
        unit="ms",
        target=TARGET,
        bound=TARGET,
        parameters=(*hkbu.compute_parameters(known), *fitted),
        predictions=all_predictions(map(hkbu.bsp, hkbu.NETWORKS)),
        make_alternatives=_alternatives,
    )


def _alternatives() -> Iterator[Alternative]:
    found = [one for model in hkbu.MODELS for network in hkbu.NETWORKS for one in _of_model(network, model)]
    yield Alternative("one bandwidth a model", "the same rows", found)


def _of_model(network: PublishedNetwork, model: str) -> tuple[Prediction, ...]:
    study = hkbu.bsp(network)
    alone = study.refitted(row for row in study.train if row.model == model)
    return alone.compare(row for row in study.held_out if row.model == model)
