"""A validation as a page in Markdown."""

import textwrap
from collections.abc import Iterator, Sequence

from simnet.validate import coverage
from simnet.validate.coverage import Coverage
from simnet.validate.measurements import Row
from simnet.validate.outcome import Outcome, mean_error, worst_error
from simnet.validate.text import (
    error_text,
    error_texts,
    is_band,
    limit_text,
    percent,
    predicted_text,
    rows_text,
    value_text,
)

WIDTH = 120
INTRODUCTION = """\
How far the simulator's predictions are from published measurements. Every set is calibrated on some rows of a \
publication and predicts others; no row of a set is in both, and a test holds that (a published speedup that is the \
quotient of two rows is marked where one of them was calibrated on). Values are fitted by running the simulator, each \
time this page is made, and the shipped calibrations hold the same values.

The form of each model was chosen by people who had seen all rows; only the *values* come from the calibration rows \
alone. Where another form was tried, or would be natural, its error stands in the set's table of alternatives, so \
that the choice can be judged."""
HOW = """\
This page and its figures are made by `simnet validate --published -o docs`; do not edit it by hand. The command \
exits with 1 when a set is worse than its bound: its target where that is met, else the miss as recorded here plus \
a small margin. Rows stand in `scenarios/published/measurements.csv`, each with its source; "line" means the line \
of that file. Errors are predicted / measured - 1; of times where a source prints throughput (an iteration's \
samples / throughput)."""
SPEEDUPS = """\
**Speedups, which are what this tool is asked for, are predicted less well than most times**, since a speedup sets one \
predicted time against another and their errors seldom cancel: {each}."""


def page(outcomes: Sequence[Outcome], rows: tuple[Row, ...]) -> str:
    """Return the page; figures are expected beside it in `figures/`.

    Args:
        outcomes: the sets, in order.
        rows: all published rows, to tell which are used.
    """
    blocks = [
        "# Validation against published measurements",
        *_wrapped(INTRODUCTION),
        *_wrapped(HOW),
        "## Summary",
        _summary(outcomes),
    ]
    blocks += _missed(outcomes)
    blocks += _caveats(outcomes)
    blocks += _speedups(outcomes)
    blocks += _wrapped(_coverage_text(coverage.of(outcomes, rows)))
    for outcome in outcomes:
        blocks += _set(outcome)
    return "\n\n".join(blocks) + "\n"


def figure_name(outcome: Outcome) -> str:
    """Return the file name of a set's figure."""
    return f"validation_{outcome.name}.png"


def _summary(outcomes: Sequence[Outcome]) -> str:
    header = ("set", "rows calibrated", "rows predicted", "mean error", "worst error", "target", "result")
    notes = _notes(outcomes)
    return _table(header, [_summary_row(outcome, notes.get(outcome.name)) for outcome in outcomes])


def _notes(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Return the number of the note of every set whose bare verdict would mislead."""
    noted = (outcome.name for outcome in outcomes if outcome.caveat)
    return {name: number for number, name in enumerate(noted, start=1)}


def _summary_row(outcome: Outcome, note: int | None) -> tuple[str, ...]:
    anchor = f"[{outcome.title}](#{_slug(outcome.title)})"
    counts = str(len(outcome.calibration_rows)), str(len(outcome.predictions))
    target = limit_text(outcome.target, band=is_band(outcome))
    verdict = "**MISSED**" if outcome.status == "MISSED" else outcome.status
    result = f"{verdict}, but see note {note}" if note else verdict
    return anchor, *counts, *error_texts(outcome, outcome.mean, outcome.worst), target, result


def _missed(outcomes: Sequence[Outcome]) -> list[str]:
    missed = [outcome for outcome in outcomes if outcome.status == "MISSED"]
    if not missed:
        return []
    each = "; ".join(
        f"*{o.title}* by up to {percent(o.worst)} (held to {limit_text(o.bound, band=False)})" for o in missed
    )
    return _wrapped(f"Missed: {each}. The reason stands in the set's section.")


def _caveats(outcomes: Sequence[Outcome]) -> list[str]:
    notes = _notes(outcomes)
    each = [
        textwrap.fill(
            f"{notes[o.name]}. *{o.title}*: {o.caveat}.",
            WIDTH,
            subsequent_indent="   ",
            break_on_hyphens=False,
            break_long_words=False,
        )
        for o in outcomes
        if o.caveat
    ]
    return ["What a verdict alone would hide:", "\n".join(each)] if each else []


def _speedups(outcomes: Sequence[Outcome]) -> list[str]:
    each = [outcome.speedups for outcome in outcomes if outcome.speedups]
    return _wrapped(SPEEDUPS.format(each="; ".join(each))) if each else []


def _coverage_text(found: Coverage) -> str:
    both = len(found.calibrated & found.predicted)
    count = f"{found.used} of the {len(found.rows)}" if found.unused else f"All {len(found.rows)}"
    text = (
        f"{count} rows of `measurements.csv` are used by some set: {len(found.calibrated)} are "
        f"calibrated on and {len(found.predicted)} predicted, {both} of them calibrated on in one set and "
        "predicted, or part of a predicted quotient, in another."
    )
    if found.unused:
        return f"{text} No set uses {rows_text(found.unused)}: nothing in the model tells them."
    return text


def _set(outcome: Outcome) -> Iterator[str]:
    yield f"## {outcome.title}"
    yield from _wrapped(outcome.about)
    yield _table(
        ("part", "value", "", "how", "from rows"),
        [(p.part, f"`{p.key}`", p.text, p.how, rows_text(p.rows)) for p in outcome.parameters],
    )
    yield from _wrapped(outcome.misses)
    yield f"![Predicted and measured, {outcome.title}](figures/{figure_name(outcome)})"
    yield _table(
        ("row", f"predicted [{outcome.unit}]", f"measured [{outcome.unit}]", "error", "line"),
        [
            (
                prediction.label,
                predicted_text(prediction, outcome.unit),
                value_text(prediction.measured, outcome.unit),
                error_text(prediction),
                prediction.row.key.partition(":")[2],
            )
            for prediction in outcome.predictions
        ],
    )
    yield from _by_series(outcome)
    if outcome.alternatives:
        yield "Other ways to model the same rows:"
        yield _table(
            ("model", "calibrated on", "mean error", "worst error"),
            [(a.variant, a.calibrated_on, *error_texts(outcome, a.mean, a.worst)) for a in outcome.alternatives],
        )


def _by_series(outcome: Outcome) -> Iterator[str]:
    """Yield mean and worst error by series, where a set has several of several rows."""
    names = list(dict.fromkeys(prediction.series for prediction in outcome.predictions))
    if len(names) < 2 or len(names) == len(outcome.predictions):
        return
    groups = {name: tuple(p for p in outcome.predictions if p.series == name) for name in names}
    yield from _wrapped(
        "; ".join(
            f"{name}: mean {percent(mean_error(ps))}, worst {percent(worst_error(ps))}" for name, ps in groups.items()
        )
        + "."
    )


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _wrapped(text: str) -> list[str]:
    return [
        textwrap.fill(paragraph, WIDTH, break_on_hyphens=False, break_long_words=False)
        for paragraph in text.split("\n\n")
    ]


def _slug(title: str) -> str:
    """Return the anchor that a Markdown reader gives a heading."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")
