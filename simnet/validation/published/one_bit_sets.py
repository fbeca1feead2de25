"""The sets of 1-bit Adam: Table 1, Fig 5a dense, compressed and their quotient, Fig 9, and hours end to end."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs

from simnet.calibration.comparison import mean_error, worst_error, worst_row
from simnet.cluster import network_costs
from simnet.cluster.hardware import Calibration
from simnet.strategies import AnyStrategy
from simnet.validation import published_rows
from simnet.validation.outcome import Alternative, Limit, Outcome, Prediction
from simnet.validation.published import one_bit_adam as paper
from simnet.validation.published.one_bit_adam import ETHERNET, INFINIBAND, NETWORKS
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import PublishedNetwork, with_value
from simnet.validation.study import FreeNumber, Study, all_predictions
from simnet.workload import training_step

SAME = "the same rows"
PARTS = {"forward": "forward", "backward_else": "backward", "step": "optimizer"}
MOST_DOUBLINGS = 6
FIG_9 = "Fig 9 (tc-shaped)"
PART = "inter_node.efficiency"
"""This key holds the fraction of the shaped rate that the dense ring reaches, while it is fitted."""
ACCUMULATION = 4
STEPS = 152_000
"""Steps of phase 1, from memory of the paper's table: no readable source was found, and the page says so."""
DENSE_STEPS = 23_000
"""Dense steps: freeze_step of BERT-Large, sequence 128, in DeepSpeed's docs/_tutorials/onebit-adam.md."""


def table() -> Outcome:
    """Fit algorithm and bandwidths to the plain rows of two and four nodes, predict the others."""
    studies = [paper.chosen(network, paper.dense_all_reduce) for network in NETWORKS]

    def alternatives() -> Iterator[Alternative]:
        yield from _other_algorithms(paper.dense_all_reduce)
        for network in NETWORKS:
            text = f"{network.label}: the chosen algorithm, one bandwidth"
            yield Alternative(text, "smallest and largest row, 16 samples", paper.one_rate_table(network).predictions)
        nominal = replace(studies[1], initial=with_value(studies[1].initial, paper.NVLINK, 1.0))
        yield Alternative(f"{INFINIBAND.label}: NVLink at its nominal rate", SAME, nominal.predictions)

    return Outcome(
        title="1-bit Adam, Table 1: dense all-reduce",
        unit="ms",
        target=Limit(mean=0.06),
        bound=Limit(mean=0.06),
        parameters=(
            *(parameter for network in NETWORKS for parameter in paper.single_node(network).parameters),
            *(parameter for study in studies for parameter in study.parameters),
        ),
        predictions=all_predictions(studies),
        facts={
            "spreads": {network.label: paper.disagreements(network, paper.dense_all_reduce) for network in NETWORKS},
            "fitted": paper.efficiencies(studies[0])[0] * ETHERNET.nominal_gbit_per_s,
            "iperf": float(studies[0].train[0].effective_gbps),
        },
        make_alternatives=alternatives,
    )


def _other_algorithms(make: paper.DenseStudy) -> Iterator[Alternative]:
    for network in NETWORKS:
        for algorithm in paper.disagreements(network, make):
            yield Alternative(f"{network.label}: {algorithm}", SAME, make(network, algorithm).predictions)


