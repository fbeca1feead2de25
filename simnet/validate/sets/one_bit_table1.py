"""1-bit Adam, Table 1: the fp16 all-reduce of BERT-Large, calibrated on two rows a network."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from simnet.comparison import mean_error
from simnet.validate.outcome import Alternative, Limit, alternative
from simnet.validate.sets.one_bit_adam import (
    ETHERNET,
    INFINIBAND,
    LAWS,
    NETWORKS,
    Network,
    bare,
    chosen,
    known_rows,
    law,
    laws,
    refitted,
    spread,
    with_single_node,
)
from simnet.validate.study import Published, Study, all_predictions

PLACE = 3
TARGET = Limit(mean=0.06)


def published() -> Published:
    """Choose the law and the bandwidth by two rows a network, predict the other multi-node rows."""
    studies = {network: _chosen(network) for network in NETWORKS}
    ethernet = studies[ETHERNET]
    return Published(
        title="1-bit Adam, Table 1: dense all-reduce",
        unit="ms",
        target=TARGET,
        bound=TARGET,
        parameters=tuple(parameter for study in studies.values() for parameter in study.parameters),
        predictions=all_predictions(studies.values()),
        facts={
            "spreads": {network.label: laws(network) for network in NETWORKS},
            "fitted": ethernet.value("inter_node.efficiency") * ETHERNET.nominal_gbit_per_s,
            "iperf": float(known_rows(ethernet)[0].effective_gbps),
        },
        alternatives=_alternatives,
    )


def _chosen(network: Network) -> Study:
    return law(network, chosen(network))


def _alternatives() -> Iterator[Alternative]:
    for network in NETWORKS:
        for algorithm in laws(network):
            found = law(network, algorithm).predictions
            yield alternative(f"{network.label}: {algorithm}", "the same rows", found)
    yield from map(_worst_pair, NETWORKS)
    yield _with_single_node_row()


def _worst_pair(network: Network) -> Alternative:
    """Return the chosen law under the pair of calibration rows that serves it worst."""
    study = _chosen(network)
    points = sorted((*known_rows(study), *study.predicts), key=lambda row: row.gpus)
    pairs = list(combinations(points, 2))
    found = [refitted(study, pair).of(row for row in points if row not in pair) for pair in pairs]
    worst = max(found, key=mean_error)
    return alternative(f"{network.label}: {chosen(network)}", f"the worst of all {len(pairs)} pairs of rows", worst)


def _with_single_node_row() -> Alternative:
    """Let the rule choose on InfiniBand with NVLink calibrated on the single-node row."""
    start = with_single_node(INFINIBAND, bare(INFINIBAND))
    studies = {algorithm: replace(law(INFINIBAND, algorithm), start=start) for algorithm in LAWS}
    best = min(studies, key=lambda algorithm: spread(studies[algorithm]))
    return alternative(
        f"{INFINIBAND.label}: NVLink fitted, then the rule chooses {best}",
        "the same rows and the single-node row",
        studies[best].predictions,
    )
