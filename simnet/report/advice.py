"""An advice: on one screen, as the whole ranking, and as JSON."""

import math
from collections.abc import Sequence

from simnet.analysis.advice import Advice, RankedSystem
from simnet.analysis.convergence import published_of
from simnet.analysis.crossing import Range
from simnet.analysis.tune import systems
from simnet.analysis.verdict import NOT_TIMED, PAYS, UNKNOWN, Verdict
from simnet.analysis.whatif import SLOW_KERNEL_FACTOR
from simnet.core.registry import tag_of
from simnet.core.units import format_bytes, format_seconds
from simnet.engine.memory_fit import repair_in
from simnet.engine.scenario import Scenario, settings_of, to_dict
from simnet.report.chart import GBIT
from simnet.report.result_page import compute_kind
from simnet.report.rows import Field, Row, row_of
from simnet.report.table import Column, Page, Table
from simnet.report.text import (
    WIDTH,
    calibration_title,
    capitalized,
    clipped,
    count_text,
    gpus_text,
    hanging,
    nodes_text,
    notes_lines,
    part_title,
    percent,
    printable,
    speedup_text,
    throughput_text,
    tokens_text,
    workload_title,
)
from simnet.strategies import RecordedStep
from simnet.strategies.base import Mathematics
from simnet.strategies.calls import calls, takes_clipping, with_bucket_views

CHANGES: dict[Mathematics, str] = {
    "same": "nothing",
    "rounding": "rounding",
    "compression": "compression",
    "local_steps": "local steps",
}
"""What a strategy changes in training."""
MAX_NAME = 40
"""Characters of a name that a file brings."""
LABEL_WIDTH = 9
OF_CHOICES = (
    "on a cluster with faults the bandwidths at which a system pays are simulated of the best of each change alone"
)
VERDICTS: dict[Verdict, str] = {"pays": "paying", "does not pay": "not paying"}
"""What several systems of one verdict are called; all others are in doubt."""
FIRST = ("Answer", "Doubt")
"""What stands above the table."""
PUBLISHED = (
    "compressing gradients was faster than optimized data-parallel training in 6 of more than 200 set-ups typical of "
    "data centers (Agarwal et al., On the Utility of Gradient Compression in Distributed Training Systems, MLSys 2022, "
    "abstract)"
)


def advice_page(advice: Advice) -> Page:
    """Return the answer on about one screen: some 30 lines of 100 columns, more where more was asked for."""
    texts = answer(advice)
    first = {label: texts.pop(label) for label in FIRST if label in texts}
    *tables, end = answer_table(advice).within(WIDTH)
    footnotes = [
        line
        for number, row in enumerate(_doubtful(advice), start=1)
        for line in hanging(f"({number}) ", f"{row.verdict}{_why(row)}")
    ]
    above = [*heading(advice), "", *_paragraphs(first), ""]
    return Page([*above, *tables, *footnotes, end, *_paragraphs(texts)])


def advice_line(advice: Advice) -> str:
    """Return what to use in one line."""
    texts = [f"{choice.system.label} {speedup_text(choice.system.speedup.value)}" for choice in advice.choices]
    return f"{printable(advice.scenario.name)}: {', '.join(texts)} over {advice.baseline}"


def _paragraphs(texts: dict[str, str]) -> list[str]:
    """Return the paragraphs under their labels; a line of Python begins a new one, so that it can be pasted."""
    lines = []
    for label, text in texts.items():
        labels = [f"{label + ':':<{LABEL_WIDTH}}", *[" " * LABEL_WIDTH] * text.count("\n")]
        for start, part in zip(labels, text.split("\n"), strict=True):
            comment = "# " if part.startswith("# ") else ""
            # A remark that is too long goes on as a comment: all lines shall paste into a script.
            first, *others = hanging(start + comment, part.removeprefix("# "))
            lines += [first, *(f"{' ' * LABEL_WIDTH}{comment}{other.lstrip()}" for other in others)]
    return lines


