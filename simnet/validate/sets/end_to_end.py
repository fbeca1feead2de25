"""1-bit Adam end to end: hours of BERT-Large pre-training on 64 GPUs over Ethernet, nothing fitted to them."""

from collections.abc import Iterator
from dataclasses import replace

from simnet.hardware import Calibration
from simnet.strategies import AnyStrategy
from simnet.validate import published_rows
from simnet.validate.outcome import Alternative, Limit, Outcome, Prediction
from simnet.validate.published_rows import PublishedRow
from simnet.validate.sets import one_bit_adam as paper
from simnet.validate.sets import one_bit_models as models
from simnet.validate.study import Study

ORDER = 5
ACCUMULATION = 4
STEPS = 152_000
"""Steps of phase 1, from memory of the paper's table: no readable source was found, and the page says so."""
DENSE_STEPS = 23_000
"""Dense steps: freeze_step of BERT-Large, sequence 128, in DeepSpeed's docs/_tutorials/onebit-adam.md."""


def evaluate() -> Outcome:
    """Predict both totals from the calibration of Table 1 and Fig 5a."""
    predictions = _study().predictions
    adam, one_bit = predictions
    predicted, measured = adam.predicted / one_bit.predicted, adam.measured / one_bit.measured
    return Outcome(
        title="1-bit Adam, end to end",
        unit="h",
        target=Limit(worst=0.10),
        bound=Limit(mean=0.19, worst=0.37),
        parameters=models.stage_parameters(paper.ETHERNET),
        predictions=predictions,
        facts={
            "adam": adam,
            "one_bit": one_bit,
            "speedup": {"predicted": predicted, "published": measured, "error": predicted / measured - 1},
            "steps": STEPS,
            "dense": DENSE_STEPS,
            "table_s": paper.table_sum_s(paper.ETHERNET, ACCUMULATION),
            "plain_table_s": paper.table_sum_s(paper.ETHERNET, 1),
            "plain_figure_s": paper.figure_s(paper.row_in_table_and_figure(paper.ETHERNET)),
            "by_figure": _by_figure,
        },
        make_alternatives=_alternatives,
    )


def _study() -> Study:
    return Study(
        initial=models.compression_stage(paper.ETHERNET).fitted,
        predict=_total_s,
        measured=lambda row: row.value * 3600,
        series=lambda row: row.method,
        label=lambda row: f"{row.method}, {row.gpus} GPUs",
        held_out=published_rows.load().select(paper.SOURCE, metric="total time"),
    )


def _total_s(calibration: Calibration, row: PublishedRow) -> float:
    def step_s(strategy: AnyStrategy) -> float:
        return paper.simulate_iteration(paper.ETHERNET, calibration, row.nodes, strategy, ACCUMULATION).iteration_s

    dense_steps = STEPS if row.method == "Adam" else DENSE_STEPS
    return dense_steps * step_s(paper.dense("ring")) + (STEPS - dense_steps) * step_s(paper.COMPRESSED)


def _by_figure() -> tuple[Prediction, ...]:
    return replace(_study(), initial=models.dense_adam_by_figure().fitted).predictions


def _alternatives() -> Iterator[Alternative]:
    found = _by_figure()
    errors = ", ".join(f"{prediction.series} {prediction.error:+.0%}" for prediction in found)
    yield Alternative(f"bandwidth of Fig 5a ({errors})", "Fig 5a, Adam on 64 GPUs", found)
