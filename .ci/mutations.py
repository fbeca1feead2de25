"""Plant small errors in the simulator, one at a time, and tell which of them its tests find.

python .ci/mutations.py [--count 60] [--seed 1] [--limit 300] [--rooms core,engine] [--list] [--again TABLE]

Each error stands in a copy of the tree. The unit tests of its room run first, then the tests of other folders that are
about the room.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "simnet", "binsgdm", "tests", "scenarios", "docs", "examples", "studies", "benchmarks", "cli.py", "pyproject.toml",
)  # fmt: skip
# Where errors are planted, how many of sixty, and which tests are about a room beside its unit tests.
ROOMS = {
    "core": (8, ("property/test_units_round_trip.py", "property/test_mutated_files.py")),
    "cluster": (8, ("property/test_worse_faults.py", "validation/test_other_clusters.py")),
    "collectives": (6, ("property/test_collective_properties.py", "property/test_schedules_deliver.py")),
    "workload": (6, ("golden/test_roofline.py", "golden/test_counted_workloads.py")),
    "strategies": (8, ("validation/test_strategies_equal_exact.py", "validation/test_one_rank_equals_clock.py")),
    "engine": (8, ("property/test_recurrences_agree.py", "validation/test_executors_agree.py")),
    "analysis": (8, ("contract/test_calls.py", "validation/test_far_nodes.py")),
    "calibration": (8, ("golden/test_published.py",)),
}
MARKS = "not slow and not lab and not timed and not nightly"
COMPARISONS: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.GtE(), ast.LtE: ast.Gt(), ast.Gt: ast.LtE(), ast.GtE: ast.Lt(), ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(), ast.In: ast.NotIn(), ast.NotIn: ast.In(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(),
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(), ast.Sub: ast.Add(), ast.Mult: ast.Div(), ast.Div: ast.Mult(), ast.FloorDiv: ast.Mult(),
}  # fmt: skip
OTHER_CALL = {"min": "max", "max": "min", "any": "all", "all": "any"}
# What these hold is text for people or for type checkers.
SILENT = (ast.Raise, ast.JoinedStr, ast.Assert)
SILENT_NAMES = {"__repr__", "__str__"}


@dataclass(frozen=True)
class Change:
    """One error: what stands at a place, and what is planted there."""

    room: str
    path: str
    line: int
    kind: str
    start: int
    end: int
    new: str
    old: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.kind}: {' '.join(self.old.split())[:50]} -> {self.new[:50]}"


def errors_of(room: str, path: Path) -> Iterator[Change]:
    """Yield every error that can be planted in a file."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in spoken(ast.parse(text)):
        for kind, new in errors_at(node):
            place = node.test if isinstance(node, ast.If) else node
            start, end = (
                starts[place.lineno - 1] + place.col_offset,
                starts[(place.end_lineno or 1) - 1] + (place.end_col_offset or 0),
            )
            old = text.encode()[start:end].decode()
            yield Change(room, path.relative_to(ROOT).as_posix(), place.lineno, kind, start, end, new, old)


def spoken(node: ast.AST) -> Iterator[ast.expr | ast.If]:
    """Yield the expressions and branches that tests can see: no messages, annotations or decorators."""
    if isinstance(node, ast.expr | ast.If):
        yield node
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params"}:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, SILENT):
                continue
            if isinstance(child, ast.FunctionDef) and child.name in SILENT_NAMES:
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            yield from spoken(child)


