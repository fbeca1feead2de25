"""The page of a measured card, and the files that go with it."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from simnet.calibration.card_folder import PARTS, CardFolder, archive, versions_text
from simnet.calibration.comparison import coverage
from simnet.calibration.optimizer_steps import DENSE, optimizer_steps
from simnet.core import templates
from simnet.core.files import read_text
from simnet.core.units import format_bytes, format_seconds
from simnet.report import card_charts, card_tables
from simnet.report.page import Page
from simnet.report.table import Table
from simnet.report.text import hanging, printable
from simnet.validation.card_estimates import TARGET, TARGET_FROM, CardResult

CALIBRATIONS = PurePosixPath("scenarios/calibrations")
WORKLOADS = PurePosixPath("scenarios/workloads")
EVIDENCE = PurePosixPath("docs/evidence")
MEASURED = ", measured"
"""What follows the card in the title of its page."""


FILLS = {
    "kernels": "`kernels`, `memory_bandwidth` and `kernel_launch` of the card's calibration; the page",
    "models": "measured `[[compute]]` rows in `scenarios/workloads/`; the page",
    "interference": "`backward_slowdown` of the calibration; the page",
}
"""What the parts fill that fill more than the page."""
IN_TABLE = "its bytes / bandwidth"
"""In the notes of the part `kernels` that list slow kernels, as the table of the page does."""


def page_name(found: CardResult) -> str:
    """Return the file name of the page."""
    return f"gpu-{found.folder.stem}.md"


def _archive_name(found: CardResult) -> str:
    """Return the file name of the samples."""
    return f"gpu-{found.folder.stem}.zip"


def files_of(found: CardResult) -> dict[PurePosixPath, bytes]:
    """Return everything that is written, by path in a checkout."""
    made: dict[PurePosixPath, bytes] = {EVIDENCE / page_name(found): page(found).encode()}
    made[EVIDENCE / _archive_name(found)] = archive(found.folder)
    if found.calibration:
        made[CALIBRATIONS / f"{found.folder.stem}.toml"] = found.calibration.encode()
    made |= {WORKLOADS / f"{name}.toml": text.encode() for name, text in found.workloads.items()}
    made |= {EVIDENCE / "figures" / _picture(found, name): png for name, png in card_charts.drawn(found).items()}
    if found.kernels:
        made[EVIDENCE / _csv_name(found)] = card_tables.estimates_csv(found.kernels).encode()
    return made


def summary(found: CardResult) -> Page:
    """Return the outcome for a terminal."""
    lines = [line for text in headlines(found) for line in hanging("", text.replace("**", "").replace("`", ""))]
    missing = [f"not measured: {PARTS[part]}" for part in found.folder.missing()]
    left_out = [
        line
        for reason, names in _by_reason(found.fitted.left_out).items()
        for line in hanging("not fitted: ", f"{', '.join(names)}: {reason}")
    ]
    return Page([f"{found.folder.label}, {versions_text(found.folder)}", "", *lines, *missing, *left_out])


def page(found: CardResult) -> str:
    """Return the page as Markdown; its links expect the figures in `figures/`."""
    folder, slowdown = found.folder, found.fitted.slowdown
    steps = optimizer_steps(folder)
    given = {
        **_facts(found),
        "title": f"{folder.label}{MEASURED}" if folder.is_card else f"A trial of this page ({folder.label})",
        "is_card": folder.is_card,
        "is_quick": folder.about.quick,
        "date": folder.about.created[:10],
        "machine": _machine(folder),
        "versions": versions_text(folder),
        "stem": folder.stem,
        "base": found.base,
        "has_calibration": bool(found.calibration),
        "workloads": sorted(found.workloads),
        "card_notes": [*map(printable, folder.about.notes)],
        "headlines": headlines(found),
        "missing": {part: (PARTS[part], printable(why)) for part, why in folder.missing().items()},
        "picture": lambda name: _picture(found, name),
        "archive_name": _archive_name(found),
        "csv_name": _csv_name(found),
        "kernels": bool(found.kernels),
        "kernel_table": _markdown(card_tables.kernel_table(found.kernels)),
        "left_out": _by_reason(found.fitted.left_out),
        "poor": found.fitted.poor,
        "fit_notes": _by_reason([note for part in found.fitted.parts for note in part.notes]),
        "steps": _markdown(card_tables.step_table(steps)),
        "models": _markdown(card_tables.model_table(found.passes, found.steps)),
        "has_shipped_rows": bool(found.steps),
        "shipped_gpus": list(dict.fromkeys(one.gpu for one in found.steps)),
        "without_workload": [*map(printable, found.without_workload)],
        "backward": _markdown(card_tables.backward_table(folder)),
        "slowdown": f"{slowdown[0]:.3f} (90 %: {slowdown[1][0]:.3f} to {slowdown[1][1]:.3f})" if slowdown else "",
        "checks": _markdown(card_tables.checks_table(folder, [part for part in folder.files if part != "training"])),
        "training": "\n\n".join(
            filter(
                None,
                map(_markdown, (card_tables.checks_table(folder, ["training"]), card_tables.training_steps(folder))),
            )
        ),
        "values": _markdown(card_tables.values_table(found.values.values())),
        "groups": _markdown(card_tables.group_table(found.kernels)),
        "links": _markdown(card_tables.links_table(folder)),
        "num_cards": folder.num_cards,
        "notes": [
            printable(note if note.startswith(f"{part}: ") else f"{part}: {note}")
            for part, (_, whole) in folder.files.items()
            for note in whole.notes
            if not (found.kernels and IN_TABLE in note)
        ],
    }
    return templates.page("card.md", given).rstrip("\n") + "\n"


def index_line(folder: CardFolder) -> str:
    """Return the line of docs/README.md that names the page of a card."""
    about = "what one takes for kernels, steps and models, and how wrong the estimates were"
    return f"- [{folder.label}, measured](evidence/gpu-{folder.stem}.md): {about}."


def with_page(index: str, folder: CardFolder) -> str:
    """Return docs/README.md with the line of a card below those of other cards; "" where there is no place for it."""
    lines = [line for line in index.splitlines() if f"](evidence/gpu-{folder.stem}.md)" not in line]
    places = [number for number, line in enumerate(lines) if "](evidence/gpu" in line]
    if not places:
        return ""
    return "\n".join([*lines[: places[-1] + 1], index_line(folder), *lines[places[-1] + 1 :]]) + "\n"


def measured_cards(evidence: Path) -> dict[str, str]:
    """Return the pages of cards in docs/evidence, each with its card, by file name."""
    titles = {path.name: read_text(path).partition("\n")[0] for path in sorted(evidence.glob("gpu-*.md"))}
    return {name: title.removeprefix("# ").removesuffix(MEASURED) for name, title in titles.items()}


def cards_page(cards: Mapping[str, str]) -> str:
    """Return docs/evidence/gpu.md: which cards were measured, and what no test can show without one.

    Args:
        cards: as `measured_cards` returns them.
    """
    rows = [(f"`{part}`", about, FILLS.get(part, "the page of the card")) for part, about in PARTS.items()]
    given = {"cards": dict(sorted(cards.items())), "parts": Table(("part", "measures", "fills"), rows).markdown()}
    return templates.page("gpu.md", given).rstrip("\n") + "\n"


def headlines(found: CardResult) -> list[str]:
    """Return the headline numbers, a sentence or two each."""
    checks = [one for whole in found.folder.measurements for one in whole.checks]
    ratios = _step_ratios(found.folder)
    slowdown = found.fitted.slowdown
    judged = [
        row for row in card_tables.slowest_sizes(found.kernels) if row.is_estimable and row.num_elements >= TARGET_FROM
    ]
    largest = [
        row for row in card_tables.largest_sizes(found.kernels) if row.is_estimable and row.num_elements >= TARGET_FROM
    ]
    outside = [row for row in found.kernels if not row.is_inside]
    inside, num_estimates = coverage(found.kernels)
    given = {
        **_facts(found),
        "judged": judged,
        "fast": sum(row.ratio <= TARGET for row in judged),
        "fast_at_largest": sum(row.ratio <= TARGET for row in largest),
        "slowest": judged[0] if judged and judged[0].ratio > TARGET else None,
        "step_ratios": [f"{ratio:.2f}" for _, ratio in ratios],
        "step_sizes": [f"{size / 1e6:.3g} M" for size, _ in ratios],
        "slowdown": f"{slowdown[0]:.3f}" if slowdown else "",
        "num_estimates": num_estimates,
        "num_inside": inside,
        "outside": bool(outside),
        "num_above": sum(row.measured > row.predicted for row in outside),
        "num_below": sum(row.measured < row.predicted for row in outside),
        "num_checks": f"{count:,}" if (count := sum(one.count for one in checks)) else "",
        "num_passed": f"{sum(one.count for one in checks if one.passed):,}",
        "failed": [*map(printable, found.folder.failed_checks)],
    }
    text = templates.paragraphs("card_headlines.md", "headlines", given)
    return text.split("\n\n") if text else []


def _facts(found: CardResult) -> dict[str, object]:
    """Return what both page and headlines say."""
    copies, launch_s = found.fitted.copy_bytes_per_s, found.fitted.launch_s
    collectives = {str(one.labels["collective"]) for one in found.folder.series("interference", "interference")}
    return {
        "label": found.folder.label,
        "copies": f"{format_bytes(copies)}/s" if copies is not None else "",
        "launch": format_seconds(launch_s) if launch_s is not None else "",
        "target": TARGET,
        "target_from": card_charts.numel_text(TARGET_FROM),
        "copies_only": collectives == {"copy"},
        "estimate": found.estimate.name,
        "estimate_is_of_card": found.estimate.is_of_card,
    }


def _by_reason(sentences: Sequence[str]) -> dict[str, list[str]]:
    """Return the kernels of sentences "kernel NAME: ..." by what is said of them."""
    found: dict[str, list[str]] = {}
    for sentence in sentences:
        kernel, _, reason = sentence.removeprefix("kernel ").partition(": ")
        found.setdefault(printable(reason), []).append(printable(kernel))
    return found


def _step_ratios(folder: CardFolder) -> list[tuple[int, float]]:
    """Return parameters, and BinSGDM's step over that of AdamW."""
    steps = {(one.optimizer, one.num_elements, one.num_tensors): one.step_s for one in optimizer_steps(folder)}
    return [
        (size, step_s / steps[DENSE, size, tensors])
        for (name, size, tensors), step_s in steps.items()
        if name == "binsgdm" and (DENSE, size, tensors) in steps
    ]


def _machine(folder: CardFolder) -> str:
    card = folder.about.card
    known = [f"compute capability {card.compute_capability}"] if card.compute_capability else []
    known += [f"{card.memory_bytes / 1e9:.0f} GB"] if card.memory_bytes else []
    return printable(f"{folder.num_cards} x {', '.join([card.name or 'CPU', *known])}")


def _picture(found: CardResult, name: str) -> str:
    return f"gpu_{found.folder.stem}_{name}.png"


def _csv_name(found: CardResult) -> str:
    return f"gpu-{found.folder.stem}-estimates.csv"


def _markdown(table: Table) -> str:
    """Return a table; "" of one without rows."""
    return table.markdown() if table.rows else ""
