"""One name for one thing: no class name is defined twice, and no former name comes back."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from simnet.strategies import STRATEGIES
from tests.helpers.needs import needs

ROOT = Path(__file__).parents[2]
PACKAGES = ("simnet", "binsgdm")
# Names that say nothing to a reader who knows NCCL and PyTorch, each with the name that replaced it.
FORMER_NAMES = {
    "agreement": "finite_check",
    "alike": "distinct_loads",
    "beside": "overlapped",
    "BesideBackward": "Overlapped...",
    "Carrier": "Aggregation",
    "Carry": "Aggregation",
    "ceiling": "speedup_without_comm",
    "Conversation": "Protocol",
    "Draft": "RawScenario",
    "Effort": "StopRule",
    "Heat": "TargetTime",
    "intra": "intra_node_dtype, intra_node",
    "lanes_alike": "rails_are_symmetric",
    "line_up": "barrier",
    "may_be_off": "model_error",
    "Misfit": "FieldError",
    "one_bit_adam_moves": "one_bit_adam_update",
    "Pace": "StepCost",
    "payload_dtype": "wire_dtype",
    "Place": "RankContext",
    "quiet": "run_campaign",
    "room_s": "headroom_s",
    "run_together": "run_in_lockstep",
    "said": "text",
    "settlement": "epilogue",
    "Slot": "ParamState",
    "standings": "time_to_target",
    "Stretch": "FlatSlice",
    "take_turns": "interleave",
    "told": "text",
    "told_by_first": "from_rank_0",
    "unseen": "held_out",
    "Written": "Ledger",
}
# Words that say nothing of what a variable holds, alone or as a part of a name.
SAYS_NOTHING = {"one", "found", "given", "own", "mine", "meet", "hangs_on", "told_by"}
PARTS_THAT_SAY_NOTHING = {"circles", "found", "given", "hangs", "mine", "told"}
OF_TORCH = {"found_inf", "found_inf_per_device"}
FORMER_MODULES = {"grid", "quiet", "said", "told", "unseen", "words"}


@dataclass(frozen=True)
class Definition:
    """A name that a file defines."""

    path: str
    line: int
    name: str
    is_class: bool


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@cache
def definitions() -> list[Definition]:
    """Return every class, function, argument and attribute of a class."""
    return [
        Definition(path.relative_to(ROOT).as_posix(), node.lineno, name, isinstance(node, ast.ClassDef))
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (name := defined_name(node))
    ]


def class_places() -> dict[str, list[str]]:
    """Return where each class is defined, by its name without leading underscores."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in definitions():
        if one.is_class:
            found[one.name.lstrip("_")].append(one.path)
    return found


def simulated_and_real() -> set[str]:
    """Return the class names of systems that are simulated and real: they are one thing."""
    needs("torch")
    from binsgdm.compressors.registry import SYSTEMS

    optimizers = {"BinSGDM", "OneBitAdam", "LocalSGD", "DiLoCo"}
    simulated = {type_.__name__ for type_ in STRATEGIES.built_in()}
    return simulated & ({type_.__name__ for type_ in SYSTEMS.values()} | optimizers)


def defined_name(node: ast.AST) -> str:
    """Return the name of a class, function, argument or attribute of a class; "" of anything else."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name
        case ast.arg(arg=name) | ast.AnnAssign(target=ast.Name(id=name)) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
    return ""


@pytest.mark.slow
def test_every_class_name_is_defined_once() -> None:
    twice = {name: places for name, places in class_places().items() if len(places) > 1}
    assert {name: places for name, places in twice.items() if name not in simulated_and_real()} == {}


def test_a_simulated_and_a_real_system_of_one_name_are_defined_once_in_each_package() -> None:
    shared = simulated_and_real()
    assert "QSGD" in shared
    for name, places in class_places().items():
        if name in shared:
            assert sorted(place.partition("/")[0] for place in places) == ["binsgdm", "simnet"], name


def test_no_module_has_a_former_name() -> None:
    assert [path for path in sources() if path.stem in FORMER_MODULES] == []


def bound_names(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every name that a file gives to something, variables among them, with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name


def test_every_name_says_what_it_holds() -> None:
    empty = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in sources()
        for line, name in bound_names(path)
        if (bare := name.strip("_").lower()) in SAYS_NOTHING
        or (not PARTS_THAT_SAY_NOTHING.isdisjoint(bare.split("_")) and bare not in OF_TORCH)
    ]
    assert empty == []


def test_no_former_name_is_defined_again() -> None:
    found = [
        f"{one.path}:{one.line}: {one.name}; say {FORMER_NAMES[one.name.lstrip('_')]}"
        for one in definitions()
        if one.name.lstrip("_") in FORMER_NAMES
    ]
    assert found == []
