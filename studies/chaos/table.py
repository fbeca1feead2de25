"""What docs/evidence/binsgdm.md says of lost ranks."""

import re
from collections.abc import Sequence

from simnet.report.table import Table
from studies.chaos.plan import KINDS
from studies.ledger import Row
from studies.page import BINSGDM

PAGE = BINSGDM


def regions(rows: Sequence[Row]) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    return {"chaos": f"```text\n{examples(rows)[0]}\n```"}


def data(rows: Sequence[Row]) -> dict[str, Table]:
    """Return the tables that the page links to, by name."""
    return {
        "chaos": by_system(rows),
        "chaos-kinds": by_kind(rows),
        "chaos-sentences": Table(["what a survivor says"], [[text] for text in examples(rows)]),
    }


def by_kind(rows: Sequence[Row]) -> Table:
    """Return for each kind how many runs were as they have to be, and how long the last survivor took."""
    lines = []
    for kind in (*KINDS, "all"):
        of_kind = [row for row in rows if kind in {row["kind"], "all"}]
        told, ended = (sorted(row[name] for row in of_kind) for name in ("told_s", "ended_s"))
        right = [row for row in of_kind if not row["faults"]]
        lines.append(
            [
                kind,
                str(len(of_kind)),
                str(len(right)),
                str(sum(len(row["hung"]) for row in of_kind)),
                f"{told[len(told) // 2]:.1f} s, {told[-1]:.1f} s",
                f"{ended[len(ended) // 2]:.1f} s, {ended[-1]:.1f} s",
            ]
        )
    return Table(
        ["what befalls a rank", "runs", "named right, in time", "ranks that hang", "to the sentence", "to the end"],
        lines,
    )


def by_system(rows: Sequence[Row]) -> Table:
    """Return for each system and kind the runs named right out of all, and the longest time."""
    systems = dict.fromkeys(system_of(row) for row in sorted(rows, key=lambda row: row["case"]))
    return Table(
        ["system", *KINDS],
        [
            [name, *(_cell([r for r in rows if system_of(r) == name and r["kind"] == kind]) for kind in KINDS)]
            for name in systems
        ],
    )


def examples(rows: Sequence[Row]) -> list[str]:
    """Return one sentence of each form that is not the same but for its numbers and who was called."""
    by_form: dict[str, str] = {}
    for row in rows:
        form = re.sub(r"\d+", "", row["text"].partition(": ")[2].partition(", as rank")[0])
        by_form[form] = min(by_form.get(form, row["text"]), row["text"], key=len)
    return list(by_form.values())


def system_of(row: Row) -> str:
    """Return the system of a run, whatever its topology."""
    return str(row["case"]).partition(",")[0]


def _cell(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    right = sum(not row["faults"] for row in rows)
    return f"{right} of {len(rows)}, {max(row['told_s'] for row in rows):.1f} s"