def dense_adam() -> Outcome:
    """Fit algorithm and bandwidths to the points of two and four nodes of Fig 5a, predict the others."""
    studies = [paper.chosen(network, paper.dense_adam) for network in NETWORKS]
    of_any = [
        paper.dense_adam(network, algorithm).predictions for network in NETWORKS for algorithm in paper.ALGORITHMS
    ]
    # The point whose set-up is in Table 1, too.
    in_both = {network: paper.figure_rows(network, "Adam") for network in NETWORKS}

    def alternatives() -> Iterator[Alternative]:
        yield from _other_algorithms(paper.dense_adam)
        for network in NETWORKS:
            study = paper.dense_adam(network, "ring")
            text = f"{network.label}: ring, whose change from two to four nodes goes on"
            yield Alternative(text, SAME, study.fixed(_with_trend(study)).predictions)
        for network, study in zip(NETWORKS, studies, strict=True):
            one_rate = paper.one_rate_adam(network).compare(study.held_out)
            yield Alternative(f"{network.label}: one bandwidth, that of Table 1", "Table 1, two rows", one_rate)

    return Outcome(
        title="1-bit Adam, Fig 5a: dense Adam",
        unit="ms",
        target=Limit(mean=0.10),
        bound=Limit(mean=0.10),
        parameters=(
            *map(paper.compute_parameter, NETWORKS),
            *(parameter for network in NETWORKS for parameter in paper.single_node(network).parameters),
            *(parameter for study in studies for parameter in study.parameters),
        ),
        predictions=all_predictions(studies),
        facts={
            "spreads": {network.label: paper.disagreements(network, paper.dense_adam) for network in NETWORKS},
            "mean_of_any": max(map(mean_error, of_any)),
            "table_s": {network.label: paper.table_sum_s(network, 1) for network in NETWORKS},
            "figure_s": {
                network.label: paper.figure_s(row)
                for network, rows in in_both.items()
                for row in rows
                if row.gpus == paper.GPUS_IN_TABLE_AND_FIGURE
            },
        },
        make_alternatives=alternatives,
    )


def _with_trend(study: Study) -> Calibration:
    """Return the fitted calibration with more points, each as far from the one before as the second from the first."""
    two, four = paper.efficiencies(study)
    calibration: Calibration = study.fitted
    for doubling in range(2, MOST_DOUBLINGS + 1):
        calibration = with_value(
            calibration, f"by_nodes.{2**doubling}.efficiency", two * (four / two) ** (doubling - 1)
        )
    return calibration


def compression_stage() -> Outcome:
    """Calibrate codec and exchange on the points of one, two and four nodes of Fig 5a, predict the others."""
    studies = [paper.compression_stage(network) for network in NETWORKS]
    ethernet, infiniband = (study.value("kernels.compress") for study in studies)

    def alternatives() -> Iterator[Alternative]:
        stage, label = studies[0], ETHERNET.label
        rest = tuple(fit for fit in stage.fits if not fit.key.endswith("poll_cost"))
        without = replace(stage, fits=rest)
        yield Alternative(f"{label}: no polling", "points of one, two and four nodes", without.predictions)
        linear = paper.send_cost_fit(ETHERNET, stage.train[-1:], "message_cost")
        with_cost = replace(stage, fits=(*rest, linear))
        yield Alternative(f"{label}: linear cost per message", SAME, with_cost.predictions)
        one_rate = [paper.one_rate_stage(network) for network in NETWORKS]
        yield Alternative(
            "one bandwidth, that of Table 1, the same rows",
            "single-node and largest point of each network",
            [
                prediction
                for study, other in zip(studies, one_rate, strict=True)
                for prediction in other.compare(row for row in study.held_out if row in other.held_out)
            ],
        )

    return Outcome(
        title="1-bit Adam, Fig 5a: compression stage",
        unit="ms",
        target=Limit(mean=0.12),
        bound=Limit(mean=0.12),
        parameters=tuple(parameter for network in NETWORKS for parameter in paper.stage_parameters(network)),
        predictions=all_predictions(studies),
        facts={"codec_ratio": ethernet / infiniband},
        make_alternatives=alternatives,
    )


# The speedup of the compression stage over Adam at the same number of GPUs in Fig 5a, nothing fitted to it.


