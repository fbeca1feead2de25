"""1-bit Adam, Fig 9: speedup of the compression stage under a shaped network."""

from simnet.hardware import Calibration
from simnet.numeric import root
from simnet.strategies import OneBitAdam
from simnet.validate import parts
from simnet.validate.measurements import Measurements, Row
from simnet.validate.outcome import Alternative, Limit, Outcome, Parameter, Prediction, alternative, mean_error
from simnet.validate.sets import one_bit_adam, one_bit_fig5a
from simnet.validate.sets.one_bit_adam import ETHERNET

LOCATION = "Fig 9 (tc-shaped)"
CALIBRATION_GBIT_PER_S = "1.0"
BOUND = Limit(mean=0.16, worst=0.30)

ABOUT = """\
256 V100 on 64 nodes, Ethernet shaped to 50 Mbit/s ... 3 Gbit/s. Compute and codec are those of Fig 5a's \
single-node point, without a polling cost. One number is fitted, on the 1 Gbit/s row: the part of the shaped rate \
that Adam's dense ring reaches, with the 1-bit exchange at the full rate. No target."""
MISSES = """\
The slow end is not reproducible by bytes at all: a dense fp16 ring moves {ratio:.1f} times the bytes of the flat \
1-bit exchange out of a node, which caps any speedup at equal efficiency, and the figure shows more. That the dense \
ring must be given {efficiency:.0%} of the rate and the 1-bit exchange all of it is a fit, not an explanation; with \
Fig 5a's polling cost the error grows (table of alternatives). At 3 Gbit/s the shaped rate is close to what the \
cluster reached unshaped, so the shape no longer says what limits it."""


def run(rows: Measurements, *, alternatives: bool) -> Outcome:
    """Calibrate the dense ring on one row, predict the other rates."""
    fitted = one_bit_fig5a.fit(rows, ETHERNET)
    plain = one_bit_fig5a.with_poll(fitted, 0.0)
    efficiency = _fit(rows, plain)
    predictions = _predictions(rows, plain, efficiency)
    return Outcome(
        name="one_bit_fig9",
        title="1-bit Adam, Fig 9: shaped network",
        unit="x",
        parameters=(
            *(
                p
                for p in one_bit_fig5a.parameters(rows, ETHERNET, fitted)
                if p.key in ("kernels.compress", "kernels.adam_update")
            ),
            one_bit_adam.compute_parameter(one_bit_adam.compute(rows, ETHERNET)),
            Parameter(
                part="this set only",
                key="dense ring, part of the shaped rate",
                value=efficiency,
                text=f"{efficiency:.4f}",
                how="meets the row",
                rows=(_calibration_row(rows),),
            ),
        ),
        predictions=predictions,
        target=None,
        bound=BOUND,
        about=ABOUT,
        misses=MISSES.format(ratio=_byte_ratio(rows, plain), efficiency=efficiency),
        alternatives=_alternatives(rows, fitted, plain) if alternatives else (),
        speedups=_speedups(predictions),
    )


def _rows(rows: Measurements) -> tuple[Row, ...]:
    return rows.select(one_bit_adam.SOURCE, location=LOCATION)


def _calibration_row(rows: Measurements) -> Row:
    return rows.one(one_bit_adam.SOURCE, location=LOCATION, effective_gbps=CALIBRATION_GBIT_PER_S)


def _fit(rows: Measurements, calibration: Calibration) -> float:
    row = _calibration_row(rows)
    return root(lambda part: _speedup(rows, calibration, row, part) - row.value, 0.2, 1.5)


def _speedup(rows: Measurements, calibration: Calibration, row: Row, dense_efficiency: float) -> float:
    """Return the time of a dense step over that of a compressed one at the row's rate."""
    found = one_bit_adam.compute(rows, ETHERNET)
    times = [
        one_bit_adam.simulated(_shaped(calibration, row, part), found, nodes=row.nodes, strategy=strategy)
        for strategy, part in ((one_bit_adam.dense("ring"), dense_efficiency), (OneBitAdam(agreement=False), 1.0))
    ]
    return times[0].iteration_s / times[1].iteration_s


def _shaped(calibration: Calibration, row: Row, part: float) -> Calibration:
    """Return the calibration in which a NIC gives this part of the row's shaped rate."""
    rate = float(row.effective_gbps) / ETHERNET.nominal_gbit_per_s
    return parts.with_efficiency(calibration, "inter_node", rate * part)


def _byte_ratio(rows: Measurements, calibration: Calibration) -> float:
    found = one_bit_adam.compute(rows, ETHERNET)
    dense, compressed = (
        one_bit_adam.simulated(calibration, found, nodes=_rows(rows)[0].nodes, strategy=strategy).nic_bytes_per_node
        for strategy in (one_bit_adam.dense("ring"), OneBitAdam(agreement=False))
    )
    return dense / compressed


def _predictions(rows: Measurements, calibration: Calibration, efficiency: float) -> tuple[Prediction, ...]:
    return tuple(
        Prediction(
            series="Ethernet, shaped",
            label=f"{row.network.replace('Mbps', 'Mbit/s')}, {row.gpus} GPUs",
            row=row,
            predicted=_speedup(rows, calibration, row, efficiency),
            measured=row.value,
        )
        for row in _rows(rows)
        if row != _calibration_row(rows)
    )


def _speedups(predictions: tuple[Prediction, ...]) -> str:
    worst = max(predictions, key=lambda prediction: abs(prediction.error))
    rate = worst.label.partition(",")[0]
    mean = f"mean error {mean_error(predictions):.0%}"
    return f"1-bit Adam over Adam in Fig 9, one row fitted: {mean}, worst {worst.error:+.0%} at {rate}"


def _alternatives(rows: Measurements, fitted: Calibration, plain: Calibration) -> tuple[Alternative, ...]:
    return (
        alternative("dense ring at the full rate", "nothing of this figure", _predictions(rows, plain, 1.0)),
        alternative("the same, with Fig 5a's polling cost", "nothing of this figure", _predictions(rows, fitted, 1.0)),
    )
