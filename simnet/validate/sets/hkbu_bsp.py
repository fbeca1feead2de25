"""HKBU without overlap: one fused all-reduce after backward; the payload bandwidth from the 8-GPU rows alone."""

from collections.abc import Iterator
from dataclasses import replace

from simnet.validate.outcome import Alternative, Limit, Prediction, alternative
from simnet.validate.sets.hkbu import BSP, CALIBRATED, MODELS, NETWORKS, Network, bsp, compute_parameters, rows
from simnet.validate.study import Fit, Published, all_predictions

PLACE = 1
TARGET = Limit(mean=0.03, worst=0.06)


def published() -> Published:
    """Calibrate on 8 GPUs, predict 16 and 32."""
    known = [row for network in NETWORKS for row in rows(network, method=BSP, gpus=CALIBRATED)]
    fitted = (parameter for network in NETWORKS for parameter in bsp(network).parameters)
    return Published(
        title="HKBU without overlap (BSP)",
        unit="ms",
        target=TARGET,
        bound=TARGET,
        parameters=(*compute_parameters(known), *fitted),
        predictions=all_predictions(map(bsp, NETWORKS)),
        alternatives=_alternatives,
    )


def _alternatives() -> Iterator[Alternative]:
    found = [one for model in MODELS for network in NETWORKS for one in _of_model(network, model)]
    yield alternative("one bandwidth a model", "the same rows", found)


def _of_model(network: Network, model: str) -> tuple[Prediction, ...]:
    study = bsp(network)
    (fit,) = study.fits
    assert isinstance(fit, Fit)
    alone = replace(fit, rows=tuple(row for row in fit.rows if row.model == model))
    wanted = tuple(row for row in study.predicts if row.model == model)
    return replace(study, fits=(alone,), predicts=wanted).predictions
