"""What a proof came to: steps predicted and measured, and which part of the scenario was off."""

import json
from collections.abc import Iterator

from simnet.calibration.comparison import Comparison
from simnet.core.units import format_bytes, format_seconds
from simnet.report.table import Page, Table
from simnet.report.text import gpus_text, hanging, nodes_text, percent
from simnet.validation.proof_verdict import CALIBRATION, OFF, JudgedPart, Verdict

HEADS = ("training", "predicted", "90 % interval", "measured", "", f"with {CALIBRATION}")


def proof_page(verdict: Verdict) -> Page:
    """Return the steps, the parts that were off, the one with the largest effect first, and how to ask anew."""
    scenario = verdict.proof.scenario
    cluster = scenario.cluster
    where = f"{nodes_text(cluster.num_nodes)} x {gpus_text(cluster.ranks_per_node)}"
    rows = map(_row, verdict.comparisons, verdict.explained_s)
    return Page([
        *hanging("", f"{scenario.name} on {where}, measured {verdict.created[:10]}"), "", Table(HEADS, rows), "",
        *_parts(verdict), "", *_advice(verdict),
    ])  # fmt: skip


def _row(step: Comparison, explained_s: float) -> tuple[str, ...]:
    low, high = map(format_seconds, step.interval or (step.predicted, step.predicted))
    return (
        step.label, format_seconds(step.predicted), f"{low} to {high}", format_seconds(step.measured),
        "inside" if step.is_inside else "outside", format_seconds(explained_s),
    )  # fmt: skip


def _parts(verdict: Verdict) -> Iterator[str]:
    for number, part in enumerate(verdict.off, start=1):
        yield from hanging(f"Off {number}:   ", f"{_text(part)}; a step changes by up to {percent(part.effect, '.0')}")
    others = [_text(part) for part in verdict.parts if not part.is_off]
    for text in others:
        yield from hanging("Matches: " if text is others[0] else "         ", text)
    if verdict.is_of_shapes:
        yield from hanging(
            "Compute: ", "of matrices of the workload's shapes, taken as measured; set MODEL to judge it"
        )
    memories = [
        f"{run.title} {format_bytes(peak)}, predicted {format_bytes(run.memory_bytes)}"
        for run in verdict.proof.runs
        if (peak := verdict.memory_bytes.get(run.name)) and run.memory_bytes and not verdict.is_of_shapes
    ]
    if memories:
        yield from hanging("Memory:  ", "; ".join(memories))
    rest = [
        f"{step.label} {step.measured / explained_s:.2f} times what the parts come to"
        for step, explained_s in zip(verdict.comparisons, verdict.explained_s, strict=True)
        if not 1 / OFF < step.measured / explained_s < OFF
    ]
    if rest:
        yield from hanging("Left:    ", f"{'; '.join(rest)}: no part alone explains that")


def _text(part: JudgedPart) -> str:
    return f"{part.name}: {part.text}"


def _advice(verdict: Verdict) -> Iterator[str]:
    slow = [part.name for part in verdict.off if part.name.startswith("node ")]
    if slow:
        yield from hanging("Note:    ", f"take {' and '.join(slow)} out, or see why it is slow, before you advise anew")
    texts = {key: value if isinstance(value, str) else _toml(value) for key, value in verdict.settings.items()}
    settings = "".join(f" \\\n         --set '{key}={text}'" for key, text in texts.items())
    command = f"simnet advise {verdict.folder / 'proof.json'} --set calibration={verdict.folder / CALIBRATION}"
    yield from f"Anew:    {command}{settings}".splitlines()


def _toml(value: object) -> str:
    """Return a value as TOML has it in one line, which differs from JSON in the sign after a key alone."""
    return json.dumps(value).replace('": ', '" = ')