def errors_at(node: ast.expr | ast.If) -> Iterator[tuple[str, str]]:
    """Yield the kind of each error of a node, and the text that makes it."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            yield "comparison", wrapped(ast.Compare(left, [COMPARISONS[type(op)]], [right]))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC and not (text(left) or text(right)):
            yield "arithmetic", wrapped(ast.BinOp(left, ARITHMETIC[type(op)], right))
        case ast.Constant(value=bool() | None):
            return
        case ast.Constant(value=int() | float() as value):
            yield "constant", repr(value + 1 if abs(value) < 100 else value * 2)
        case ast.BoolOp(op=op, values=values):
            yield "and for or", wrapped(ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in OTHER_CALL:
            yield "min for max", ast.unparse(ast.Call(ast.Name(OTHER_CALL[name]), args, keywords))
        case ast.If(body=[*_, last]) if not isinstance(last, ast.Raise):
            yield "branch removed", "False"
            if isinstance(last, ast.Return):
                yield "returned early", "True"


def wrapped(node: ast.expr) -> str:
    """Return the text of an expression that stands where any other can."""
    return f"({ast.unparse(ast.fix_missing_locations(node))})"


def text(node: ast.expr) -> bool:
    """Return whether an operand is text or a list, as far as that is to be seen."""
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.BinOp) and any(
        isinstance(one, ast.JoinedStr | ast.List | ast.Tuple) or isinstance(getattr(one, "value", None), str)
        for one in ast.walk(node)
    )  # fmt: skip


def chosen(room: str, count: int, seed: int) -> list[Change]:
    """Return errors of a room: a kind at random, then a place at random, at most one a line."""
    draw = random.Random(f"{seed} {room}")
    all_of = [one for path in sorted((ROOT / "simnet" / room).rglob("*.py")) for one in errors_of(room, path)]
    kinds = sorted({one.kind for one in all_of})
    found: dict[tuple[str, int], Change] = {}
    while len(found) < count:
        kind = draw.choice(kinds)
        one = draw.choice([one for one in all_of if one.kind == kind])
        found.setdefault((one.path, one.line), one)
    return list(found.values())


def first_tests(folder: Path, one: Change) -> list[str]:
    """Return the unit tests of a room, those named for the module of an error first."""
    room = Path("tests", "unit", "simnet", one.room)
    named = sorted((folder / room).rglob(f"test_{Path(one.path).stem}*.py"))
    return [*(path.relative_to(folder).as_posix() for path in named), room.as_posix()]


def fails(folder: Path, tests: list[str], limit_s: float) -> bool:
    """Return whether one of some tests fails, or all together take longer than a limit."""
    if missing := [one for one in tests if not (folder / one).exists()]:
        sys.exit(f"{' '.join(missing)}: must be there")
    command = [
        sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", MARKS, *tests,
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return True
    return code not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}


def finder(folder: Path, one: Change, limit_s: float, planted_at: int) -> str:
    """Plant an error, and return which tests find it: "unit", "others" or ""."""
    path = folder / one.path
    whole = path.read_bytes()
    broken = whole[: one.start] + one.new.encode() + whole[one.end :]
    compile(broken, one.path, "exec")
    try:
        path.write_bytes(broken)
        # Python knows compiled modules by second and size.
        os.utime(path, (planted_at, planted_at))
        if fails(folder, first_tests(folder, one), limit_s):
            return "unit"
        others = [f"tests/{name}" for name in ROOMS[one.room][1]]
        return "others" if fails(folder, others, limit_s) else ""
    finally:
        path.write_bytes(whole)
        os.utime(path, (planted_at + 1, planted_at + 1))


def main() -> None:
    """Plant the errors that the arguments ask for, and print which tests find each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for the tests of one error")
    parser.add_argument("--rooms", default=",".join(ROOMS))
    parser.add_argument("--list", action="store_true", help="print the errors, plant none")
    parser.add_argument("--again", type=Path, help="plant those alone that an earlier run found: its output")
    arguments = parser.parse_args()
    planted = [
        one
        for room in arguments.rooms.split(",")
        for one in chosen(room, round(ROOMS[room][0] * arguments.count / 60), arguments.seed)
    ]
    if arguments.again:
        before = arguments.again.read_text(encoding="utf-8").splitlines()
        known = {line.partition(" s  ")[2] for line in before if line.startswith(("unit", "others"))}
        planted = [one for one in planted if str(one) in known]
    if arguments.list:
        sys.stdout.write("".join(f"{one}\n" for one in planted))
        return
    found = Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        folder = Path(name)
        for part in COPIED:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy2
            copy(ROOT / part, folder / part)
        for number, one in enumerate(planted):
            start = time.monotonic()
            by = finder(folder, one, arguments.limit, int(time.time()) + 10 * number)
            found[one.room, by] += 1
            sys.stdout.write(f"{by or 'NOT FOUND':9} {time.monotonic() - start:5.1f} s  {one}\n")
            sys.stdout.flush()
    sys.stdout.write(f"\n{'room':12} {'planted':>7} {'unit':>5} {'others':>6} {'not found':>9}\n")
    for room in [*arguments.rooms.split(","), "all"]:
        numbers = [
            sum(n for (of, by), n in found.items() if room in {of, "all"} and by == tests)
            for tests in ("unit", "others", "")
        ]
        sys.stdout.write(f"{room:12} {sum(numbers):7} {numbers[0]:5} {numbers[1]:6} {numbers[2]:9}\n")


if __name__ == "__main__":
    main()