def speedup() -> Outcome:
    """Predict the speedups of which at least one side is no calibrated point."""
    points = {network: _quotients(network) for network in NETWORKS}
    studies = {network: _speedup_study(network, quotients) for network, quotients in points.items()}
    predictions = all_predictions(studies.values())
    every = all_predictions(replace(study, held_out=tuple(points[network])) for network, study in studies.items())
    unmarked = [prediction for prediction in predictions if not prediction.label.endswith("*")]

    def alternatives() -> Iterator[Alternative]:
        of_one_rate: list[Prediction] = []
        for network, study in studies.items():
            dense, one_bit = paper.one_rate_adam(network), paper.one_rate_stage(network)
            of_one_rate += replace(study, predict=_quotient_of(dense, one_bit), grows=False).predictions
        yield Alternative(
            "one bandwidth for all numbers of nodes, that of Table 1",
            "Table 1, single-node and largest 1-bit point",
            of_one_rate,
        )
        yield Alternative("the model above, rows without * only", SAME, unmarked)

    return Outcome(
        title="1-bit Adam, Fig 5a: speedup",
        unit="x",
        target=Limit(mean=0.10, worst=0.20),
        bound=Limit(mean=0.10, worst=0.20),
        parameters=tuple(parameter for network in NETWORKS for parameter in paper.stage_parameters(network)),
        predictions=predictions,
        facts={
            "mean": mean_error(predictions),
            "mean_of_all": mean_error(every),
            "num_of_all": len(every),
            "both_fitted": sum(num_fitted == 2 for point in points.values() for num_fitted in point.values()),
            "unmarked": mean_error(unmarked),
            "networks": [network.label for network in NETWORKS],
        },
        make_alternatives=alternatives,
    )


def _quotients(network: PublishedNetwork) -> dict[PublishedRow, int]:
    """Return published speedups as rows, whose keys name the lines of both sides, and how many sides are calibrated."""
    one_bit = {row.gpus: row for row in paper.figure_rows(network, "1-bit Adam")}
    known = {row for parameter in paper.stage_parameters(network) for row in parameter.rows}
    quotients = {}
    for dense in paper.figure_rows(network, "Adam"):
        other = one_bit[dense.gpus]
        row = structs.replace(
            dense,
            key=f"{dense.key}, {other.key.partition(':')[2]}",
            method="1-bit Adam / Adam",
            metric="speedup (compression stage)",
            unit="x",
            value=other.value / dense.value,
        )
        quotients[row] = (dense in known) + (other in known)
    return quotients


def _speedup_study(network: PublishedNetwork, points: dict[PublishedRow, int]) -> Study:
    dense, stage = paper.chosen(network, paper.dense_adam), paper.compression_stage(network)
    return Study(
        initial=stage.fitted,
        predict=lambda calibration, row: dense.predict(calibration, row) / stage.predict(calibration, row),
        measured=lambda row: row.value,
        series=lambda _: network.label,
        label=lambda row: f"{network.label}, {row.gpus} GPUs{' *' if points[row] == 1 else ''}",
        held_out=tuple(row for row, num_fitted in points.items() if num_fitted < 2),
        grows=True,
    )


def _quotient_of(dense: Study, one_bit: Study) -> Callable[[Any, PublishedRow], float]:
    return lambda _, row: dense.predict(dense.fitted, row) / one_bit.predict(one_bit.fitted, row)


# Fig 9: the same speedup under a shaped network.


def shaped_network() -> Outcome:
    """Calibrate the dense ring on one row, predict the other rates."""
    rows = published_rows.load().select(paper.SOURCE, location=FIG_9)
    known = tuple(row for row in rows if row.effective_gbps == "1.0")
    fit = FreeNumber(key=PART, name="dense ring, part of the shaped rate", bounds=(0.2, 1.5), rows=known)
    study = Study(
        initial=structs.replace(paper.compression_stage(ETHERNET).fitted, by_nodes=(), libraries={}),
        fits=(fit,),
        predict=_shaped_speedup,
        measured=lambda row: row.value,
        series=lambda _: "Ethernet, shaped",
        label=lambda row: f"{row.network.replace('Mbps', 'Mbit/s')}, {row.gpus} GPUs",
    ).predicting(rows)
    codec = ("kernels.compress", "kernels.adam_update")
    return Outcome(
        title="1-bit Adam, Fig 9: shaped network",
        unit="x",
        target=Limit(mean=0.08, worst=0.15),
        bound=Limit(mean=0.16, worst=0.30),
        parameters=(
            *(parameter for parameter in paper.stage_parameters(ETHERNET) if parameter.key in codec),
            paper.compute_parameter(ETHERNET),
            *study.parameters,
        ),
        predictions=study.predictions,
        facts={
            "ratio": lambda: _byte_ratio(study),
            "least_worst": lambda: _least_worst(study),
            "part": study.value(PART),
            "mean": mean_error(study.predictions),
            "worst": worst_row(study.predictions),
        },
        make_alternatives=lambda: _other_shaped(study),
    )


