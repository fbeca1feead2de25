"""The faces of both packages: what users import, from where; pages and examples import from nowhere else."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests.helpers.needs import needs

ROOT = Path(__file__).resolve().parents[2]
# A name that goes, comes or moves is a change for users: it is one here, too.
FACES = {
    "simnet": {
        "AdviceAnswer", "Answer", "CalibrationAnswer", "CrossoverAnswer", "RunAnswer", "Scenario", "SimnetError",
        "SweepAnswer", "TimeToTargetAnswer", "ValidationAnswer", "__version__", "advise", "calibrate", "crossover",
        "fits", "load", "read_frame", "simulate", "sweep", "time_to_target", "validate",
    },
    "simnet.cluster": {"FAULTS", "Fault"},
    "simnet.collectives": {"Algorithm", "Schedule"},
    "binsgdm": {
        "PAPER", "SYSTEMS", "BinSGDM", "BinsgdmError", "DiLoCo", "LocalSGD", "OneBitAdam", "attach", "attach_fsdp",
        "attach_one_bit_adam", "check_replicas", "compress_gradients", "compress_replicas", "detach", "record",
        "register",
    },
    "binsgdm.compressors": {
        "CheckedCompressor", "CompressorSystem", "Key", "Payload", "ProtocolSystem", "Shapes", "check_payload",
        "numel_of",
    },
}  # fmt: skip
"""All names of each package and room that loads them on first use."""
ROOMS = {
    "simnet.strategies": {
        "STRATEGIES", "Bucket", "Choices", "CompressingStrategy", "Exchange", "GatheredPayload", "GatheringStrategy",
        "KernelCost", "Strategy", "gathering_kernel_costs", "register",
    },
    "binsgdm.comm": {
        "AllGather", "AllReduceMax", "AllReduceSum", "AllToAll", "Message", "Protocol", "RankContext", "SendRecv",
    },
}  # fmt: skip
"""What an author needs of rooms that load all of theirs; they have more names, which no page uses."""
EXCEPTIONS = {
    "binsgdm.bench.proof": "what the script of a proof runs",
    "simnet.cli.main.main": "a script that registers parts of its own, and then is the command `simnet`",
    "simnet.collectives.algorithms": "the list of all-reduces: a module, as `algorithms.register` reads well",
    "simnet.collectives.closed_form": "times of parts of algorithms, from the literature",
    "simnet.collectives.direct": "rounds of which other algorithms are made",
    "simnet.collectives.ring": "rounds of which other algorithms are made",
}
"""What pages and examples use beside the faces, each with the reason."""
PROGRAMS = {"python -m simnet", "python -m binsgdm"}
PACKAGE = r"(?:simnet|binsgdm)"
FROM = re.compile(rf"\bfrom\s+({PACKAGE}(?:\.\w+)*)\s+import\s+(\([^)]*\)|[^\n;\"'`]+)")
IMPORT = re.compile(rf"^\s*(?:>>> )?import\s+({PACKAGE}(?:\.\w+)+)", re.MULTILINE)
CALL = re.compile(rf"(?<![\w./-])({PACKAGE}(?:\.\w+)+)\(")
REFERENCE = re.compile(rf"^::: ({PACKAGE}(?:\.\w+)+)", re.MULTILINE)
RUN = re.compile(rf"-m ({PACKAGE}(?:\.\w+)*)")


def pages() -> list[Path]:
    """Return what users read: pages, the text that pages are made of, and examples; not evidence and decisions."""
    docs = [path for kind in ("*.md", "*.jinja") for path in (ROOT / "docs").rglob(kind)]
    examples = [path for kind in ("*.py", "*.ipynb", "*.sh", "*.md") for path in (ROOT / "examples").rglob(kind)]
    left_out = (ROOT / "docs/evidence", ROOT / "docs/explanation/decisions.md")
    read = [path for path in docs if not any(path.is_relative_to(folder) for folder in left_out)]
    return [ROOT / "README.md", *sorted(read), *sorted(examples)]


def text_of(path: Path) -> str:
    """Return the text of a page, or of the cells of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])


def used(text: str) -> set[str]:
    """Return what a text takes from the packages, by its dotted name, and what it runs by `python -m`."""
    found = {name for pattern in (IMPORT, CALL, REFERENCE) for name in pattern.findall(text)}
    for module, names in FROM.findall(text):
        listed = re.sub(r"#[^\n]*", "", names).strip("() \n").split(",")
        found |= {f"{module}.{name.split()[0]}" for name in listed if name.strip()}
    return found | {f"python -m {name}" for name in RUN.findall(text)}


def beside_the_faces(text: str) -> set[str]:
    """Return what a text uses that no face has, and no attribute of a name that one has."""
    public = {f"{face}.{name}" for face, names in {**FACES, **ROOMS}.items() for name in names}
    return {
        name for name in used(text) - PROGRAMS if not any(name == one or name.startswith(f"{one}.") for one in public)
    }


def source(face: str) -> ast.Module:
    """Return the syntax of the file of a package."""
    return ast.parse((ROOT.joinpath(*face.split(".")) / "__init__.py").read_text(encoding="utf-8"))


def imported_for_checkers(face: str) -> Iterator[tuple[str, str]]:
    """Yield name and module of what the file of a package imports or sets for type checkers alone."""
    for node in source(face).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                if isinstance(line, ast.ImportFrom):
                    yield from ((alias.asname or alias.name, line.module or "") for alias in line.names)


@pytest.mark.parametrize("face", FACES)
def test_a_face_has_exactly_these_names(face: str) -> None:
    assert set(import_module(face).__all__) == FACES[face]


@pytest.mark.parametrize("face", FACES)
def test_what_checkers_of_types_see_is_what_is_loaded(face: str) -> None:
    seen, homes = dict(imported_for_checkers(face)), import_module(face)._HOMES
    of_version = {"VERSION": "simnet.core.version"} if face == "simnet" else {}
    assert seen == {**homes, **of_version}
    assert set(homes) == FACES[face] - {"__version__"}


@pytest.mark.parametrize("face", [*FACES, *ROOMS])
def test_every_name_of_a_face_is_there(face: str) -> None:
    if face.startswith("binsgdm"):
        needs("torch")
    module = import_module(face)
    for name in {**FACES, **ROOMS}[face]:
        assert name in module.__all__
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=rf"module '{face}' has no attribute 'no_such_name'"):
        _ = module.no_such_name


@pytest.mark.parametrize("face", FACES)
def test_a_face_loads_no_library_and_none_of_its_homes(face: str) -> None:
    code = f"import sys, {face}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert face in modules
    assert not modules & {"torch", "numpy", "msgspec", "click", *import_module(face)._HOMES.values()}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_or_an_example_uses_the_faces_alone(page: Path) -> None:
    assert beside_the_faces(text_of(page)) - set(EXCEPTIONS) == set()


@pytest.mark.parametrize(
    ("face", "page"),
    [("simnet", "python.md"), ("binsgdm", "python.md"), ("binsgdm.compressors", "python.md")],
)
def test_the_reference_has_every_name_of_a_face(face: str, page: str) -> None:
    text = (ROOT / "docs/reference" / page).read_text(encoding="utf-8")
    missing = {name for name in FACES[face] if not re.search(rf"\b{face}\.{name}\b", text)}
    assert missing <= {"__version__"}


def test_every_exception_is_used() -> None:
    assert set(EXCEPTIONS) - {name for page in pages() for name in used(text_of(page))} == set()
