"""1-bit Adam, Fig 5a: throughput of dense Adam, calibrated on its points of two and four nodes."""

from collections.abc import Iterator
from dataclasses import replace

from simnet.calibration.comparison import mean_error
from simnet.validation.outcome import Alternative, Limit, Outcome, Prediction
from simnet.validation.published import one_bit_adam as paper
from simnet.validation.published import one_bit_models as models
from simnet.validation.shipped_parts import PublishedNetwork, with_value
from simnet.validation.study import Study, all_predictions

ORDER = 7
TARGET = Limit(mean=0.10)
MOST_DOUBLINGS = 6


def evaluate() -> Outcome:
    """Fit algorithm and bandwidths to the points of two and four nodes, predict the others."""
    studies = {network: models.chosen(network, models.dense_adam) for network in paper.NETWORKS}
    return Outcome(
        title="1-bit Adam, Fig 5a: dense Adam",
        unit="ms",
        target=TARGET,
        bound=TARGET,
        parameters=(
            *(paper.compute_parameter(network) for network in paper.NETWORKS),
            *(parameter for network in paper.NETWORKS for parameter in models.single_node(network).parameters),
            *(parameter for study in studies.values() for parameter in study.parameters),
        ),
        predictions=all_predictions(studies.values()),
        facts={
            "spreads": {network.label: models.disagreements(network, models.dense_adam) for network in paper.NETWORKS},
            "mean_of_any": _mean_of_any(),
            "table_s": {network.label: paper.table_sum_s(network, 1) for network in paper.NETWORKS},
            "figure_s": {
                network.label: paper.figure_s(paper.row_in_table_and_figure(network)) for network in paper.NETWORKS
            },
        },
        make_alternatives=_alternatives,
    )


def _mean_of_any() -> float:
    """Return the largest mean error on a network under any algorithm."""
    return max(
        mean_error(models.dense_adam(network, algorithm).predictions)
        for network in paper.NETWORKS
        for algorithm in models.ALGORITHMS
    )


def _alternatives() -> Iterator[Alternative]:
    for network in paper.NETWORKS:
        for algorithm in models.disagreements(network, models.dense_adam):
            yield Alternative(
                f"{network.label}: {algorithm}", "the same rows", models.dense_adam(network, algorithm).predictions
            )
    for network in paper.NETWORKS:
        study = models.dense_adam(network, "ring")
        yield Alternative(
            f"{network.label}: ring, whose change from two to four nodes goes on",
            "the same rows",
            replace(study, initial=_with_trend(study), fits=()).predictions,
        )
    for network in paper.NETWORKS:
        yield Alternative(
            f"{network.label}: one bandwidth, that of Table 1", "Table 1, two rows", _of_the_same_rows(network)
        )


def _with_trend(study: Study) -> object:
    """Return the fitted calibration with more points, each as far from the one before as the second from the first."""
    two, four = models.efficiencies(study)
    found = study.fitted
    for doubling in range(2, MOST_DOUBLINGS + 1):
        found = with_value(found, f"by_nodes.{2**doubling}.efficiency", two * (four / two) ** (doubling - 1))
    return found


def _of_the_same_rows(network: PublishedNetwork) -> tuple[Prediction, ...]:
    predicted = models.chosen(network, models.dense_adam).held_out
    return models.one_rate_adam(network).compare(predicted)