def _shaped_speedup(calibration: Calibration, row: PublishedRow) -> float:
    """Return the speedup: a dense step at a fraction of the row's rate, over a compressed step at the full rate."""
    rate = float(row.effective_gbps) / ETHERNET.nominal_gbit_per_s

    def iteration_s(strategy: AnyStrategy, part: float) -> float:
        shaped = with_value(calibration, PART, rate * part)
        return paper.simulate_iteration(ETHERNET, shaped, row.nodes, strategy).iteration_s

    assert isinstance(calibration.inter_node.efficiency, float)
    return iteration_s(paper.dense("ring"), calibration.inter_node.efficiency) / iteration_s(paper.COMPRESSED, 1.0)


def _byte_ratio(study: Study) -> float:
    dense, compressed = (
        paper.simulate_iteration(ETHERNET, study.initial, study.held_out[0].nodes, strategy).nic_bytes_per_node
        for strategy in (paper.dense("ring"), paper.COMPRESSED)
    )
    return dense / compressed


def _least_worst(study: Study) -> float:
    """Return the least worst error that any one part of the rate can have on the rows that are predicted."""
    parts = [study.refitted([row]).value(PART) for row in study.held_out]
    steps = [min(parts) * (max(parts) / min(parts)) ** (step / 20) for step in range(21)]
    return min(worst_error(study.fixed(with_value(study.initial, PART, part)).predictions) for part in steps)


def _other_shaped(study: Study) -> Iterator[Alternative]:
    rows = {row.effective_gbps: row for row in (*study.train, *study.held_out)}
    known = [rows.pop("0.1"), rows.pop("1.0")]
    curve = tuple((float(row.effective_gbps), study.refitted([row]).value(PART)) for row in known)

    def by_rate(calibration: Calibration, row: PublishedRow) -> float:
        """Return the speedup with a part of the rate that changes evenly over its logarithm, from two rows."""
        part = network_costs.interpolate(curve, float(row.effective_gbps))
        return _shaped_speedup(with_value(calibration, PART, part), row)

    of_rate = study.fixed(study.initial, predict=by_rate, held_out=tuple(rows.values()))
    yield Alternative("a part that changes with the rate", "100 Mbit/s and 1 Gbit/s", of_rate.predictions)
    polling = paper.compression_stage(ETHERNET).value(f"libraries.{paper.MPI}.poll_cost")
    for variant, start in (
        ("dense ring at the full rate", study.initial),
        ("the same, with Fig 5a's polling cost", with_value(study.initial, "poll_cost", polling)),
    ):
        whole = study.fixed(with_value(start, PART, 1.0))
        yield Alternative(variant, "nothing of this figure", whole.predictions)


def compute() -> Outcome:
    """Predict the compute rows of Table 1 that no other set uses: another batch size, and accumulation."""
    predictions = all_predictions(map(_compute_study, NETWORKS))
    small = [
        prediction
        for prediction in predictions
        if prediction.row.batch_per_gpu != str(paper.BATCH) and prediction.row.metric != "step"
    ]
    return Outcome(
        title="1-bit Adam, Table 1: compute",
        unit="ms",
        bound=Limit(mean=0.35, worst=0.97),
        parameters=tuple(map(paper.compute_parameter, NETWORKS)),
        predictions=predictions,
        # Compute that is scaled to another batch is off for that reason alone.
        tells_of_others=False,
        facts={
            "good": worst_error([prediction for prediction in predictions if prediction not in small]),
            "short": [-prediction.error for prediction in small],
        },
    )


