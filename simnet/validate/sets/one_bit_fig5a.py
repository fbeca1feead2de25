"""1-bit Adam, Fig 5a: throughput of the compression stage, codec and one network cost calibrated on two points each."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from simnet.comparison import mean_error
from simnet.validate.outcome import Alternative, Limit, Outcome, Prediction
from simnet.validate.published_rows import PublishedRow
from simnet.validate.sets import one_bit_adam as paper
from simnet.validate.sets import one_bit_models as models
from simnet.validate.shipped import PublishedNetwork, cached
from simnet.validate.study import Study, all_predictions

ORDER = 4
TARGET = Limit(mean=0.12)
FORMS = {"linear": "message_cost", "polling": "poll_cost"}
"""Key of the fitted cost of sends by its form: linear in their number, or quadratic since each polls all others."""


def evaluate() -> Outcome:
    """Calibrate on the smallest and the largest point of each network, predict the points between."""
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
        facts={"pairs": pairs_met, "codec_ratio": ethernet / infiniband},
        make_alternatives=_alternatives,
    )


def _alternatives() -> Iterator[Alternative]:
    """Yield the model with a constant cost per message, for two choices of the fitted points."""
    for smaller, point in enumerate(("single-node", "two-node")):
        found: list[Prediction] = []
        for network in paper.NETWORKS:
            points = paper.figure_rows(network, "1-bit Adam")
            found += _fitted(network, (points[smaller], points[-1]), FORMS["linear"]).predictions
        yield Alternative("linear cost per message", f"{point} and largest point of each network", found)


def _fitted(network: PublishedNetwork, pair: tuple[PublishedRow, ...], cost: str) -> Study:
    """Return the stage with codec and a cost of sends fitted to two points, and the other points held out."""
    fits = (models.codec_fit(network, pair[0]), models.send_cost_fit(network, pair[1], cost))
    others = tuple(row for row in paper.figure_rows(network, "1-bit Adam") if row not in pair)
    return replace(models.compression_stage(network), fits=(fits,), held_out=others)


@cached
def pairs_met() -> dict[str, int]:
    """Return how many choices of two calibration points on Ethernet lead to errors within the target.

    Returns:
        "all": the number of choices; "linear" and "polling": those within the target, by the form of the cost of sends;
        "without_cost": those within the target whose fitted linear cost is 0.
    """
    pairs = list(combinations(paper.figure_rows(paper.ETHERNET, "1-bit Adam"), 2))
    met = {form: [_fitted(paper.ETHERNET, pair, key) for pair in pairs] for form, key in FORMS.items()}
    met = {form: [study for study in studies if _is_met(study)] for form, studies in met.items()}
    without_cost = sum(study.value(FORMS["linear"]) == 0 for study in met["linear"])
    return {"all": len(pairs), "without_cost": without_cost} | {form: len(studies) for form, studies in met.items()}


def _is_met(study: Study) -> bool:
    assert TARGET.mean is not None
    return mean_error(study.predictions) <= TARGET.mean