def ranking_page(advice: Advice) -> Page:
    """Return all systems, the fastest first, with what could not be predicted and the notes."""
    variants = systems()
    reasons: dict[tuple[str, str], list[str]] = {}
    for name, reason in advice.left_out:
        kind = variants[name][0].kind if name in variants else RecordedStep.__struct_config__.tag
        text = reason.removeprefix(f"strategy.kind: {kind!r}: ")
        reasons.setdefault(("not predicted: ", text), []).append(name)
    for row in advice.systems:
        for repair in filter(None, map(repair_in, row.notes)):
            reasons.setdefault(("does not fit: ", repair), []).append(f"{row.name} ({_memory(row)})")
    # Each reason stands once, after all systems that it keeps out.
    below = [line for (label, text), names in reasons.items() for line in hanging(label, f"{', '.join(names)}: {text}")]
    below += notes_lines([[note for note in row.notes if repair_in(note) is None] for row in advice.systems])
    below += hanging("note: ", OF_CHOICES) if advice.iterations else []
    below += hanging("published: ", f"{PUBLISHED}.")
    return Page([*heading(advice), "", *advice_table(advice).within(WIDTH), *below])


def heading(advice: Advice) -> list[str]:
    """Return workload and cluster, and both references: tuned DDP with how it is tuned, and the flat one of papers."""
    scenario, cluster = advice.scenario, advice.scenario.cluster
    nics = "" if cluster.nics_per_node == 1 else f"{cluster.nics_per_node} x "
    network = f"NIC {nics}{cluster.inter_node.bytes_per_s.text()} per node" if cluster.num_nodes > 1 else "one node"
    gpu = clipped(printable(cluster.gpu), MAX_NAME)
    gpus = f"{cluster.ranks_per_node} {gpu}" if gpu else gpus_text(cluster.ranks_per_node)
    batch = f"{count_text(scenario.workload.batch_per_rank, 'sample')} per GPU"
    accumulated = f" x {scenario.grad_accumulation}" if scenario.grad_accumulation > 1 else ""
    where = f"{nodes_text(cluster.num_nodes)} x {gpus}, {network}, {batch}{accumulated} (simulated)"
    row, flat = advice.baseline_system, "which does not fit: nothing is compared with it"
    if advice.plain_iteration_s is not None:
        flat = f"a ring, default buckets: {format_seconds(advice.plain_iteration_s)} a step"
    variant = row.label.removeprefix("DDP" if row.is_dense else row.strategy.title).lstrip(" ,")
    tuned = f"{advice.tuned_name} ({variant}{_cut(row, advice)}: {format_seconds(row.iteration_s)} a step)"
    lines = [
        *hanging("", f"{workload_title(scenario)} on {where}"),
        *hanging("", f"Compared with {tuned} and {advice.flat_name} ({flat})."),
    ]
    if faults := list(dict.fromkeys(fault.title or tag_of(fault) for fault in cluster.all_faults)):
        # Two lines at most: a list of faults would hide the answer.
        lines += hanging("", f"With faults: {', '.join(faults)}; medians of {advice.iterations} steps.")[:2]
    return lines


def _cut(row: RankedSystem, advice: Advice) -> str:
    """Return how the batch is cut for a system, where that is not as given."""
    return "" if row.batches == settings_of(advice.scenario) else f", {row.batches.text()}"


