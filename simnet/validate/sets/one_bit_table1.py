"""1-bit Adam, Table 1: the fp16 all-reduce of BERT-Large, calibrated on two rows a network."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from simnet.comparison import mean_error
from simnet.validate.outcome import Alternative, Limit, Outcome
from simnet.validate.sets import one_bit_adam as paper
from simnet.validate.sets import one_bit_models as models
from simnet.validate.shipped import PublishedNetwork
from simnet.validate.study import Study, all_predictions

ORDER = 3
TARGET = Limit(mean=0.06)


def evaluate() -> Outcome:
    """Fit algorithm and bandwidth to two rows a network, predict the other multi-node rows."""
    studies = {network: _chosen(network) for network in paper.NETWORKS}
    ethernet = studies[paper.ETHERNET]
    return Outcome(
        title="1-bit Adam, Table 1: dense all-reduce",
        unit="ms",
        target=TARGET,
        bound=TARGET,
        parameters=tuple(parameter for study in studies.values() for parameter in study.parameters),
        predictions=all_predictions(studies.values()),
        facts={
            "spreads": {network.label: models.disagreements(network) for network in paper.NETWORKS},
            "fitted": ethernet.value("inter_node.efficiency") * paper.ETHERNET.nominal_gbit_per_s,
            "iperf": float(ethernet.train[0].effective_gbps),
        },
        make_alternatives=_alternatives,
    )


def _chosen(network: PublishedNetwork) -> Study:
    return models.dense_all_reduce(network, models.chosen_algorithm(network))


def _alternatives() -> Iterator[Alternative]:
    for network in paper.NETWORKS:
        for algorithm in models.disagreements(network):
            found = models.dense_all_reduce(network, algorithm).predictions
            yield Alternative(f"{network.label}: {algorithm}", "the same rows", found)
    yield from map(_worst_pair, paper.NETWORKS)
    yield _with_single_node_row()


def _worst_pair(network: PublishedNetwork) -> Alternative:
    """Return the chosen algorithm with the pair of fitted rows that gives the largest error."""
    study = _chosen(network)
    points = sorted((*study.train, *study.held_out), key=lambda row: row.gpus)
    pairs = list(combinations(points, 2))
    found = [study.refitted(pair).compare(row for row in points if row not in pair) for pair in pairs]
    worst = max(found, key=mean_error)
    return Alternative(
        f"{network.label}: {models.chosen_algorithm(network)}", f"the worst of all {len(pairs)} pairs of rows", worst
    )


def _with_single_node_row() -> Alternative:
    """Return InfiniBand with NVLink fitted to the single-node row, and the algorithm that the rule then chooses."""
    start = models.with_fitted_nvlink(paper.INFINIBAND, paper.unfitted(paper.INFINIBAND))
    studies = {
        algorithm: replace(models.dense_all_reduce(paper.INFINIBAND, algorithm), initial=start)
        for algorithm in models.ALGORITHMS
    }
    best = min(studies, key=lambda algorithm: models.disagreement(studies[algorithm]))
    return Alternative(
        f"{paper.INFINIBAND.label}: NVLink fitted, then the rule chooses {best}",
        "the same rows and the single-node row",
        studies[best].predictions,
    )
