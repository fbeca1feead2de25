"""Where a strategy is as fast as what it is compared with, for people and for programs."""

import textwrap

from simnet.analysis.crossing import Number
from simnet.analysis.crossover import Crossing, Crossover, Trial, text_of
from simnet.core.units import format_seconds
from simnet.report.rows import Field
from simnet.report.table import Column, Page, Table
from simnet.report.text import WIDTH, key_text, notes_lines, speedup_text


def crossover_page(crossover: Crossover) -> Page:
    """Return what `simnet sweep --break-even` prints."""
    notes = notes_lines([trial.notes for trial in crossover.trials])
    known = next((trial.references for trial in crossover.trials if trial.references), None)
    over = [f"{crossover.baseline}: tuned anew at each value; over flat: over {known.flat}"] if known else []
    heading = [*textwrap.wrap(crossover.question, WIDTH), ""] if crossover.question else []
    return Page(
        [*heading, *crossover_sentences(crossover), "", _table(crossover), *over, *([""] if notes else []), *notes]
    )


def crossover_sentences(crossover: Crossover) -> list[str]:
    """Return where the faster side changes, and where the strategy pays."""
    return [
        *(
            [f"{crossover.key}: {crossing_text(crossover, change)}." for change in crossover.crossings]
            or [_no_crossing(crossover)]
        ),
        *_paying(crossover),
    ]


def crossover_line(crossover: Crossover) -> str:
    """Return where the faster side changes in one line."""
    crossings = [crossing_text(crossover, crossing) for crossing in crossover.crossings]
    return f"{crossover.key}: {'; '.join(crossings) or 'no crossing'}"


def crossing_text(crossover: Crossover, crossing: Crossing) -> str:
    """Return which side is faster up to a crossing, and which from there on."""
    below, above = _verdict(crossover, crossing.low), _verdict(crossover, crossing.high)
    if isinstance(crossing.low.value, int):
        return f"{below} up to {crossing.low.text}, {above} from {crossing.high.text} on"
    return f"{below} up to {_rounded(crossing.high.text)}, {above} from there on"


def _rounded(text: str) -> str:
    """Return a number and its unit with three digits: the model is no more exact, and JSON has all of them."""
    number, _, unit = text.partition(" ")
    return f"{float(number):.3g} {unit}".rstrip()


def _paying(crossover: Crossover) -> list[str]:
    """Say where the strategy pays, which takes more than being faster."""
    if not crossover.pays_in:
        return [f"{crossover.key}: {_names(crossover)[0]} pays at none of the values tried."]
    return [f"{crossover.key}: {_names(crossover)[0]} pays {' and '.join(map(_range_text, crossover.pays_in))}."]


def _range_text(ends: tuple[Number | None, Number | None]) -> str:
    """Return between which values: "below 43.3 Gbit/s"."""
    low, high = (None if end is None else _rounded(text_of(end, digits=6)) for end in ends)
    if low is None:
        return "at all values tried" if high is None else f"below {high}"
    return f"above {low}" if high is None else f"from {low} to {high}"


def _no_crossing(crossover: Crossover) -> str:
    low, high = crossover.trials[0], crossover.trials[-1]
    tried = f"at all {len(crossover.trials)} values tried from {low.text} to {high.text}"
    return f"{crossover.key}: no crossing: {_verdict(crossover, low)} {tried}."


def _verdict(crossover: Crossover, trial: Trial) -> str:
    strategy, baseline = _names(crossover)
    return f"{strategy} is faster than {baseline}" if trial.is_faster else f"{baseline} is at least as fast"


def _names(crossover: Crossover) -> tuple[str, str]:
    """Return names for strategy and baseline."""
    same = crossover.strategy == crossover.baseline
    return ("strategy", "baseline") if same else (crossover.strategy, crossover.baseline)


def _table(crossover: Crossover) -> Table:
    """Return the values tried first."""
    strategy, baseline = _names(crossover)
    columns = [
        Column(key_text(crossover.key), "right", cell=lambda trial: trial.text),
        Column(strategy, "right", cell=lambda trial: format_seconds(trial.iteration_s)),
        Column(baseline, "right", cell=lambda trial: format_seconds(trial.baseline_iteration_s)),
        Column("speedup (90 %)", "right", cell=_speedup),
        Column("over flat", "right", cell=_over_flat),
        Column("verdict", "right", cell=lambda trial: trial.speedup.verdict),
    ]
    if not any(trial.references for trial in crossover.trials):
        del columns[4]
    return Table.of(columns, crossover.trials)


def _over_flat(trial: Trial) -> str:
    flat_s = trial.references and trial.references.flat_s
    return speedup_text(flat_s / trial.iteration_s) if flat_s else "does not fit"


def _speedup(trial: Trial) -> str:
    ends = " ({:.2f} to {:.2f})".format(*trial.speedup.interval) if trial.speedup.interval else ""
    return speedup_text(trial.speedup.value) + ends


def _written(value: Number) -> Number | str:
    return value if isinstance(value, int) else text_of(value, digits=6)


def _pays_in(crossover: Crossover) -> list[list[Number | str | None]]:
    return [[None if end is None else _written(end) for end in ends] for ends in crossover.pays_in]


def _notes(crossover: Crossover) -> list[str]:
    return list(dict.fromkeys(note for trial in crossover.trials for note in trial.notes))


TRIAL = (
    Field("value", "", str, "value of the key", of=lambda trial: _written(trial.value)),
    Field("iteration_s", "s", float, "step of the strategy"),
    Field("baseline_iteration_s", "s", float, "step of the baseline"),
    Field("speedup", "speedup", float, "speedup", of="speedup.value"),
    Field("speedup_interval", "speedup", tuple, "its 90 % interval", of="speedup.interval"),
    Field("flat_iteration_s", "s", float, "step of flat DDP", of="references.flat_s"),
    Field("verdict", "", str, "verdict", of="speedup.verdict"),
)
"""Of each value tried."""
CROSSING = (
    Field("low", "", dict, "value below", parts=TRIAL),
    Field("high", "", dict, "value above", parts=TRIAL),
    Field("relative_width", "", float, "distance of the two, relative to the higher one"),
    Field("strategy_is_faster", "", str, "side", of=lambda crossing: "below" if crossing.low.is_faster else "above"),
)
FIELDS = (
    Field("over", "", str, "key that is searched over", of="key"),
    Field("strategy", "", str, "strategy"),
    Field("baseline", "", str, "what it is compared with"),
    Field("pays_in", "", list, "values between which it pays", of=_pays_in),
    Field("crossings", "", list, "crossings", parts=CROSSING),
    Field("notes", "", list, "what to know to trust the numbers", of=_notes),
    Field("trials", "", list, "values tried first", parts=TRIAL),
)
"""Of the crossovers, values as the user writes them."""