def answer_table(advice: Advice) -> Table:
    """Return the best of each permitted change, and both references."""
    columns = (
        Column("changes"), Column("best"), Column("step", "right"),
        Column("over tuned (90 %)", "right"), Column("over flat", "right"), Column("pays with NICs"),
    )  # fmt: skip
    marks = {row.name: f" ({number})" for number, row in enumerate(_doubtful(advice), start=1)}
    tuned = advice.baseline_system
    systems_by_change = [(CHANGES[choice.mathematics], choice.system) for choice in advice.choices]
    # The reference is shown also where it is the best of no permitted change.
    if tuned.name not in {row.name for _, row in systems_by_change}:
        systems_by_change.append(("reference", tuned))
    rows = []
    for change, row in systems_by_change:
        name = advice.tuned_name if row is tuned else row.name
        mark = marks.get(row.name, " <- use" if row is advice.used else "")
        pays = ranges_text(row.pays_in) if row.verdict == "pays" and row.pays_in and change != "reference" else "-"
        rows.append((change, name + mark, _time(row), _over_tuned(row), _over_flat(row, advice), pays))
    return Table(columns, rows)


def _over_tuned(row: RankedSystem) -> str:
    """Return the speedup over the tuned reference, with its interval."""
    between = " ({:.2f} to {:.2f})".format(*row.speedup.interval) if row.speedup.interval else ""
    return speedup_text(row.speedup.value) + between if row.may_fit else "-"


def _over_flat(row: RankedSystem, advice: Advice) -> str:
    if not row.may_fit or advice.plain_iteration_s is None:
        return "-"
    return speedup_text(advice.plain_iteration_s / row.iteration_s)


def _time(row: RankedSystem) -> str:
    return format_seconds(row.iteration_s) if row.may_fit else "does not fit"


def _doubtful(advice: Advice) -> list[RankedSystem]:
    """Return the best of each change that is faster than the reference, but does not surely pay."""
    # The table marks verdicts by numbers: of the best alone, since all others stand in the ranking.
    best = [choice.system for choice in advice.choices]
    return [row for row in best if row.verdict not in {"pays", "does not pay"}]


def _why(row: RankedSystem) -> str:
    """Return what a doubt comes from, behind a colon."""
    # What nobody can estimate has no speedup to tell, but a time that its kernels may take.
    if row.verdict == NOT_TIMED and row.speedup.unmeasured:
        return f": {', '.join(row.speedup.unmeasured)}; it pays if they add less than {format_seconds(row.headroom_s)}"
    if row.verdict == NOT_TIMED:
        return f": {speedup_text(row.speedup.if_kernels_slow)} if they take {SLOW_KERNEL_FACTOR:.2g} times the estimate"
    if missed := [record for record in row.records if record.is_missed]:
        tasks = (f"{task.task} ({task.num_reached} of {task.num_trainings} runs reached it)" for task in missed)
        return f": missed it in {', '.join(tasks)}"
    if row.verdict == UNKNOWN:
        published = next(iter(published_of({row.strategy.kind})), None)
        if published is None:
            return ": nobody has trained it here"
        return f" here; published trainings: {published.source.removesuffix(', abstract')}"
    late = [f"{record.task} {record.speedup.value:.2f}" for record in row.records if record.speedup]
    return f": to the target {', '.join(late)}" if late and row.speedup.verdict == "pays" else ""


def answer(advice: Advice) -> dict[str, str]:
    """Return what the advice says, a paragraph by label; labels without anything to say are left out."""
    row, use = advice.answer, advice.used
    # Where nothing pays, kernels and loss are those of what to use instead.
    about = use if row is None or row.verdict == "does not pay" else row
    texts = {
        "Answer": _answer(advice, row),
        "Doubt": _doubt(advice, use),
        "Kernels": _kernels(about),
        "Loss": _loss(about),
        "Tail": _tail(advice),
        "Batches": _batches(advice),
        "To use": to_use(use, advice),
        "Runs": f"{_runs(use, advice)} {_inputs(advice)}",
        "Others": _others(advice, row),
        "Surer": _surer(advice, about),
        "More": f"--all ({len(advice.systems)} systems, their notes), --time-to-target CURVES, --plot FILE",
    }
    return {label: text for label, text in texts.items() if text}


