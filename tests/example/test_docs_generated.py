"""The generated pages of docs/reference are what docs/generate.py makes now."""

from pathlib import Path
from typing import Literal

import pytest
from msgspec import Struct

from docs import generate, keys


@pytest.mark.parametrize("path", generate.pages(), ids=lambda path: path.name)
def test_a_generated_page_is_current(path: Path) -> None:
    assert path not in generate.stale(), "run: python docs/generate.py"


def test_a_page_that_differs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current, old = tmp_path / "current.md", tmp_path / "old.md"
    for path in (current, old):
        path.write_text(path.stem)
    made = {current: lambda: "current", old: lambda: "new", tmp_path / "missing.md": lambda: "text"}
    monkeypatch.setattr(generate, "pages", lambda: made)
    assert generate.stale() == [old, tmp_path / "missing.md"]


class Named(Struct, kw_only=True):
    """A table of a file.

    Attributes:
        size_bytes: how large it is,
            said in two lines.
    """

    size_bytes: float
    unknown: str = ""


def test_a_key_without_a_meaning_is_an_error() -> None:
    with pytest.raises(ValueError, match="Named: unknown: say what it means"):
        keys.table(Named, {})


def test_the_keys_of_a_base_can_be_left_out() -> None:
    class Derived(Named, kw_only=True):
        """A kind of it.

        Attributes:
            unit: of it.
        """

        unit: Literal["s", "B"] = "s"

    assert keys.keys(Derived, {}, without=Named) == [keys.Key("`unit`", '`"s"`, `"B"`', '`"s"`', "of it")]
