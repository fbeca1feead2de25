"""1-bit Adam, Fig 9: speedup of the compression stage under a shaped network."""

from collections.abc import Iterator
from dataclasses import replace

from msgspec import structs

from simnet.calibration.comparison import mean_error, worst_error, worst_row
from simnet.cluster import network_costs
from simnet.cluster.hardware import Calibration
from simnet.strategies import AnyStrategy
from simnet.validation import published_rows
from simnet.validation.outcome import Alternative, Limit, Outcome
from simnet.validation.published import one_bit_adam as paper
from simnet.validation.published import one_bit_models as models
from simnet.validation.published_rows import PublishedRow
from simnet.validation.shipped_parts import with_value
from simnet.validation.study import Fit, Study

ORDER = 9
TARGET = Limit(mean=0.08, worst=0.15)
LOCATION = "Fig 9 (tc-shaped)"
PART = "inter_node.efficiency"
"""This key holds the fraction of the shaped rate that the dense ring reaches, while it is fitted."""


def evaluate() -> Outcome:
    """Calibrate the dense ring on one row, predict the other rates."""
    study = _study()
    predictions = study.predictions
    codec = (
        one for one in models.stage_parameters(paper.ETHERNET) if one.key in ("kernels.compress", "kernels.adam_update")
    )
    return Outcome(
        title="1-bit Adam, Fig 9: shaped network",
        unit="x",
        target=TARGET,
        bound=Limit(mean=0.16, worst=0.30),
        parameters=(*codec, paper.compute_parameter(paper.ETHERNET), *study.parameters),
        predictions=predictions,
        facts={
            "ratio": lambda: _byte_ratio(study),
            "least_worst": lambda: _least_worst(study),
            "part": study.value(PART),
            "mean": mean_error(predictions),
            "worst": worst_row(predictions),
        },
        make_alternatives=lambda: _alternatives(study),
    )


def _study() -> Study:
    rows = published_rows.load().select(paper.SOURCE, location=LOCATION)
    known = tuple(row for row in rows if row.effective_gbps == "1.0")
    fit = Fit(key=PART, name="dense ring, part of the shaped rate", bounds=(0.2, 1.5), rows=known)
    return Study(
        initial=structs.replace(models.compression_stage(paper.ETHERNET).fitted, by_nodes=(), libraries={}),
        fits=(fit,),
        predict=_speedup,
        measured=lambda row: row.value,
        series=lambda _: "Ethernet, shaped",
        label=lambda row: f"{row.network.replace('Mbps', 'Mbit/s')}, {row.gpus} GPUs",
        held_out=tuple(row for row in rows if row not in known),
    )


def _speedup(calibration: Calibration, row: PublishedRow) -> float:
    """Return the speedup: a dense step at a fraction of the row's rate, over a compressed step at the full rate."""
    rate = float(row.effective_gbps) / paper.ETHERNET.nominal_gbit_per_s

    def iteration_s(strategy: AnyStrategy, part: float) -> float:
        shaped = with_value(calibration, PART, rate * part)
        return paper.simulate_iteration(paper.ETHERNET, shaped, row.nodes, strategy).iteration_s

    assert isinstance(calibration.inter_node.efficiency, float)
    return iteration_s(paper.dense("ring"), calibration.inter_node.efficiency) / iteration_s(paper.COMPRESSED, 1.0)


def _byte_ratio(study: Study) -> float:
    nodes = study.held_out[0].nodes
    sent = [
        paper.simulate_iteration(paper.ETHERNET, study.initial, nodes, strategy).nic_bytes_per_node
        for strategy in (paper.dense("ring"), paper.COMPRESSED)
    ]
    return sent[0] / sent[1]


def _least_worst(study: Study) -> float:
    """Return the least worst error that any one part of the rate can have on the rows that are predicted."""
    parts = [study.refitted([row]).value(PART) for row in study.held_out]
    steps = [min(parts) * (max(parts) / min(parts)) ** (step / 20) for step in range(21)]
    fixed = (replace(study, initial=with_value(study.initial, PART, part), fits=()) for part in steps)
    return min(worst_error(one.predictions) for one in fixed)


def _by_rate(study: Study) -> Study:
    """Return a part of the rate that changes evenly over its logarithm, from two rows."""
    rows = {row.effective_gbps: row for row in (*study.train, *study.held_out)}
    known = [rows["0.1"], rows["1.0"]]
    curve = tuple((float(row.effective_gbps), study.refitted([row]).value(PART)) for row in known)

    def speedup(calibration: Calibration, row: PublishedRow) -> float:
        part = network_costs.interpolate(curve, float(row.effective_gbps))
        return _speedup(with_value(calibration, PART, part), row)

    return replace(study, predict=speedup, fits=(), held_out=tuple(row for row in rows.values() if row not in known))


def _alternatives(study: Study) -> Iterator[Alternative]:
    yield Alternative("a part that changes with the rate", "100 Mbit/s and 1 Gbit/s", _by_rate(study).predictions)
    on = "nothing of this figure"
    polling = models.compression_stage(paper.ETHERNET).value(f"libraries.{models.MPI}.poll_cost")
    for variant, start in (
        ("dense ring at the full rate", study.initial),
        ("the same, with Fig 5a's polling cost", with_value(study.initial, "poll_cost", polling)),
    ):
        whole = replace(study, initial=with_value(start, PART, 1.0), fits=())
        yield Alternative(variant, on, whole.predictions)
