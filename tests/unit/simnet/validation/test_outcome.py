"""The parts of a validation: fits, rows, verdicts, text, and the command."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from simnet.core import files
from simnet.report import validation, validation_page
from simnet.validation import published as sets
from simnet.validation import published_rows
from simnet.validation.outcome import Limit, Outcome, Parameter, Prediction
from simnet.validation.published import nccl_tests
from simnet.validation.published_rows import PublishedRow
from tests.helpers.cli import assert_refused
from tests.helpers.cli import run as command
from tests.helpers.golden import assert_golden
from tests.helpers.refusals import refused


def row(line: int) -> PublishedRow:
    return replace_row(published_rows.load().rows[0], key=f"measurements.csv:{line}")


def replace_row(old: PublishedRow, **changes: object) -> PublishedRow:
    return PublishedRow(**{name: getattr(old, name) for name in PublishedRow.__struct_fields__} | changes)  # type: ignore[arg-type]


def prediction(predicted: float, measured: float = 1.0, *, band: bool = False) -> Prediction:
    return Prediction(
        series="series",
        label="label",
        row=row(3),
        predicted=predicted,
        measured=measured,
        band=(0.5, 2.0) if band else None,
    )


@dataclass(frozen=True, kw_only=True)
class WithText(Outcome):
    """A set with its text at hand."""

    blocks: dict[str, str]

    def text(self, block: str) -> str:
        return self.blocks.get(block, "")


def outcome(*errors: float, target: Limit | None = None, bound: Limit | None = None, band: bool = False) -> Outcome:
    parameter = Parameter(part="part", key="key", value=1.0, text="1", how="how", rows=(row(2),))
    return WithText(
        name="hkbu_bsp",
        title="A set",
        unit="ms",
        parameters=(parameter,),
        predictions=tuple(prediction(1 + error, band=band) for error in errors),
        bound=bound or Limit(mean=1.0),
        target=target,
        blocks={"about": "About.", "misses": "Misses."},
    )


def test_every_row_has_a_source_a_unit_and_a_value_above_zero() -> None:
    rows = published_rows.load().rows
    assert len(rows) == 373
    assert all(row.source and row.unit and row.value > 0 for row in rows)
    assert len({row.key for row in rows}) == len(rows)


@pytest.mark.parametrize("content", ["", "source,value\nx,1\n", None])
def test_damaged_measurements_and_a_missing_log_are_told_in_one_sentence(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "measurements.csv"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    monkeypatch.setattr(files, "data_path", lambda *_: path)
    try:
        published_rows.read.cache_clear()
        with refused("restore the"):
            published_rows.load().only("HKBU")
    finally:
        published_rows.read.cache_clear()
    if content is None:
        with refused("restore the shipped file"):
            nccl_tests.log_rows(16)


def test_pages_and_tables_are_the_committed_ones() -> None:
    missed = outcome(-0.35, target=Limit(worst=0.1), bound=Limit(worst=0.37))
    worse = replace(missed, name="hkbu_overlap", predictions=(prediction(0.6),))
    assert (missed.holds, worse.holds) == (True, False), "a missed target holds while it stays within its bound"
    inside, outside = (outcome(error, band=True) for error in (0.0, 0.2))
    plain = outcome(0.01, target=Limit(mean=0.02))
    told = {"caveat": "luck", "speedups": "twice too small"}
    lucky = replace(plain, title="BinSGDM / Birder: headline speedups", name="hkbu_overlap", blocks=told)
    for name, sets_, unused in (
        ("missed", [missed, worse], ()),
        ("bands", [inside, outside], ()),
        ("noted", [plain, lucky], tuple(map(row, (2, 3, 7, 19, 20, 21)))),
        ("whole", [plain], (row(2), row(3))),
    ):
        assert_golden(f"validation_{name}.txt", str(validation.validation_page(sets_)))
        page = validation_page.page(sets_, unused)
        assert_golden(f"validation_{name}_page.txt", page.partition("## Summary\n\n")[2].partition("\n\n## ")[0])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "validate: no measurements: name EXPERIMENT"),
        (("--published", "--set", "hkbu"), "--set: 'hkbu': unknown set. Did you mean 'hkbu_bsp'?"),
        (("--published", "--set", "hkbu_bsp", "-o", "docs"), "the page must hold every set; drop one of them"),
        (("--published", "--format", "yaml"), "'yaml'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(args: tuple[str, ...], message: str) -> None:
    assert_refused(command("validate", *args), message)


def test_a_set_within_its_bound_exits_0_as_table_and_as_json() -> None:
    assert command("validate", "--published", "--set", "nccl_tests").exit_code == 0
    result = command("validate", "--published", "--set", "nccl_tests", "--set", "nccl_tests", "--format", "json")
    found = json.loads(result.output)
    assert found["holds"] is True
    assert [(one["name"], len(one["rows"])) for one in found["sets"]] == [("nccl_tests", 18)]


@pytest.mark.slow
@pytest.mark.parametrize("holds", [True, False])
def test_a_set_past_its_bound_exits_1_and_writes_the_page_all_the_same(
    holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str) -> Outcome:
        made = outcome(0.05, -0.02, target=Limit(mean=0.03), bound=Limit(mean=0.5 if holds else 0.01))
        return replace(made, name=name, title=name)

    monkeypatch.setattr(sets, "run", run)
    result = command("validate", "--published", "-o", tmp_path / "docs")
    assert result.exit_code == (0 if holds else 1)
    assert (tmp_path / "docs" / "validation.md").is_file()
    assert len(list((tmp_path / "docs" / "figures").glob("validation_*.png"))) == len(sets.names())
