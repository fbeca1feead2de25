"""1-bit Adam, Fig 5a: speedup of the compression stage over Adam at the same number of GPUs, nothing fitted to it."""

from msgspec.structs import replace

from simnet.hardware import Calibration
from simnet.validate.measurements import Measurements, Row
from simnet.validate.outcome import Limit, Outcome, Prediction, mean_error
from simnet.validate.sets import one_bit_adam, one_bit_dense, one_bit_fig5a
from simnet.validate.sets.one_bit_adam import ETHERNET, NETWORKS, Network

BOUND = Limit(mean=0.20, worst=0.39)

ABOUT = """\
What a user of this tool asks for: how much faster 1-bit Adam's compression stage is than Adam on the same GPUs, the \
quotient of two rows of Fig 5a (both lines are named). The predicted speedup is the quotient of the two sets above, \
with nothing fitted to it. In the rows marked * the 1-bit side is a point that codec and network cost were calibrated \
on, so only their dense side is predicted. No target."""
MISSES = """\
The errors are mostly those of the dense side; where the compression stage is predicted slow they add: on Ethernet \
from 16 GPUs on the speedup is predicted {least} to {most} too small (at 64 GPUs {predicted:.2f}x for \
{measured:.2f}x), since Table 1, to which the dense bandwidth was fitted, is faster than Fig 5a. On InfiniBand the \
compression stage at 16 GPUs is predicted too fast and Adam too slow, and both show. Without the rows marked * the \
mean error is {unmarked:.1%}."""


def run(rows: Measurements, *, alternatives: bool) -> Outcome:  # noqa: ARG001 - one signature for every set; its parts' alternatives stand there
    """Predict every speedup of the figure from the calibration of Table 1 and the compression stage."""
    fitted = {network: one_bit_fig5a.fit(rows, network) for network in NETWORKS}
    predictions = tuple(p for network in NETWORKS for p in _predictions(rows, network, fitted[network]))
    return Outcome(
        name="one_bit_speedup",
        title="1-bit Adam, Fig 5a: speedup",
        unit="x",
        parameters=tuple(p for network in NETWORKS for p in one_bit_fig5a.parameters(rows, network, fitted[network])),
        predictions=predictions,
        target=None,
        bound=BOUND,
        about=ABOUT,
        misses=_misses(rows, predictions),
        speedups=_speedups(predictions),
    )


def _predictions(rows: Measurements, network: Network, calibration: Calibration) -> tuple[Prediction, ...]:
    algorithm = one_bit_dense.algorithm(rows, network)
    known = one_bit_fig5a.calibration_rows(rows, network)
    found = []
    for dense, one_bit in _pairs(rows, network):
        dense_s = one_bit_dense.predict_s(rows, network, calibration, dense, algorithm)
        one_bit_s = one_bit_fig5a.predict_s(rows, network, calibration, one_bit)
        measured = one_bit.value / dense.value
        found.append(
            Prediction(
                series=network.label,
                label=f"{network.label}, {dense.gpus} GPUs{' *' if one_bit in known else ''}",
                row=_quotient(dense, one_bit, measured),
                predicted=dense_s / one_bit_s,
                measured=measured,
            )
        )
    return tuple(found)


def _pairs(rows: Measurements, network: Network) -> list[tuple[Row, Row]]:
    """Return the dense and the 1-bit point of every number of GPUs."""
    one_bit = {row.gpus: row for row in one_bit_adam.figure_rows(rows, network, one_bit_fig5a.METHOD)}
    return [(row, one_bit[row.gpus]) for row in one_bit_adam.figure_rows(rows, network, one_bit_dense.METHOD)]


def _quotient(dense: Row, one_bit: Row, value: float) -> Row:
    """Return a row that names both lines."""
    key = f"{dense.key}, {one_bit.key.partition(':')[2]}"
    return replace(
        dense, key=key, method="1-bit Adam / Adam", metric="speedup (compression stage)", unit="x", value=value
    )


def _ethernet(predictions: tuple[Prediction, ...]) -> list[Prediction]:
    return [p for p in predictions if p.series == ETHERNET.label and p.row.gpus >= 16]


def _misses(rows: Measurements, predictions: tuple[Prediction, ...]) -> str:
    short = [-p.error for p in _ethernet(predictions)]
    of_both = next(p for p in _ethernet(predictions) if p.row.gpus == one_bit_dense.row_of_both(rows, ETHERNET).gpus)
    return MISSES.format(
        least=f"{min(short):.0%}",
        most=f"{max(short):.0%}",
        predicted=of_both.predicted,
        measured=of_both.measured,
        unmarked=mean_error(tuple(p for p in predictions if not p.label.endswith("*"))),
    )


def _speedups(predictions: tuple[Prediction, ...]) -> str:
    by_network = "; ".join(
        f"{network.label} {min(errors):+.0%} to {max(errors):+.0%}"
        for network in NETWORKS
        if (errors := [p.error for p in predictions if p.series == network.label])
    )
    mean = f"mean error {mean_error(predictions):.0%}"
    return f"1-bit Adam over Adam in Fig 5a, {len(predictions)} points: {mean} ({by_network})"
