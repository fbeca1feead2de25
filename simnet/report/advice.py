"""An advice as a page for a terminal, and as JSON."""

from collections.abc import Iterator

from simnet.analysis.advice import Advice, RankedSystem
from simnet.analysis.training_record import TrainingRecord
from simnet.analysis.tune import systems
from simnet.core.units import format_bytes, format_seconds
from simnet.engine.memory_fit import repair_in
from simnet.engine.scenario import to_dict
from simnet.report.advice_sentences import choices, published, ranges_text, sentences
from simnet.report.notes import notes_lines
from simnet.report.page import Page
from simnet.report.table import Table
from simnet.report.text import (
    count_text,
    gpus_text,
    hanging,
    nodes_text,
    part_title,
    speedup_text,
    workload_title,
)
from simnet.strategies import RecordedStep
from simnet.strategies.base import Mathematics
from simnet.strategies.choices import form as form_of

COLUMNS = (
    "system",
    "changes",
    "step",
    "speedup",
    "verdict",
    "to target",
    "slow kernels",
    "memory",
    "bound by",
    "NIC bytes",
    "faster with NICs",
)


CHANGES: dict[Mathematics, str] = {
    "same": "nothing",
    "rounding": "rounding",
    "compression": "compression",
    "local_steps": "local steps",
}
"""What a strategy changes in training."""


def advice_page(advice: Advice) -> Page:
    """Return the table of all systems, the advice in sentences, and the notes."""
    chosen = [line for sentence in choices(advice) for line in hanging("- ", sentence)]
    advice_lines = [line for sentence in sentences(advice) for line in hanging("", sentence)]
    left_out = [line for text in _left_out(advice) for line in hanging("not predicted: ", text)]
    too_large = [line for text in _too_large(advice) for line in hanging("does not fit: ", text)]
    notes = notes_lines([[one for one in row.notes if repair_in(one) is None] for row in advice.systems])
    return Page(
        [*heading(advice), "", advice_table(advice), "", *chosen, "", *advice_lines, "", *left_out, *too_large, *notes]
    )


def advice_table(advice: Advice) -> Table:
    """Return all systems, the fastest first."""
    if not advice.iterations:
        return Table(COLUMNS, (_cells(row, advice) for row in advice.systems))
    step = COLUMNS.index("step")
    columns = (*COLUMNS[:step], "step (p50)", "p95", *COLUMNS[step + 1 :])
    rows = ((row, _cells(row, advice)) for row in advice.systems)
    return Table(columns, ((*cells[: step + 1], _p95(row), *cells[step + 1 :]) for row, cells in rows))


def _left_out(advice: Advice) -> Iterator[str]:
    """Yield each reason once, with all systems that cannot be predicted for it."""
    variants = systems()
    groups: dict[str, list[str]] = {}
    for name, reason in advice.left_out:
        kind = variants[name][0].kind if name in variants else RecordedStep.__struct_config__.tag
        text = reason.removeprefix(f"strategy.kind: {kind!r}: ")
        groups.setdefault(text, []).append(name)
    yield from (f"{', '.join(names)}: {text}" for text, names in groups.items())


def _too_large(advice: Advice) -> Iterator[str]:
    """Yield what would fit, each once, after all systems that need more memory than the GPU has."""
    groups: dict[str, list[str]] = {}
    for row in advice.systems:
        for repair in filter(None, map(repair_in, row.notes)):
            groups.setdefault(repair, []).append(f"{row.name} ({_memory(row)})")
    yield from (f"{', '.join(names)}: {repair}" for repair, names in groups.items())


def heading(advice: Advice) -> list[str]:
    """Return workload, cluster, calibration and baseline."""
    scenario, cluster = advice.scenario, advice.scenario.cluster
    nics = count_text(cluster.nics_per_node, "NIC")
    network = f"{nics} of {cluster.inter_node.bytes_per_s.text()} a node"
    form = form_of(advice.baseline_system.strategy)
    no_ddp = "" if advice.baseline_system.is_dense else ", since DDP does not fit"
    where = f"{nodes_text(cluster.num_nodes)} x {gpus_text(cluster.ranks_per_node)}"
    return [
        f"{workload_title(scenario)} on {where}, {network if cluster.num_nodes > 1 else 'one node'}; calibration "
        f"{part_title(scenario.calibration.name, scenario.name)} ({scenario.calibration.kind})",
        f"speedup over {advice.baseline} at its best{f' ({form})' if form else ''}{no_ddp}",
    ]


def _cells(row: RankedSystem, advice: Advice) -> tuple[str, ...]:
    interval = " ({:.2f}-{:.2f})".format(*row.speedup.interval) if row.speedup.interval else ""
    return (
        row.label,
        CHANGES[row.mathematics],
        format_seconds(row.iteration_s),
        speedup_text(row.speedup.value) + interval,
        verdict_text(row, advice),
        _to_target(row),
        speedup_text(row.speedup.if_kernels_slow),
        _memory(row),
        f"{row.bound} {100 * row.saved[row.bound]:.0f} %",
        format_bytes(row.nic_bytes_per_node),
        ranges_text(row.faster_in) if row.curve else "-",
    )


