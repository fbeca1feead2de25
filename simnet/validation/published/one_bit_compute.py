"""1-bit Adam, Table 1: compute at another batch size and with accumulation."""

from functools import partial

from simnet.calibration.comparison import worst_error
from simnet.cluster.hardware import Calibration
from simnet.validation.outcome import Limit, Outcome
from simnet.validation.published import one_bit_adam as paper
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import PublishedNetwork
from simnet.validation.study import Study, all_predictions
from simnet.workload import training_step

ORDER = 10
PARTS = {"forward": "forward", "backward_else": "backward", "step": "optimizer"}


def evaluate() -> Outcome:
    """Predict the compute rows that no other set uses."""
    predictions = all_predictions(map(_study, paper.NETWORKS))
    small = [one for one in predictions if one.row.batch_per_gpu != str(paper.BATCH) and one.row.metric != "step"]
    return Outcome(
        title="1-bit Adam, Table 1: compute",
        unit="ms",
        bound=Limit(mean=0.35, worst=0.97),
        parameters=tuple(map(paper.compute_parameter, paper.NETWORKS)),
        predictions=predictions,
        # Compute that is scaled to another batch is off for that reason alone.
        tells_of_others=False,
        facts={
            "good": worst_error([one for one in predictions if one not in small]),
            "short": [-one.error for one in small],
        },
    )


def _study(network: PublishedNetwork) -> Study:
    return Study(
        initial=paper.unfitted(network),
        predict=partial(_part_s, network),
        measured=paper.table_s,
        series=lambda row: f"{network.label}, {_set_up(row)}",
        label=lambda row: f"{network.label}, {PARTS[row.metric]}, {_set_up(row)}",
        held_out=tuple(
            row
            for metric in PARTS
            for row in paper.table_rows(network, metric)
            if row not in paper.compute_times(network).rows
        ),
        known_range=_known_range,
    )


def _known_range(row: PublishedRow) -> tuple[float, float]:
    batch = int(row.batch_per_gpu)
    return training_step.scaling_range(paper.BATCH, batch) if row.metric != "step" else (1.0, 1.0)


def _set_up(row: PublishedRow) -> str:
    return f"batch {row.batch_per_gpu} x {paper.accumulation(row)}"


def _part_s(network: PublishedNetwork, calibration: Calibration, row: PublishedRow) -> float:
    """Return the simulated part of an iteration of a row [s]; forward and backward are proportional to the batch."""
    part = paper.simulate_iteration(
        network, calibration, row.nodes, paper.dense("ring"), paper.accumulation(row)
    ).breakdown
    batch = int(row.batch_per_gpu) / paper.BATCH
    times = {"forward": part.forward_s * batch, "backward_else": part.backward_s * batch, "step": part.optimizer_s}
    return times[row.metric]
