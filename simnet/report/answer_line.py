"""Answers in one line, as Python shows them."""

from collections.abc import Sequence

from simnet.analysis.advice import Advice
from simnet.analysis.crossover import Crossover
from simnet.analysis.time_to_target import TimesToTarget
from simnet.calibration.comparison import Comparison, coverage, mean_error, worst_error
from simnet.core.units import format_seconds
from simnet.engine.result import RunResult, SweepResult
from simnet.report.crossover import crossing_text
from simnet.report.text import names, printable, speedup_text


def run_line(result: RunResult) -> str:
    """Return speedup, interval and step of a run: "bert: 10.1x (9.04x to 11.0x), binsgdm 76.7 ms a step"."""
    strategy, *baseline = names([result])
    step = f"{strategy} {format_seconds(result.result.iteration_s)} a step"
    against = f" against {baseline[0]}" if baseline else ""
    speedup = "" if result.speedup is None else f"{speedup_text(result.speedup)}{_between(result)}, "
    return f"{printable(result.scenario.name)}: {speedup}{step}{against}"


def _between(result: RunResult) -> str:
    ends = result.intervals.get("speedup")
    return f" ({' to '.join(map(speedup_text, ends))})" if ends else ""


def sweep_line(sweep: SweepResult) -> str:
    """Return points, keys and speedups of a sweep in one line."""
    refused = f", {len(sweep.refused)} refused" if sweep.refused else ""
    speedups = [point.speedup for point in sweep.points if point.speedup is not None]
    between = f", {speedup_text(min(speedups))} to {speedup_text(max(speedups))}" if speedups else ""
    over = " and ".join(sweep.varied) or "one point"
    return f"{printable(sweep.name)}: {len(sweep.points)} points{refused} over {printable(over)}{between}"


def crossover_line(crossover: Crossover) -> str:
    """Return where the faster side changes in one line."""
    crossings = [crossing_text(crossover, crossing) for crossing in crossover.crossings]
    return f"{crossover.key}: {'; '.join(crossings) or 'no crossing'}"


def advice_line(advice: Advice) -> str:
    """Return what to use in one line."""
    texts = [f"{choice.system.label} {speedup_text(choice.system.speedup.value)}" for choice in advice.choices]
    return f"{printable(advice.scenario.name)}: {', '.join(texts)} over {advice.baseline}"


def time_to_target_line(times: TimesToTarget) -> str:
    """Return the first system at every bandwidth in one line."""
    firsts = [f"{there.bandwidth.text()}: {there.systems[0].title}" for there in times.bandwidths]
    return f"{printable(times.convergence.task)}, first at {times.target:g}: {', '.join(firsts)}"


def errors_line(comparisons: Sequence[Comparison]) -> str:
    """Return how far predictions are off in one line."""
    inside, judged = coverage(comparisons)
    known = f", {inside} of {judged} inside their intervals" if judged else ""
    errors = f"mean error {mean_error(comparisons):.1%}, worst {worst_error(comparisons):.1%}"
    return f"{len(comparisons)} values, {errors}{known}" if comparisons else "no values"