def to_use(row: RankedSystem, advice: Advice) -> str:
    """Return the calls or flags that give a system, with how its batch is cut."""
    workload, usable = advice.scenario.workload, advice.usable if row is advice.used else None
    lines = calls(row.strategy, workload)
    if row.batches.gradient_as_bucket_view:
        lines = with_bucket_views(lines)
    if any("binsgdm." in line for line in lines):
        lines = ("import binsgdm", *lines)
    remarks = [_cut(row, advice).removeprefix(", ")]
    if usable is not None:
        clips = not takes_clipping(row.strategy)
        how = "for clipping: overlap=False" if clips else calls(usable.strategy, workload)[-1].removeprefix("# ")
        remarks.append(f"{how}, {_time(usable)} ({speedup_text(usable.speedup.value)})")
    remark = "; ".join(filter(None, remarks))
    return "\n".join([*lines, *([f"# {remark}"] if remark else [])])


def _answer(advice: Advice, row: RankedSystem | None) -> str:
    if row is None:
        why = "nothing else fits the GPU" if advice.others else "nothing else was asked for"
        return f"use {advice.tuned_name}{_cut(advice.baseline_system, advice)}: {why}."
    over_tuned = _over_tuned(row)
    beyond = f"; {row.name} gains more: {why}" if (why := advice.gains_beyond(row)) else ""
    limit = capitalized(
        f"{advice.tuned_name} without communication: {speedup_text(advice.speedup_without_comm)}{beyond}."
    )
    times, tuning = f"{over_tuned} over {advice.tuned_name}", ""
    if advice.plain_iteration_s is not None:
        gain = advice.plain_iteration_s / advice.baseline_system.iteration_s
        times += f", {_over_flat(row, advice)} over {advice.flat_name}"
        tie = ", a tie" if gain < PAYS else ""
        tuning = f"{advice.tuned_name} alone is {speedup_text(gain)} over {advice.flat_name}{tie}."
    if row is advice.best:
        return f"{row.label} pays: {times}. {limit} {capitalized(tuning)}".rstrip()
    best = f"The best other, {row.label}: {over_tuned.replace(' (', ' over it (')}, {row.verdict}."
    use = f"nothing pays: use {advice.tuned_name}{_cut(advice.baseline_system, advice)}"
    return f"{use}{'; ' * bool(tuning)}{tuning or '.'} {best} {limit}"


def _doubt(advice: Advice, use: RankedSystem) -> str:
    """Say what of the answer nobody has measured where it is to be used, and how to settle it."""
    scenario, speedup = advice.scenario, use.speedup
    compute, calibration = compute_kind(scenario), scenario.calibration
    # A calibration measured on other hardware is an estimate here.
    is_here = calibration.kind == "measured" and not _other_hardware(scenario)
    measured = {
        "network": is_here or scenario.cluster.num_nodes == 1,
        "kernels": is_here and speedup.if_kernels_slow is None and not speedup.unmeasured,
        "compute": compute in {"measured", "given"},
    }
    missing = [part for part, is_measured in measured.items() if not is_measured]
    doubts = []
    if missing:
        everything = len(missing) == len(measured)
        doubts.append("nothing measured on your GPUs" if everything else f"unmeasured: {', '.join(missing)}")
    if use.needs_training and not any(record.is_of_user for record in use.records):
        doubts.append("trained small only" if use.records else "not trained here")
    test = " Test it: simnet advise FILE --proof DIR" if scenario.cluster.world_size > 1 else ""
    return f"{'; '.join(doubts)}.{test}" if doubts else ""


def _kernels(row: RankedSystem) -> str:
    speedup = row.speedup
    if speedup.unmeasured:
        return f"{', '.join(speedup.unmeasured)}: neither a time nor a usable estimate; the speedup is an upper bound."
    if speedup.if_kernels_slow is None:
        return ""
    slow = f"{row.name} is {speedup_text(speedup.if_kernels_slow)}"
    return f"estimated. If they take {SLOW_KERNEL_FACTOR:.2g} times the estimate, as 1-bit Adam's did, {slow}."


