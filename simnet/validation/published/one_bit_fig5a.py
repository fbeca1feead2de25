"""1-bit Adam, Fig 5a: throughput of the compression stage, its exchange calibrated on two and four nodes."""

from collections.abc import Iterator
from dataclasses import replace

from simnet.validation.outcome import Alternative, Limit, Outcome, Prediction
from simnet.validation.published import one_bit_adam as paper
from simnet.validation.published import one_bit_models as models
from simnet.validation.study import Study, all_predictions

ORDER = 4
TARGET = Limit(mean=0.12)


def evaluate() -> Outcome:
    """Calibrate codec and exchange on the points of one, two and four nodes, predict the others."""
    ethernet, infiniband = (
        models.compression_stage(network).value("kernels.compress") for network in (paper.ETHERNET, paper.INFINIBAND)
    )
    return Outcome(
        title="1-bit Adam, Fig 5a: compression stage",
        unit="ms",
        target=TARGET,
        bound=TARGET,
        parameters=models.parameters_of_both_networks(),
        predictions=all_predictions(map(models.compression_stage, paper.NETWORKS)),
        facts={"codec_ratio": ethernet / infiniband},
        make_alternatives=_alternatives,
    )


def _alternatives() -> Iterator[Alternative]:
    stage = models.compression_stage(paper.ETHERNET)
    ethernet = paper.ETHERNET.label
    rest = tuple(fit for fit in stage.fits if not fit.key.endswith("poll_cost"))
    yield Alternative(
        f"{ethernet}: no polling", "points of one, two and four nodes", replace(stage, fits=rest).predictions
    )
    linear = models.send_cost_fit(paper.ETHERNET, stage.train[-1], "message_cost")
    yield Alternative(
        f"{ethernet}: linear cost per message", "the same rows", replace(stage, fits=(*rest, linear)).predictions
    )
    yield Alternative(
        "one bandwidth, that of Table 1, the same rows",
        "single-node and largest point of each network",
        [one for network in paper.NETWORKS for one in _one_rate_on(models.compression_stage(network))],
    )


def _one_rate_on(stage: Study) -> tuple[Prediction, ...]:
    network = next(network for network in paper.NETWORKS if network.label == stage.series(stage.held_out[0]))
    one_rate = models.one_rate_stage(network)
    return one_rate.compare(row for row in stage.held_out if row in one_rate.held_out)