def _compute_study(network: PublishedNetwork) -> Study:
    def set_up(row: PublishedRow) -> str:
        return f"batch {row.batch_per_gpu} x {paper.accumulation(row)}"

    def part_s(calibration: Calibration, row: PublishedRow) -> float:
        """Return the simulated part of an iteration [s]; forward and backward are proportional to the batch."""
        how = paper.dense("ring"), paper.accumulation(row)
        part = paper.simulate_iteration(network, calibration, row.nodes, *how).breakdown
        batch = int(row.batch_per_gpu) / paper.BATCH
        times = {"forward": part.forward_s * batch, "backward_else": part.backward_s * batch, "step": part.optimizer_s}
        return times[row.metric]

    def known_range(row: PublishedRow) -> tuple[float, float]:
        batch = int(row.batch_per_gpu)
        return training_step.scaling_range(paper.BATCH, batch) if row.metric != "step" else (1.0, 1.0)

    rows = (row for metric in PARTS for row in paper.table_rows(network, metric))
    return Study(
        initial=paper.unfitted(network),
        predict=part_s,
        measured=paper.table_s,
        series=lambda row: f"{network.label}, {set_up(row)}",
        label=lambda row: f"{network.label}, {PARTS[row.metric]}, {set_up(row)}",
        held_out=tuple(row for row in rows if row not in paper.compute_times(network).rows),
        known_range=known_range,
    )


def end_to_end() -> Outcome:
    """Predict hours of BERT-Large pre-training on 64 GPUs over Ethernet from the calibration of Fig 5a alone."""
    study = Study(
        initial=paper.compression_stage(ETHERNET).fitted,
        predict=partial(_total_s, next(iter(paper.disagreements(ETHERNET, paper.dense_adam)))),
        measured=lambda row: row.value * 3600,
        series=lambda row: row.method,
        label=lambda row: f"{row.method}, {row.gpus} GPUs",
        held_out=published_rows.load().select(paper.SOURCE, metric="total time"),
        grows=True,
    )
    adam, one_bit = study.predictions
    predicted, measured = adam.predicted / one_bit.predicted, adam.measured / one_bit.measured

    def alternatives() -> Iterator[Alternative]:
        start = paper.one_rate_stage(ETHERNET).fitted
        predictions = study.fixed(start, predict=partial(_total_s, "ring")).predictions
        errors = ", ".join(f"{prediction.series} {prediction.error:+.0%}" for prediction in predictions)
        yield Alternative(f"one bandwidth, that of Table 1 ({errors})", "Table 1, two points of Fig 5a", predictions)

    return Outcome(
        title="1-bit Adam, end to end",
        unit="h",
        target=Limit(worst=0.12),
        bound=Limit(mean=0.11, worst=0.14),
        parameters=paper.stage_parameters(ETHERNET),
        predictions=study.predictions,
        facts={
            "adam": adam,
            "one_bit": one_bit,
            "speedup": {"predicted": predicted, "published": measured, "error": predicted / measured - 1},
            "steps": STEPS,
            "dense": DENSE_STEPS,
            "published": _published(adam.measured / STEPS, one_bit.measured),
        },
        make_alternatives=alternatives,
    )


def _published(adam_s: float, total_s: float) -> dict[str, float]:
    """Return the 1-bit total that published rows alone give: no simulation, no fit.

    Args:
        adam_s: step of the published Adam run, its total over its steps.
        total_s: published 1-bit total.

    Returns:
        "step_s", a compressed step: that of 64 GPUs in Fig 5a and what accumulation adds to compute in Table 1;
        "total_h", the total with it and dense steps at the pace of the Adam run; "error", against the published total.
    """
    gpus = paper.GPUS_IN_TABLE_AND_FIGURE
    (row,) = (row for row in paper.figure_rows(ETHERNET, "1-bit Adam") if row.gpus == gpus)
    with_s, without_s = (paper.table_sum_s(ETHERNET, count, paper.COMPUTE) for count in (ACCUMULATION, 1))
    step_s = paper.figure_s(row) + with_s - without_s
    total_by_rows_s = DENSE_STEPS * adam_s + (STEPS - DENSE_STEPS) * step_s
    return {"step_s": step_s, "total_h": total_by_rows_s / 3600, "error": total_by_rows_s / total_s - 1}


def _total_s(algorithm: str, calibration: Calibration, row: PublishedRow) -> float:
    def step_s(strategy: AnyStrategy) -> float:
        return paper.simulate_iteration(ETHERNET, calibration, row.nodes, strategy, ACCUMULATION).iteration_s

    dense_steps = STEPS if row.method == "Adam" else DENSE_STEPS
    return dense_steps * step_s(paper.dense(algorithm)) + (STEPS - dense_steps) * step_s(paper.COMPRESSED)