def _loss(row: RankedSystem) -> str:
    """Say what is known of the loss with a system."""
    if not row.needs_training:
        return "as with DDP: nothing, or no more than a cast to 16 bits, changes."
    if not row.records:
        form = " in this form" if row.missed_otherwise else ""
        missed = [task for task, has_missed in row.missed_otherwise.items() if has_missed]
        otherwise = f"; in another it missed the target in {', '.join(missed)}" if missed else ""
        return f"nobody has trained {row.name}{form}{otherwise}."
    reached = sum(record.num_reached for record in row.records)
    runs = sum(record.num_trainings for record in row.records)
    sooner = [record.speedup.value for record in row.records if record.speedup]
    ends = f"; {min(sooner):.2f} to {max(sooner):.2f}x sooner than DDP" if sooner else ""
    tasks = ", ".join(record.task for record in row.records)
    return f"{row.name} met {reached} of {runs} targets: {tasks}{ends}."


def _tail(advice: Advice) -> str:
    if not advice.iterations:
        return ""
    first = advice.by_p95[0]
    assert first.faulty is not None
    return f"by the 95th percentile {first.label} is first: {format_seconds(first.faulty.p95_s)}."


def _batches(advice: Advice) -> str:
    if len(advice.accumulated) < 2 or advice.answer is None:
        return ""
    speedups = ", ".join(f"{point.speedup:.2f}x with {point.micro_batches}" for point in advice.accumulated)
    alike = ", without faults" if advice.iterations else ""
    by = f"by micro-batches per step (as here {advice.scenario.grad_accumulation}{alike})"
    return f"{advice.answer.name} over {advice.tuned_name} {by}: {speedups}."


def _runs(row: RankedSystem, advice: Advice) -> str:
    """Say what a GPU holds with a system, how fast it is, and what the training takes and costs."""
    rate, mfu, days, cost = advice.samples_per_s(row), advice.mfu(row), advice.days(row), advice.cost(row)
    # Nobody counts samples of a language model.
    tokens = advice.scenario.workload.tokens_per_sample
    parts = [throughput_text(rate) + (f" ({tokens_text(rate, tokens)})" if tokens else "")]
    if row.memory is not None:
        of = f" of {format_bytes(row.memory.gpu_bytes)}" if row.memory.gpu_bytes else " a GPU"
        unknown = f" without {' and '.join(row.memory.unknown)}" if row.memory.unknown else ""
        parts.insert(0, f"{format_bytes(row.memory.total_bytes)}{of}{unknown}")
    if mfu is not None:
        parts.append(f"MFU {percent(mfu)}")
    if days is not None:
        price = f", {cost:,.0f} at {advice.price_per_gpu_hour:g} per GPU hour" if cost is not None else ""
        parts.append(f"{advice.samples:,.3g} samples in {days:,.3g} days{price}")
    return f"{', '.join(parts)}."


def _others(advice: Advice, row: RankedSystem | None) -> str:
    """Say how many other systems have which verdict, and name the first of those that pay or may."""
    groups: dict[str, list[RankedSystem]] = {}
    # Systems come the fastest first, so that the first of each verdict is the one to name.
    for other in advice.others:
        if other is not row and other.may_fit:
            groups.setdefault(VERDICTS.get(other.verdict, "in doubt"), []).append(other)
    counts = []
    for verdict, rows in groups.items():
        first = f" ({rows[0].name} {speedup_text(rows[0].speedup.value)})" if verdict != "not paying" else ""
        counts.append(f"{len(rows)} {verdict}{first}")
    too_large = sum(not system.may_fit for system in advice.systems)
    counts += [f"{too_large} too large"] if too_large else []
    return f"{', '.join(counts)}." if counts else ""


