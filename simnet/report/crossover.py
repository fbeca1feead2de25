"""Where two strategies take the same time, for people and for programs."""

from typing import Any

from simnet.analysis.crossover import Crossing, Crossover, Trial
from simnet.core.units import format_seconds
from simnet.report.page import Page
from simnet.report.table import Column, Table
from simnet.report.text import key_text, notes_lines, speedup_text


def crossover_page(found: Crossover) -> Page:
    """Return what `simnet sweep --break-even` prints."""
    notes = notes_lines([trial.notes for trial in found.trials])
    known = next((one.references for one in found.trials if one.references), None)
    over = [f"over flat: over {known.flat}; over tuned: over DDP at its best at each value"] if known else []
    return Page([*crossover_sentences(found), "", _table(found), *over, *([""] if notes else []), *notes])


def crossover_sentences(found: Crossover) -> list[str]:
    """Return where the faster side changes, and where the strategy pays."""
    return [
        *([f"{found.key}: {crossing_text(found, one)}." for one in found.crossings] or [_no_crossing(found)]),
        *_paying(found),
    ]


def crossing_text(found: Crossover, crossing: Crossing) -> str:
    """Return which side is faster up to a crossing, and which from there on."""
    below, above = _verdict(found, crossing.low), _verdict(found, crossing.high)
    if isinstance(crossing.low.value, int):
        return f"{below} up to {crossing.low.text}, {above} from {crossing.high.text} on"
    return f"{below} up to {_rounded(crossing.high.text)}, {above} from there on"


def _rounded(text: str) -> str:
    """Return a number and its unit with three digits: the model is no more exact, and JSON has all of them."""
    number, _, unit = text.partition(" ")
    return f"{float(number):.3g} {unit}".rstrip()


def _paying(found: Crossover) -> list[str]:
    """Say where the strategy pays, which takes more than being faster; the table shows it if there are gaps."""
    which = [index for index, trial in enumerate(found.trials) if trial.speedup.verdict == "pays"]
    if not which or len(which) == len(found.trials) or which[-1] - which[0] + 1 != len(which):
        return []
    first, last = (found.trials[index].text for index in (which[0], which[-1]))
    where = f"from {first} to {last}" if first != last else f"at {first}"
    return [f"{found.key}: of the values tried, {_names(found)[0]} pays {where}."]


def _no_crossing(found: Crossover) -> str:
    low, high = found.trials[0], found.trials[-1]
    tried = f"at all {len(found.trials)} values tried from {low.text} to {high.text}"
    return f"{found.key}: no crossing: {_verdict(found, low)} {tried}."


def _verdict(found: Crossover, trial: Trial) -> str:
    strategy, baseline = _names(found)
    return f"{strategy} is faster than {baseline}" if trial.is_faster else f"{baseline} is at least as fast"


def _names(found: Crossover) -> tuple[str, str]:
    """Return names for strategy and baseline."""
    same = found.strategy == found.baseline
    return ("strategy", "baseline") if same else (found.strategy, found.baseline)


def _table(found: Crossover) -> Table:
    """Return the values tried first."""
    strategy, baseline = _names(found)
    columns = [
        Column(key_text(found.key), "right", cell=lambda trial: trial.text),
        Column(strategy, "right", cell=lambda trial: format_seconds(trial.iteration_s)),
        Column(baseline, "right", cell=lambda trial: format_seconds(trial.baseline_iteration_s)),
        Column("speedup (90 %)", "right", cell=_speedup),
        Column("over flat", "right", cell=lambda trial: speedup_text(trial.references.flat_s / trial.iteration_s)),
        Column("over tuned", "right", cell=lambda trial: speedup_text(trial.references.tuned_s / trial.iteration_s)),
        Column("verdict", "right", cell=lambda trial: trial.speedup.verdict),
    ]
    if not any(trial.references for trial in found.trials):
        del columns[4:6]
    return Table.of(columns, found.trials)


def _speedup(trial: Trial) -> str:
    ends = " ({:.2f} to {:.2f})".format(*trial.speedup.interval) if trial.speedup.interval else ""
    return speedup_text(trial.speedup.value) + ends


def crossover_object(found: Crossover) -> dict[str, Any]:
    """Return the crossovers as a JSON object, values as the user writes them."""
    return {
        "over": found.key,
        "strategy": found.strategy,
        "baseline": found.baseline,
        "crossings": [_crossing_object(crossing) for crossing in found.crossings],
        "notes": list(dict.fromkeys(note for trial in found.trials for note in trial.notes)),
        "trials": [_trial_object(trial) for trial in found.trials],
    }


def _crossing_object(crossing: Crossing) -> dict[str, object]:
    return {
        "low": _trial_object(crossing.low),
        "high": _trial_object(crossing.high),
        "relative_width": crossing.relative_width,
        "strategy_is_faster": "below" if crossing.low.is_faster else "above",
    }


def _trial_object(trial: Trial) -> dict[str, object]:
    return {
        "value": trial.value if isinstance(trial.value, int) else trial.text,
        "iteration_s": trial.iteration_s,
        "baseline_iteration_s": trial.baseline_iteration_s,
        "speedup": trial.speedup.value,
        "speedup_interval": trial.speedup.interval,
        "flat_iteration_s": trial.references and trial.references.flat_s,
        "tuned_iteration_s": trial.references and trial.references.tuned_s,
        "verdict": trial.speedup.verdict,
    }
