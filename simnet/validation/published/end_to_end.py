"""1-bit Adam end to end: hours of BERT-Large pre-training on 64 GPUs over Ethernet, nothing fitted to them."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from simnet.cluster.hardware import Calibration
from simnet.strategies import AnyStrategy
from simnet.validation import extrapolation, published_rows
from simnet.validation.outcome import Alternative, Limit, Outcome
from simnet.validation.published import one_bit_adam as paper
from simnet.validation.published import one_bit_models as models
from simnet.validation.published_rows import PublishedRow
from simnet.validation.study import Study

ORDER = 5
ACCUMULATION, GPUS = 4, 64
STEPS = 152_000
"""Steps of phase 1, from memory of the paper's table: no readable source was found, and the page says so."""
DENSE_STEPS = 23_000
"""Dense steps: freeze_step of BERT-Large, sequence 128, in DeepSpeed's docs/_tutorials/onebit-adam.md."""


def evaluate() -> Outcome:
    """Predict both totals from the calibration of Fig 5a."""
    predictions = _study().predictions
    adam, one_bit = predictions
    predicted, measured = adam.predicted / one_bit.predicted, adam.measured / one_bit.measured
    return Outcome(
        title="1-bit Adam, end to end",
        unit="h",
        target=Limit(worst=0.12),
        bound=Limit(mean=0.11, worst=0.14),
        parameters=models.stage_parameters(paper.ETHERNET),
        predictions=predictions,
        facts={
            "adam": adam,
            "one_bit": one_bit,
            "speedup": {"predicted": predicted, "published": measured, "error": predicted / measured - 1},
            "steps": STEPS,
            "dense": DENSE_STEPS,
            "table_s": paper.table_sum_s(paper.ETHERNET, ACCUMULATION),
            "published": _published(adam.measured / STEPS),
        },
        make_alternatives=_alternatives,
    )


def _published(adam_s: float) -> dict[str, float]:
    """Return the 1-bit total that published rows alone give: no simulation, no fit.

    Args:
        adam_s: step of the published Adam run, its total over its steps.

    Returns:
        "step_s", a compressed step: that of 64 GPUs in Fig 5a and what accumulation adds to compute in Table 1;
        "total_h", the total with it and dense steps at the pace of the Adam run; "error", against the published total.
    """
    (row,) = (row for row in paper.figure_rows(paper.ETHERNET, "1-bit Adam") if row.gpus == GPUS)
    more_s = paper.compute_sum_s(paper.ETHERNET, ACCUMULATION) - paper.compute_sum_s(paper.ETHERNET, 1)
    step_s = paper.figure_s(row) + more_s
    total_s = DENSE_STEPS * adam_s + (STEPS - DENSE_STEPS) * step_s
    return {"step_s": step_s, "total_h": total_s / 3600, "error": total_s / _study().held_out[1].value / 3600 - 1}


def _study() -> Study:
    study = Study(
        initial=models.compression_stage(paper.ETHERNET).fitted,
        predict=partial(_total_s, next(iter(models.disagreements(paper.ETHERNET, models.dense_adam)))),
        measured=lambda row: row.value * 3600,
        series=lambda row: row.method,
        label=lambda row: f"{row.method}, {row.gpus} GPUs",
        held_out=published_rows.load().select(paper.SOURCE, metric="total time"),
    )
    return extrapolation.with_range(study)


def _total_s(algorithm: str, calibration: Calibration, row: PublishedRow) -> float:
    def step_s(strategy: AnyStrategy) -> float:
        return paper.simulate_iteration(paper.ETHERNET, calibration, row.nodes, strategy, ACCUMULATION).iteration_s

    dense_steps = STEPS if row.method == "Adam" else DENSE_STEPS
    dense = paper.dense(algorithm)
    return dense_steps * step_s(dense) + (STEPS - dense_steps) * step_s(paper.COMPRESSED)


def _alternatives() -> Iterator[Alternative]:
    start = models.one_rate_stage(paper.ETHERNET).fitted
    table = replace(_study(), initial=start, predict=partial(_total_s, "ring")).predictions
    errors = ", ".join(f"{prediction.series} {prediction.error:+.0%}" for prediction in table)
    yield Alternative(f"one bandwidth, that of Table 1 ({errors})", "Table 1, two points of Fig 5a", table)