def _inputs(advice: Advice) -> str:
    scenario = advice.scenario
    name = clipped(part_title(scenario.calibration.name, scenario.name), MAX_NAME)
    other = "".join(f", {point}" for point in _other_hardware(scenario))
    compute = compute_kind(scenario).removesuffix(" estimate")
    return f"Network and kernels: {name} ({scenario.calibration.kind}{other}); compute: {compute}."


def _other_hardware(scenario: Scenario) -> list[str]:
    """Say in which points a calibration is of other hardware than the cluster's."""
    calibration, cluster = scenario.calibration, scenario.cluster
    rate = calibration.inter_node.measured_on
    pairs = [(calibration.gpu, cluster.gpu), (calibration.network, cluster.network)]
    nic = cluster.inter_node.bytes_per_s
    # Rates as sold and as measured differ by their rounding.
    if rate is not None and cluster.num_nodes > 1 and not math.isclose(rate, nic, rel_tol=0.01):
        pairs.append((rate.text(), nic.text()))
    return [f"of {measured}, not {asked}" for measured, asked in pairs if measured and asked and measured != asked]


def _surer(advice: Advice, row: RankedSystem) -> str:
    scenario = advice.scenario
    calibration, speedup = scenario.calibration, row.speedup
    has_network = calibration.kind == "measured" or scenario.cluster.num_nodes == 1
    model = ["compute: simnet measure model"] if compute_kind(scenario) in {"roofline estimate", "derived"} else []
    network = [] if has_network else ["network: simnet calibrate LOG"]
    kernels = ["kernels: simnet measure gpu"] if speedup.unmeasured or speedup.if_kernels_slow else []
    # What a step takes most of its time in comes first.
    compute_first = advice.speedup_without_comm < PAYS
    return "; ".join([*model, *network, *kernels] if compute_first else [*network, *kernels, *model])


def ranges_text(ranges: Sequence[Range]) -> str:
    """Return ranges of bandwidth: "below 62 Gbit/s", "4.4 to 38.2 and above 345 Gbit/s"."""
    if not ranges or ranges == ((None, None),):
        return "at all tried" if ranges else "nowhere tried"
    texts = []
    for ends in ranges:
        low, high = (None if end is None else f"{end / GBIT:.3g}" for end in ends)
        texts.append(f"below {high}" if low is None else f"above {low}" if high is None else f"{low} to {high}")
    return f"{' and '.join(texts)} Gbit/s"


# ---- the whole ranking


def advice_table(advice: Advice) -> Table:
    """Return all systems, the fastest first."""
    named = {field.name: field.column for field in system_fields(advice)}
    where = Column("faster with NICs", cell=lambda row: ranges_text(row.faster_in) if row.curve else "-")
    if advice.iterations:
        where = Column("pays with NICs", cell=lambda row: ranges_text(row.pays_in) if row.pays_in else "-")
    columns = (
        named["label"],
        Column("changes", cell=lambda row: CHANGES[row.mathematics]),
        Column("step", cell=_time),
        *([named["p95_s"]] if advice.iterations else []),
        Column("over tuned", cell=_over_tuned),
        Column("over flat", cell=lambda row: _over_flat(row, advice)),
        Column("verdict", cell=lambda row: verdict_text(row, advice)),
        Column("to target", cell=_to_target),
        named["speedup_if_slow"],
        Column("memory", cell=_memory),
        Column("bound by", cell=lambda row: f"{row.bound} {percent(row.saved[row.bound], '.0')}"),
        named["nic_bytes_per_node"],
        where,
        Column("micro-batch", cell=lambda row: row.batches.text().removeprefix("micro-batch ")),
        Column("samples/s", cell=lambda row: f"{advice.samples_per_s(row):,.4g}" if row.may_fit else "-"),
        named["mfu"],
        *([named["days"]] if advice.samples is not None else []),
        *([named["cost"]] if advice.price_per_gpu_hour is not None else []),
    )
    return Table.of(columns, advice.systems)


