"""The tables of the page, made of the rows: `python -m tests.works.page` writes it."""

from docs import regions
from tests.helpers.markdown import ROOT
from tests.works.rows import ROWS
from tests.works.table import COLUMNS, Cell

PAGE = ROOT / "docs" / "reference" / "python.md"


PARTS = {
    "rows_of_steps": "Steps",
    "rows_of_models": "Models",
    "rows_of_scripts": "Scripts",
    "rows_of_states": "Saving and loading",
}


def tables() -> str:
    """Return the rows, a table a part, and below them the notes that their cells refer to."""
    notes: dict[Cell, int] = {}
    lines = []
    for module, title in PARTS.items():
        lines += [f"|{title}|{'|'.join(COLUMNS.values())}|", "|---" * (len(COLUMNS) + 1) + "|"]
        for row in ROWS.values():
            if row.module.endswith(f".{module}"):
                cells = [_text(row.cells[column], notes) for column in COLUMNS]
                lines.append(f"|{row.feature}|{'|'.join(cells)}|")
        lines.append("")
    return "\n".join([*lines, *(f"{number}. {_told(cell)}" for cell, number in notes.items())])


def _text(cell: Cell, notes: dict[Cell, int]) -> str:
    if not cell.note:
        return cell.verdict
    return f"{cell.verdict}<sup>{notes.setdefault(cell, len(notes) + 1)}</sup>"


def _told(cell: Cell) -> str:
    return f'"{cell.note}"' if cell.verdict == "refused" else f"{cell.note[0].upper()}{cell.note[1:]}."


def filled() -> str:
    """Return the page with the tables that the rows make now."""
    return regions.filled(PAGE.read_text(encoding="utf-8"), {"rows": tables()})


if __name__ == "__main__":
    PAGE.write_text(filled(), encoding="utf-8")
