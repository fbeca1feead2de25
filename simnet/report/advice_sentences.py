"""The sentences of an advice, from its template."""

from collections.abc import Sequence

from simnet.analysis import published_convergence
from simnet.analysis.advice import Advice
from simnet.analysis.crossing import Range
from simnet.analysis.verdict import FEWER_STEPS, MEASURE_FIRST, MISSED_ALL, NO_SOONER, PAYS, UNCERTAIN, UNTRAINED
from simnet.analysis.whatif import SLOW_KERNEL_FACTOR
from simnet.core import files, templates
from simnet.core.registry import tag_of
from simnet.report.text import clipped, printable

# Systems of one verdict that are named with their speedup; the others are counted.
MAX_NAMED = 3
MAX_GPU = 40
"""Characters of the GPU's name."""
GBIT = 1e9 / 8


def sentences(advice: Advice) -> list[str]:
    """Return the system to use or the reason why none pays, the gain of tuning DDP alone, and the caveats."""
    pay = advice.paying
    to_measure = advice.with_verdict(MEASURE_FIRST)
    scenario = advice.scenario
    measured_on = scenario.calibration.inter_node.measured_on
    given = {
        "baseline": advice.baseline_system,
        "others": advice.others,
        "best": advice.best,
        "also_pay": pay[1:],
        "may_pay": advice.with_verdict(UNCERTAIN),
        "missed": advice.with_verdict(MISSED_ALL),
        "no_sooner": advice.with_verdict(NO_SOONER),
        "by_fewer_steps": advice.with_verdict(FEWER_STEPS),
        "untrained": (untrained := advice.with_verdict(UNTRAINED)),
        "published_records": published_convergence.of({one.strategy.kind for one in untrained}),
        "answer": advice.answer,
        "accumulated": advice.accumulated,
        "micro_batches": scenario.grad_accumulation,
        "tasks": advice.tasks,
        "tasks_are_shipped": set(advice.tasks) <= set(files.names("convergence")),
        "to_measure": to_measure,
        "estimated": [one for one in to_measure if not one.speedup.unmeasured],
        "unmeasured": [one for one in to_measure if one.speedup.unmeasured],
        "fastest": next((one for one in advice.others if one.may_fit), None),
        "world_size": scenario.cluster.world_size,
        "gpu": clipped(printable(scenario.cluster.gpu or scenario.calibration.gpu), MAX_GPU),
        "speedup_without_comm": advice.speedup_without_comm,
        "pays_from": PAYS,
        "gain_over_plain": advice.plain_iteration_s / advice.baseline_system.iteration_s,
        "measured_on": measured_on if any(one.curve for one in advice.others) else None,
        "iterations": advice.iterations,
        "faults": list(dict.fromkeys(fault.title or tag_of(fault) for fault in scenario.cluster.all_faults)),
        "by_p50": [row for row in advice.systems if row.may_fit],
        "by_p95": advice.by_p95,
        "slow_kernel_factor": SLOW_KERNEL_FACTOR,
        "max_named": MAX_NAMED,
        "ranges": ranges_text,
    }
    return templates.paragraphs("advice.txt", "sentences", given).split("\n\n")


def choices(advice: Advice) -> list[str]:
    """Return what to use, by what may change in training, a sentence each; none where there is nothing but DDP."""
    if not advice.others:
        return []
    given = {"choices": advice.choices, "baseline": advice.baseline_system}
    return templates.paragraphs("advice.txt", "choices", given).split("\n\n")


def published() -> str:
    """Return how often compression was faster in published set-ups."""
    return templates.paragraphs("advice.txt", "published", {})


def ranges_text(ranges: Sequence[Range]) -> str:
    """Return ranges of bandwidth: "below 62 Gbit/s"."""
    return " and ".join(map(_range_text, ranges)) or "nowhere tried"


def _range_text(ends: Range) -> str:
    low, high = (None if end is None else f"{end / GBIT:.3g} Gbit/s" for end in ends)
    if low is None:
        return "at all bandwidths tried" if high is None else f"below {high}"
    return f"above {low}" if high is None else f"from {low} to {high}"
