"""Arguments become what annotations say: each kind of annotation, with values that fit and values that do not."""

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import pytest
from msgspec import Meta

from simnet.core.arguments import File, Files, Name, Names, checked
from simnet.core.errors import MAX_MESSAGE, SimnetError
from tests.helpers.refusals import refused

SURROGATE = "\udc80"
DEEP: list[Any] = []
for _ in range(100):
    DEEP = [DEEP]


class Axes:
    """What an annotation in quotes names."""


def taker(kind: Any) -> Callable[..., Any]:
    """Return a public function of one argument, which returns it."""

    def take(value: Any) -> Any:
        return value

    take.__annotations__["value"] = kind
    return checked(take)


@pytest.mark.parametrize(
    ("kind", "value", "taken"),
    [
        (int, np.int8(3), 3),
        (int, np.array(3), 3),
        (float, 2, 2.0),
        (float, np.float32(0.5), 0.5),
        (bool, np.bool_(True), True),
        (str, np.str_("a"), "a"),
        (Name, Path("a/b"), "a/b"),
        (Names, "ab", ("ab",)),
        (Names, np.array(["a", "b"]), ("a", "b")),
        (Names, (name for name in ("a", "b")), ("a", "b")),
        (Files, Path("a"), (Path("a"),)),
        (Files, ["a", Path("b")], (Path("a"), Path("b"))),
        (Files, f"a{SURROGATE}", (Path(f"a{SURROGATE}"),)),
        (Iterable[str] | str | None, pd.Index(["a"]), ("a",)),
        (Iterable[str] | str | None, None, None),
        (Literal["a", "b"] | None, "b", "b"),
        (Mapping[str, object], {"a": (np.float64(1), {"b": Path("c")})}, {"a": [1.0, {"b": "c"}]}),
        (Mapping[str, object], pd.Series({"a": 1, "b": 2}), {"a": 1, "b": 2}),
        (Sequence[Mapping[str, object]], pd.DataFrame({"a": [1, 2]}), ({"a": 1}, {"a": 2})),
        (object, pd.Series([1, None]).head(1), [1.0]),
        (Annotated[int, Meta(ge=1)] | None, 1, 1),
        (bool | Callable[[int], object], print, print),
        ("Axes | None", None, None),
    ],
)
def test_what_means_the_same_is_taken_as_what_the_annotation_says(kind: Any, value: Any, taken: Any) -> None:
    fitted = taker(kind)(value)
    assert fitted == taken
    assert type(fitted) is type(taken)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, True, "take: value: True: write a whole number"),
        (int, 8.0, "take: value: 8.0: write a whole number"),
        (float, float("nan"), "take: value: nan: must be finite"),
        (float, 10**400, "must be finite"),
        (str, SURROGATE, "give a text without lone surrogates"),
        (Names, ["a\0"], "take: value: 0: 'a\\x00': give a name or a path"),
        (Annotated[int, Meta(ge=1, le=1024)] | None, 0, "0: must be a whole number of at least 1, at most 1024"),
        (Annotated[int, Meta(ge=1)], "x", "'x': write a whole number"),
        (Names, 1, "take: value: 1: give a name or a path, or a list of these"),
        (Names, None, "take: value: None: give a name or a path, or a list of these"),
        (Names, {"a": 1}, "take: value: {'a': 1}: write a list"),
        (Names, ["a", 1], "take: value: 1: 1: give a name or a path"),
        (Annotated[Names, Meta(min_length=1)], [], "take: value: []: write a list that is not empty"),
        (Files, "b/" + "a" * 256, "give a path whose names have 1 to 255 bytes"),
        (Files, ["a", "b\0"], "take: value: 1: 'b\\x00': give a path whose names"),
        (File, b"a", "b'a': give a path"),
        (Literal["ring"] | None, "tree", "'tree': unknown. Known: ring."),
        (Mapping[str, Annotated[Sequence[object], Meta(min_length=1)]], {"a": []}, "value: 'a': []: write a list"),
        (Mapping[str, object], {1: 2}, "take: value: 1: give a text as key"),
        (Mapping[str, object], {"a": 1j}, "take: value: 'a': 1j: give a value as a scenario file has it"),
        (object, 1j, "take: value: 1j: give a value as a scenario file has it"),
        (object, DEEP, "nested deeper than"),
        (bool | Callable[[int], object], lambda: 0, "give True or False, or a function of 1 argument"),
        (Fraction | Name, 1, "take: value: 1: give a name or a path, or a Fraction"),
        ("Axes | None", 1, "take: value: 1: give Axes, or None"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(kind: Any, value: Any, message: str) -> None:
    with refused(message):
        taker(kind)(value)


def test_a_call_with_a_misspelled_or_missing_argument_is_refused() -> None:
    with refused("take: unknown argument 'valeu'. Did you mean 'value'"):
        taker(int)(valeu=1)
    with refused("take: missing a required argument: 'value'"):
        taker(int)()


def test_a_message_from_inside_names_the_argument_in_place_of_the_commands_option() -> None:
    @checked
    def ask(*, hold_out: Names = (), settings: Mapping[str, object] | None = None) -> None:
        raise SimnetError(f"--hold-out {hold_out}: no; see --set and --jobs" if settings else f"{hold_out[0]}: no file")

    with refused(start="ask: hold_out (): no; see settings and --jobs"):
        ask(settings={"a": 1})
    with refused(start="ask: hold_out: a.toml: no file"):
        ask(hold_out="a.toml")


def test_a_message_is_one_printable_line_of_limited_length() -> None:
    error = SimnetError("a\x1b[31m\nb\ud800" + "x" * 1000 + "; repair it")
    assert str(error).startswith(r"a\x1b[31m\nb\ud800x")
    assert str(error).endswith("; repair it")
    assert len(str(error)) == MAX_MESSAGE
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
