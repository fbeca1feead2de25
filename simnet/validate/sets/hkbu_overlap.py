"""HKBU with overlap: an all-reduce for each tensor (WFBP) or merged group (MG-WFBP), overlapped with backward."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from simnet import numeric
from simnet.units import Duration
from simnet.validate.outcome import Alternative, Limit, Outcome
from simnet.validate.published_rows import PublishedRow
from simnet.validate.sets import hkbu
from simnet.validate.shipped import PublishedNetwork
from simnet.validate.study import Study, all_predictions

ORDER = 2
TARGET = Limit(mean=0.08)


def evaluate() -> Outcome:
    """Calibrate the bandwidth on 8-GPU BSP rows and the launch on 8-GPU WFBP rows, predict the rest."""
    studies = [hkbu.overlapped(network) for network in hkbu.NETWORKS]
    compute = hkbu.compute_parameters(row for study in studies for row in study.held_out)
    predictions = all_predictions(studies)
    assert TARGET.mean is not None
    past = sum(abs(prediction.error) > TARGET.mean for prediction in predictions)
    return Outcome(
        title="HKBU with overlap (WFBP, MG-WFBP)",
        unit="ms",
        target=TARGET,
        bound=TARGET,
        parameters=(*compute, *(parameter for study in studies for parameter in study.parameters)),
        predictions=predictions,
        facts={"past": past, "wfbp": f"{hkbu.INFINIBAND.label}, {hkbu.WFBP}"},
        make_alternatives=_alternatives,
    )


def _alternatives() -> Iterator[Alternative]:
    studies = [hkbu.overlapped(network) for network in hkbu.NETWORKS]
    yield Alternative(
        "the model above, 16 and 32 GPUs only",
        "the same rows",
        [one for one in all_predictions(studies) if one.row.gpus != hkbu.CALIBRATED],
    )
    yield Alternative(
        "launch that does not grow with the ring",
        "the same rows",
        all_predictions(_without_latency(network) for network in hkbu.NETWORKS),
    )
    slowed = {network: _with_slowdown(network) for network in hkbu.NETWORKS}
    slowdowns = ", ".join(f"{network.label} {study.fitted.backward_slowdown:.2f}" for network, study in slowed.items())
    yield Alternative(
        f"with backward_slowdown ({slowdowns})",
        "two parameters a network, 8-GPU WFBP and MG-WFBP rows; 16 and 32 GPUs predicted",
        all_predictions(slowed.values()),
    )


def _larger(study: Study) -> list[PublishedRow]:
    return [row for row in study.held_out if row.gpus != hkbu.CALIBRATED]


def _without_latency(network: PublishedNetwork) -> Study:
    study = hkbu.overlapped(network)
    links = {
        link: structs.replace(getattr(study.fitted, link), alpha_s=Duration(0)) for link in ("intra_node", "inter_node")
    }
    return replace(study, initial=structs.replace(study.fitted, **links), fits=study.fits[1:])


def _with_slowdown(network: PublishedNetwork) -> Study:
    """Fit launch and slowdown of backward together to the six overlapped 8-GPU rows."""
    study = hkbu.overlapped(network)
    known = hkbu.rows(network, method=hkbu.OVERLAPPED, gpus=hkbu.CALIBRATED)

    def tried(parameters: Sequence[float]) -> Study:
        launch, slowdown = (abs(value) for value in parameters)
        launch_s = Duration(launch * study.value("collective_launch"))
        start = structs.replace(study.fitted, collective_launch_s=launch_s, backward_slowdown=1 + slowdown)
        return replace(study, initial=start, fits=(), held_out=tuple(_larger(study)))

    def residuals(parameters: Sequence[float]) -> list[float]:
        return [one.error for one in tried(parameters).compare(known)]

    return tried(numeric.least_squares(residuals, [0.5, 0.5]))