def verdict_text(row: RankedSystem, advice: Advice) -> str:
    """Return the verdict on a system, of the baseline that it is."""
    if row.name == advice.baseline:
        return "reference"
    return "-" if row.is_dense or not row.may_fit else row.verdict


def _memory(row: RankedSystem) -> str:
    """Return what a GPU holds, a least size where parts are not known."""
    if row.memory is None:
        return "-"
    return format_bytes(row.memory.total_bytes) + ("+" if row.memory.unknown else "")


def _to_target(row: RankedSystem) -> str:
    """Return the lowest and the highest speedup of the time to a target, over the trainings."""
    if not row.records:
        return "as DDP" if not row.needs_training else "-"
    speedups = [record.speedup.value for record in row.records if record.speedup]
    # A training that never got there is the lowest end, whatever the others took.
    ends = ["never"] if len(speedups) < len(row.records) else []
    if speedups:
        lowest = f"{min(speedups):.2f}-" if len(speedups) > 1 and not ends else ""
        ends.append(f"{lowest}{max(speedups):.2f}x")
    return " to ".join(ends)


# ---- what programs read


RECORD = (
    Field("task", "", str, "task"),
    Field("trained_as", "", str, "system there"),
    Field("ranks", "", int, "ranks that trained"),
    Field("num_trainings", "", int, "trainings"),
    Field("num_reached", "", int, "trainings that reached the target"),
    Field("num_diverged", "", int, "trainings that ended in no number"),
    Field("is_of_user", "", bool, "whether the user gave them"),
    Field("speedup", "speedup", float, "speedup of the time to the target", of="speedup.value"),
    Field("speedup_interval", "speedup", tuple, "its 90 % interval", of="speedup.interval"),
    Field("speedup_if_slow", "speedup", float, "slow kernels", of="speedup.if_kernels_slow"),
    Field("pays", "", str, "verdict", of="speedup.verdict"),
)
"""Of the trainings of a system on a task."""


def system_fields(advice: Advice) -> tuple[Field, ...]:
    """Return the fields of each system, SI units."""
    workload = advice.scenario.workload
    return (
        Field("name", "", str, "name"),
        Field("is_ddp", "", bool, "whether it is DDP", of="is_dense"),
        Field("mathematics", "", str, "what it changes in training"),
        Field("strategy", "", dict, "its strategy", of=lambda row: to_dict(row.strategy)),
        Field("batches", "", dict, "how its batch is cut", of=lambda row: row.batches._asdict()),
        Field("samples_per_s", "samples/s", float, "throughput", of=advice.samples_per_s),
        Field("mfu", "fraction", float, "MFU", of=advice.mfu),
        Field("days", "days", float, "days", of=advice.days),
        Field("cost", "money", float, "cost", of=advice.cost),
        Field("calls", "", list, "lines of Python that switch it on", of=lambda row: calls(row.strategy, workload)),
        Field("iteration_s", "s", float, "step"),
        Field("speedup", "speedup", float, "over tuned", of="speedup.value"),
        Field("speedup_interval", "speedup", tuple, "its 90 % interval", of="speedup.interval"),
        Field("least_speedup", "speedup", float, "least speedup", of="speedup.least"),
        Field("speedup_if_slow", "speedup", float, "slow kernels", of="speedup.if_kernels_slow"),
        Field("speedup_vs_plain", "speedup", float, "over flat"),
        Field("headroom_s", "s", float, "time that a step may gain and still pay"),
        Field("label", "", str, "system"),
        Field("pays", "", str, "verdict", of=lambda row: None if row.is_dense else row.verdict),
        Field("step_pays", "", str, "step", of=lambda row: None if row.is_dense else row.speedup.verdict),
        Field("missed_in_other_forms", "", dict, "whether other forms missed a target", of="missed_otherwise"),
        Field("records", "", list, "trainings", parts=RECORD),
        Field("bound", "", str, "bound by"),
        Field("saved", "", dict, "part of a step that goes away if a part takes no time"),
        Field("longest_pause_s", "s", float, "longest wait"),
        Field("memory_bytes", "B", float, "memory", of="memory.total_bytes"),
        Field("fits", "", bool, "whether it fits the GPU", of="memory.fits"),
        Field("nic_bytes_per_node", "B", float, "NIC bytes"),
        Field("unmeasured_kernels", "", list, "kernels without a time or an estimate", of="speedup.unmeasured"),
        Field("faster_in_bytes_per_s", "", list, "bandwidths at which it is faster", of="faster_in"),
        Field("pays_in_bytes_per_s", "", list, "bandwidths at which it pays", of="pays_in"),
        Field("crossover_bytes_per_s", "", list, "bandwidths at which both are as fast", of="crossovers"),
        Field("curve", "", list, "speedups by bandwidth"),
        Field("p50_s", "s", float, "p50", of="faulty.p50_s"),
        Field("p95_s", "s", float, "p95", of="faulty.p95_s"),
        Field("speedup_p95", "speedup", float, "speedup at the 95th percentile", of="faulty.speedup_p95"),
    )


