"""1-bit Adam, Table 1: compute at another batch size and with accumulation, from the rows with neither."""

from simnet.scenario import Run
from simnet.validate.measurements import Measurements, Row
from simnet.validate.outcome import Limit, Outcome, Prediction
from simnet.validate.sets import one_bit_adam, one_bit_table1
from simnet.validate.sets.one_bit_adam import BATCH, NETWORKS, Compute, Network

PARTS = {"forward": "forward", "backward_else": "backward", "step": "optimizer"}
BOUND = Limit(mean=0.35, worst=0.97)

ABOUT = """\
The rows of Table 1 that say nothing about a network: forward, the rest of backward and the optimizer with four \
accumulated micro-batches, and with a single sample a GPU. They judge how compute is carried to another set-up: a \
micro-batch is repeated, the optimizer runs once a step, and time is in proportion to the batch, as the tool takes it \
below the smallest batch of which a time is published. Compute is the mean of the rows with 16 samples a GPU and no \
accumulation; nothing is fitted to these rows. No target."""
MISSES = """\
Accumulation and the optimizer are right within {good:.1%}. At one sample a GPU the proportion fails: forward and \
backward are predicted {least:.0%} to {most:.0%} too short, since a GPU takes a good part of the time of 16 samples \
for one. So a scenario with a batch far below the published ones gets too little compute and too large a speedup; the \
tool says so in a note, and such a scenario should be given `forward` and `backward` as measured."""


def run(rows: Measurements, *, alternatives: bool) -> Outcome:  # noqa: ARG001 - one signature for every set
    """Predict the compute rows that no other set uses."""
    found = {network: one_bit_adam.compute(rows, network) for network in NETWORKS}
    predictions = tuple(p for network in NETWORKS for p in _predictions(rows, network, found[network]))
    return Outcome(
        name="one_bit_compute",
        title="1-bit Adam, Table 1: compute",
        unit="ms",
        parameters=tuple(one_bit_adam.compute_parameter(compute) for compute in found.values()),
        predictions=predictions,
        target=None,
        bound=BOUND,
        about=ABOUT,
        misses=_misses(predictions),
    )


def _predictions(rows: Measurements, network: Network, found: Compute) -> tuple[Prediction, ...]:
    wanted = [row for metric in PARTS for row in one_bit_adam.table_rows(rows, network, metric)]
    return tuple(
        Prediction(
            series=f"{network.label}, batch {row.batch_per_gpu} x {one_bit_adam.accumulation(row)}",
            label=f"{network.label}, {PARTS[row.metric]}, batch {row.batch_per_gpu} x {one_bit_adam.accumulation(row)}",
            row=row,
            predicted=_part_s(found, row),
            measured=row.value / 1e3,
        )
        for row in wanted
        if row not in found.rows
    )


def _part_s(found: Compute, row: Row) -> float:
    """Return the simulated seconds of a row's part of an iteration, forward and backward in proportion to the batch."""
    base = one_bit_table1.bare(found.network)
    strategy = one_bit_adam.dense("ring")
    run_ = Run(grad_accumulation=one_bit_adam.accumulation(row))
    part = one_bit_adam.simulated(base, found, nodes=row.nodes, strategy=strategy, run=run_).breakdown
    batch = int(row.batch_per_gpu) / BATCH
    times = {"forward": part.forward_s * batch, "backward_else": part.backward_s * batch, "step": part.optimizer_s}
    return times[row.metric]


def _misses(predictions: tuple[Prediction, ...]) -> str:
    small = tuple(p for p in predictions if p.row.batch_per_gpu != str(BATCH) and p.row.metric != "step")
    good = [p for p in predictions if p not in small]
    short = [-p.error for p in small]
    return MISSES.format(good=max(abs(p.error) for p in good), least=min(short), most=max(short))