def verdict_text(row: RankedSystem, advice: Advice) -> str:
    """Return the verdict on a system, of the baseline that it is."""
    if row.name == advice.baseline:
        return "baseline"
    return "-" if row.is_dense and row.may_fit else row.verdict


def _p95(row: RankedSystem) -> str:
    return "-" if row.faulty is None else format_seconds(row.faulty.p95_s)


def _memory(row: RankedSystem) -> str:
    """Return what a GPU holds, a least size where parts are not known."""
    if row.memory is None:
        return "-"
    return format_bytes(row.memory.total_bytes) + ("+" if row.memory.unknown else "")


def _to_target(row: RankedSystem) -> str:
    """Return the lowest and the highest speedup of the time to a target, over the trainings."""
    if not row.records:
        return "as DDP" if row.mathematics == "same" else "-"
    found = [record.speedup.value for record in row.records if record.speedup]
    never = ["never"] if len(found) < len(row.records) else []
    lowest = [] if never else [f"{min(found):.2f}-"] if len(found) > 1 else [""]
    ends = [f"{''.join(lowest)}{max(found):.2f}x"] if found else []
    return " to ".join([*never, *ends])


def to_object(advice: Advice) -> dict[str, object]:
    """Return an advice as a JSON object, SI units."""
    scenario = advice.scenario
    return {
        "cluster": part_title(scenario.cluster.name, scenario.name),
        "workload": workload_title(scenario),
        "calibration": part_title(scenario.calibration.name, scenario.name),
        "nic_bytes_per_s": scenario.cluster.inter_node.bytes_per_s,
        "baseline": advice.baseline,
        "plain_iteration_s": advice.plain_iteration_s,
        "iterations": advice.iterations,
        "speedup_without_comm": advice.speedup_without_comm,
        "best": advice.best.name if advice.best else None,
        "choices": [
            {"mathematics": one.mathematics, "name": one.system.name, "gain": one.gain} for one in advice.choices
        ],
        "what_to_use": choices(advice),
        "advice": sentences(advice),
        "published": published(),
        "micro_batches": scenario.grad_accumulation,
        "speedup_by_micro_batches": {str(one.micro_batches): one.speedup for one in advice.accumulated},
        "systems": [_row_object(row) for row in advice.systems],
        "left_out": dict(advice.left_out),
        "notes": list(dict.fromkeys(note for row in advice.systems for note in row.notes)),
    }


def _row_object(row: RankedSystem) -> dict[str, object]:
    return {
        "name": row.name,
        "is_ddp": row.is_dense,
        "mathematics": row.mathematics,
        "strategy": to_dict(row.strategy),
        "iteration_s": row.iteration_s,
        "speedup": row.speedup.value,
        "speedup_interval": row.speedup.interval,
        "least_speedup": row.speedup.least,
        "speedup_if_slow": row.speedup.if_kernels_slow,
        "speedup_vs_plain": row.speedup_vs_plain,
        "headroom_s": row.headroom_s,
        "label": row.label,
        "pays": None if row.is_dense else row.verdict,
        "step_pays": None if row.is_dense else row.speedup.verdict,
        "missed_in_other_forms": row.missed_otherwise,
        "records": [_record_object(record) for record in row.records],
        "bound": row.bound,
        "saved": row.saved,
        "longest_pause_s": row.longest_pause_s,
        "memory_bytes": row.memory.total_bytes if row.memory else None,
        "fits": row.memory.fits if row.memory else None,
        "nic_bytes_per_node": row.nic_bytes_per_node,
        "unmeasured_kernels": list(row.speedup.unmeasured),
        "faster_in_bytes_per_s": [list(ends) for ends in row.faster_in],
        "pays_in_bytes_per_s": [list(ends) for ends in row.pays_in],
        "crossover_bytes_per_s": list(row.crossovers),
        "curve": [list(point) for point in row.curve],
        "p50_s": row.faulty.p50_s if row.faulty else None,
        "p95_s": row.faulty.p95_s if row.faulty else None,
        "speedup_p95": row.faulty.speedup_p95 if row.faulty else None,
    }


def _record_object(record: TrainingRecord) -> dict[str, object]:
    speedup = record.speedup
    return {
        "task": record.task,
        "trained_as": record.trained_as,
        "ranks": record.ranks,
        "num_trainings": record.num_trainings,
        "num_reached": record.num_reached,
        "num_diverged": record.num_diverged,
        "is_of_user": record.is_of_user,
        "speedup": speedup.value if speedup else None,
        "speedup_interval": speedup.interval if speedup else None,
        "speedup_if_slow": speedup.if_kernels_slow if speedup else None,
        "pays": speedup.verdict if speedup else None,
    }