def rows(advice: Advice) -> list[Row]:
    """Return a row for each system."""
    fields = system_fields(advice)
    return [row_of(fields, system) for system in advice.systems]


def _notes(advice: Advice) -> list[str]:
    return list(dict.fromkeys(note for row in advice.systems for note in row.notes))


CHOICE = (
    Field("mathematics", "", str, "the most that may change in training"),
    Field("name", "", str, "system", of="system.name"),
    Field("gain", "speedup", float, "speedup over the best that changes less"),
)
FIELDS = (
    Field(
        "cluster", "", str, "cluster",
        of=lambda advice: part_title(advice.scenario.cluster.name, advice.scenario.name),
    ),
    Field("workload", "", str, "workload", of=lambda advice: workload_title(advice.scenario)),
    Field("calibration", "", str, "calibration", of=lambda advice: calibration_title(advice.scenario)),
    Field("nic_bytes_per_s", "", float, "bandwidth of a NIC", of="scenario.cluster.inter_node.bytes_per_s"),
    Field("baseline", "", str, "what systems are compared with"),
    Field("baseline_iteration_s", "s", float, "its step", of="baseline_system.iteration_s"),
    Field("plain_iteration_s", "s", float, "step of plain DDP"),
    Field(
        "references", "", dict, "steps of both references",
        of=lambda advice: {
            advice.tuned_name: advice.baseline_system.iteration_s, advice.flat_name: advice.plain_iteration_s,
        },
    ),
    Field("iterations", "", int, "iterations of each system"),
    Field("speedup_without_comm", "speedup", float, "speedup of the baseline without communication"),
    Field("best", "", str, "system to use", of="best.name"),
    Field("choices", "", list, "best of each permitted change", parts=CHOICE),
    Field("answer", "", dict, "the answer in paragraphs", of=answer),
    Field("published", "", str, "what is published", of=lambda _: PUBLISHED),
    Field("micro_batches", "", int, "micro-batches of a step", of="scenario.grad_accumulation"),
    Field(
        "speedup_by_micro_batches", "", dict, "speedup of the answer by micro-batches",
        of=lambda advice: {str(point.micro_batches): point.speedup for point in advice.accumulated},
    ),
    Field(
        "usable", "", dict, "form of the system to use that has a call",
        of=lambda advice: advice.usable and row_of(system_fields(advice), advice.usable),
    ),
    Field("systems", "", list, "systems, the fastest first", of=rows),
    Field("left_out", "", dict, "systems that are left out, and why", of=lambda advice: dict(advice.left_out)),
    Field("notes", "", list, "what to know to trust the numbers", of=_notes),
)  # fmt: skip
"""Of an advice, SI units."""
