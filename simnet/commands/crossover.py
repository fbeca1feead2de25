"""`simnet crossover`: where two strategies take the same time."""

import json
from pathlib import Path

import click

from simnet.commands import options
from simnet.commands.output import check_file, emit
from simnet.commands.settings import read_settings, read_value
from simnet.compare.crossover import Crossing, Crossover, Trial, search
from simnet.show.notes import notes_lines
from simnet.units import format_seconds


@click.command(
    "crossover",
    help="Find the value of KEY between A and B at which strategy and baseline of SCENARIO take the same time.",
    epilog="\b\nExample:\n  simnet crossover bert_base_10gbit --over cluster.inter_node.bandwidth "
    "--from '1 Gbit/s' --to '400 Gbit/s'",
)
@click.argument("scenario")
@click.option("--over", required=True, metavar="KEY", help="Dotted key of a number or a quantity.")
@click.option("--from", "start", required=True, metavar="A", help="Value at one end.")
@click.option("--to", "end", required=True, metavar="B", help="Value at the other end.")
@options.SET
@click.option(
    "--tolerance",
    type=float,
    default=1e-4,
    show_default=True,
    help="Relative; integers are found exactly.",
)
@options.form("table", "json")
@options.OUTPUT
def command(  # noqa: PLR0913, PLR0917 - one argument an option
    scenario: str,
    over: str,
    start: str,
    end: str,
    settings: tuple[str, ...],
    tolerance: float,
    form: str,
    output: Path | None,
) -> None:
    """Run `simnet crossover`."""
    from simnet.scenario import load_experiment
    from simnet.simulate import simulate

    experiment = load_experiment(scenario, read_settings(settings))
    check_file(output)
    found = search(
        experiment, key=over, start=read_value(start), end=read_value(end), tolerance=tolerance, simulate=simulate
    )
    emit(json.dumps(_object(found), indent=2) if form == "json" else _text(found), output)


def _text(found: Crossover) -> str:
    sentences = [_sentence(found, crossing) for crossing in found.crossings] or [_no_crossing(found)]
    notes = notes_lines([trial.notes for trial in found.trials])
    return "\n".join([*sentences, "", *_rows(found), *([""] if notes else []), *notes])


def _sentence(found: Crossover, crossing: Crossing) -> str:
    below, above = _verdict(found, crossing.low), _verdict(found, crossing.high)
    if isinstance(crossing.low.value, int):
        return f"{found.key}: {below} up to {crossing.low.text}, {above} from {crossing.high.text} on."
    within = f"within {100 * crossing.relative_width:.2g} %"
    return f"{found.key}: {below} up to {crossing.high.text} ({within}), {above} from there on."


def _no_crossing(found: Crossover) -> str:
    low, high = found.trials[0], found.trials[-1]
    tried = f"at all {len(found.trials)} values tried from {low.text} to {high.text}"
    return f"{found.key}: no crossing: {_verdict(found, low)} {tried}."


def _verdict(found: Crossover, trial: Trial) -> str:
    strategy, baseline = _names(found)
    return f"{strategy} is faster than {baseline}" if trial.is_faster else f"{baseline} is at least as fast"


def _names(found: Crossover) -> tuple[str, str]:
    """Return what to call strategy and baseline."""
    same = found.strategy == found.baseline
    return ("strategy", "baseline") if same else (found.strategy, found.baseline)


def _rows(found: Crossover) -> list[str]:
    """Return the values tried first as a table."""
    cells = [(found.key, *_names(found), "speedup", "verdict"), *map(_cells, found.trials)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in cells]


def _cells(trial: Trial) -> tuple[str, str, str, str, str]:
    times = format_seconds(trial.iteration_s), format_seconds(trial.baseline_iteration_s)
    return trial.text, *times, f"{trial.speedup.value:.3f}x", trial.speedup.verdict


def _object(found: Crossover) -> dict[str, object]:
    """Return what was found as a JSON object, values as the user writes them."""
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
        "verdict": trial.speedup.verdict,
    }
