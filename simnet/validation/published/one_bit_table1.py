"""1-bit Adam, Table 1: the fp16 all-reduce of BERT-Large, calibrated on two and four nodes of a network."""

from collections.abc import Iterator
from dataclasses import replace

from simnet.validation.outcome import Alternative, Limit, Outcome
from simnet.validation.published import one_bit_adam as paper
from simnet.validation.published import one_bit_models as models
from simnet.validation.shipped_parts import with_value
from simnet.validation.study import Study, all_predictions

ORDER = 3
TARGET = Limit(mean=0.06)


def evaluate() -> Outcome:
    """Fit algorithm and bandwidths to the plain rows of two and four nodes, predict the others."""
    studies = {network: models.chosen(network, models.dense_all_reduce) for network in paper.NETWORKS}
    ethernet = studies[paper.ETHERNET]
    single = [parameter for network in paper.NETWORKS for parameter in models.single_node(network).parameters]
    return Outcome(
        title="1-bit Adam, Table 1: dense all-reduce",
        unit="ms",
        target=TARGET,
        bound=TARGET,
        parameters=(*single, *(parameter for study in studies.values() for parameter in study.parameters)),
        predictions=all_predictions(studies.values()),
        facts={
            "spreads": {
                network.label: models.disagreements(network, models.dense_all_reduce) for network in paper.NETWORKS
            },
            "fitted": models.efficiencies(ethernet)[0] * paper.ETHERNET.nominal_gbit_per_s,
            "iperf": float(ethernet.train[0].effective_gbps),
        },
        make_alternatives=_alternatives,
    )


def _alternatives() -> Iterator[Alternative]:
    for network in paper.NETWORKS:
        for algorithm in models.disagreements(network, models.dense_all_reduce):
            found = models.dense_all_reduce(network, algorithm).predictions
            yield Alternative(f"{network.label}: {algorithm}", "the same rows", found)
    for network in paper.NETWORKS:
        one_rate = models.one_rate_table(network).predictions
        yield Alternative(
            f"{network.label}: the chosen algorithm, one bandwidth", "smallest and largest row, 16 samples", one_rate
        )
    nominal = _at_nominal_nvlink(models.chosen(paper.INFINIBAND, models.dense_all_reduce))
    yield Alternative(f"{paper.INFINIBAND.label}: NVLink at its nominal rate", "the same rows", nominal.predictions)


def _at_nominal_nvlink(study: Study) -> Study:
    return replace(study, initial=with_value(study.initial, "intra_node.efficiency", 1.0))
