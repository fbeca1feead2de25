"""One name for one thing: no class name is defined twice, and no former name comes back."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from simnet.strategies import STRATEGIES

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
    "quiet": "idle_probe",
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
FORMER_MODULES = {"grid", "quiet", "said", "told", "unseen", "words"}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def class_places() -> dict[str, list[str]]:
    """Return where each class is defined, by its name without leading underscores."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(path)
    return found


def simulated_and_real() -> set[str]:
    """Return the class names of systems that are simulated and real: they are one thing."""
    pytest.importorskip("torch")
    from binsgdm.systems.registry import SYSTEMS

    optimizers = {"BinSGDM", "OneBitAdam", "LocalSGD", "DiLoCo"}
    simulated = {type_.__name__ for type_ in STRATEGIES.built_in()}
    return simulated & ({type_.__name__ for type_ in SYSTEMS.values()} | optimizers)


def defined_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield every name of a class, function, argument or attribute of a class, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node.lineno
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno


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
    assert [path for path, _ in trees() if Path(path).stem in FORMER_MODULES] == []


def test_no_former_name_is_defined_again() -> None:
    found = [
        f"{path}:{line}: {name}; say {FORMER_NAMES[name.lstrip('_')]}"
        for path, tree in trees()
        for name, line in defined_names(tree)
        if name.lstrip("_") in FORMER_NAMES
    ]
    assert found == []
