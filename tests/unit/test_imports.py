"""The walls between the rooms, read from the sources: who may import whom."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Collection
from fnmatch import fnmatch
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.helpers.module_order import BINSGDM_ORDER, ORDER

ROOT = Path(__file__).resolve().parents[2]
SIMPY_ROOMS = (
    "simnet/engine/links.py",
    "simnet/engine/every_send.py",
    "simnet/engine/exact.py",
)
SIMULATOR = (
    "simpy",
    "simnet.cluster.topology",
    "simnet.engine.simulation",
    "simnet.engine.links",
    "simnet.engine.every_send",
    "simnet.engine.exact",
    "simnet.engine.recurrence",
)
# Of the room of reports these ask: the explorer, and what a report holds.
ASKING = {"contents", "explorer"}
PACKAGES = ("simnet", "binsgdm", "examples")
HEAVY = {
    "torch", "pandas", "matplotlib", "numpy", "rich", "scipy", "tomli_w", "jinja2", "distributed", "dask", "pyarrow",
}  # fmt: skip
SLOW_TO_START = {
    "simpy", "importlib.metadata", "multiprocessing", "concurrent.futures", "difflib",
    "shutil", "logging", "dataclasses",
}  # fmt: skip
SIMULATE_INLINE = """
import json, sys
import simnet.cli.main
from simnet.engine.simulation import simulate
from simnet.cluster.hardware import Cluster, Link
from simnet.engine.scenario import Scenario
from simnet.workload.workload import Workload
from simnet.strategies import DenseAllReduce
from simnet.core.units import Bandwidth, Duration, Size

link = Link(bytes_per_s=Bandwidth(1.25e9), alpha_s=Duration(5e-6))
cluster = Cluster(num_nodes=2, ranks_per_node=2, intra_node=link, inter_node=link)
workload = Workload(
    gradient_bytes=Size(4e6), forward_s=Duration(0.01), backward_s=Duration(0.02), optimizer_s=Duration(0.001)
)
result = simulate(Scenario(cluster=cluster, workload=workload, strategy=DenseAllReduce()))
print(json.dumps({"iteration_s": result.result.iteration_s, "modules": sorted(sys.modules)}))
"""


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def absolute(node: ast.ImportFrom, path: Path) -> str:
    """Return the module a `from` imports from, with a relative one resolved against the file."""
    if node.level == 0:
        return node.module or ""
    package = path.relative_to(ROOT).parent.parts
    return ".".join([*package[: len(package) - node.level + 1], *filter(None, [node.module])])


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Return every module that a file imports anywhere, also inside functions and for type checking."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, path)
            found += (f"{module}.{alias.name}" for alias in node.names)
    return tuple(found)


def graph(*packages: str) -> dict[str, set[str]]:
    """Return which of its own modules each module of some packages imports; scripts import others of their folder."""
    modules = {name_of(path): path for package in packages for path in sources(package)}
    return {name: own_imports(path, modules.keys()) - {name} for name, path in modules.items()}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def own_imports(path: Path, modules: Collection[str]) -> set[str]:
    """Return the modules that a file imports; of `from package import x` that is package.x where it is a module."""
    folder = path.relative_to(ROOT).parts[0]
    found = set[str]()
    for name in imported(path):
        candidates = (name, name.rpartition(".")[0], f"{folder}.{name}", f"{folder}.{name.rpartition('.')[0]}")
        found |= {next((one for one in candidates if one in modules), "")}
    return found - {""}


def place(module: str) -> int | None:
    """Return the line of a module in the order of dependence of its package: that of its longest name there."""
    inner = module.partition(".")[2] or "__init__"
    order = BINSGDM_ORDER if module.partition(".")[0] == "binsgdm" else ORDER
    places = {name: number for number, names in enumerate(order) for name in names}
    known = [name for name in places if inner == name or inner.startswith(f"{name}.")]
    return places[max(known, key=len)] if known else None


def upward(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports that go up the order of dependence, by importing module."""
    found = {
        module: {name for name in names if (place(name) or 0) > (place(module) or 0)}
        for module, names in imports.items()
    }
    return {module: names for module, names in found.items() if names}


def offences(paths: list[Path], forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in paths
        for module in imported(path)
        if any(module == name or module.startswith(f"{name}.") for name in forbidden)
    ]


@pytest.mark.slow
def test_simnet_imports_neither_torch_nor_binsgdm() -> None:
    assert offences(sources("simnet"), ("torch", "binsgdm")) == []


def test_only_those_that_measure_reach_binsgdm_by_name() -> None:
    reached = {
        path.relative_to(ROOT).as_posix()
        for path in sources("simnet")
        if re.search(r"\b(binsgdm|torch)\.", text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and re.fullmatch(r"(binsgdm|torch)(\.\w+)+", str(node.value))
    }
    assert reached == {
        "simnet/cli/doctor.py",
        "simnet/cli/measure.py",
        "simnet/cli/binsgdm_commands.py",
        "simnet/cli/model.py",
        "simnet/cli/record.py",
        "simnet/strategies/calls.py",  # which names calls for people, and makes none
    }


@pytest.mark.parametrize("command", ["measure", "record"])
def test_a_command_of_binsgdm_starts_without_a_heavy_library(command: str) -> None:
    code = f"import json, sys, simnet.cli.{command}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert HEAVY & {name.partition(".")[0] for name in json.loads(done.stdout)} == set()


@pytest.mark.slow
def test_binsgdm_imports_neither_simnet_nor_simpy() -> None:
    assert sources("binsgdm")
    assert offences(sources("binsgdm"), ("simnet", "simpy")) == []


def test_only_the_rooms_where_time_passes_import_simpy() -> None:
    outside = [
        path
        for path in sources("simnet")
        if not any(fnmatch(path.relative_to(ROOT).as_posix(), room) for room in SIMPY_ROOMS)
    ]
    assert offences(outside, ("simpy",)) == []


def test_reports_never_import_the_simulator() -> None:
    paths = [path for path in sources("simnet/report") if path.stem not in ASKING]
    assert paths
    assert offences(paths, SIMULATOR) == []


def test_the_product_imports_nothing_of_the_evidence() -> None:
    paths = [*sources("simnet"), *sources("binsgdm"), *sources("examples"), *sources("tests"), *sources("docs")]
    assert offences(paths, ("evidence",)) == []


def test_fits_never_import_the_simulator_they_are_made_for() -> None:
    assert sources("simnet/calibration")
    above = ("simnet.collectives", "simnet.validation", "simnet.report", "simnet.cli")
    assert offences(sources("simnet/calibration"), (*SIMULATOR, *above)) == []


def test_every_module_has_its_place_in_the_order_of_dependence() -> None:
    modules = graph("simnet")
    assert [module for module in modules if place(module) is None] == []
    empty = {name for names in ORDER for name in names if not any(place_is(name, module) for module in modules)}
    assert empty == set()


def test_the_plan_of_the_house_tells_the_same_order() -> None:
    plan = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## simnet: the order of dependence")[2]
    cells = [line.split("|")[1] for line in plan.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    told = [{name.rstrip("/") for name in re.findall(r"`([\w./]+)`", cell)} for cell in cells]
    assert told == [set(names) for names in ORDER[:-1]]


def place_is(name: str, module: str) -> bool:
    return f"{module}.".startswith(f"simnet.{name}.") or (name == "__init__" and module == "simnet")


def test_no_import_goes_up_the_order_of_dependence() -> None:
    assert upward(graph("simnet")) == {}


def test_binsgdm_has_an_order_of_its_own_and_no_import_goes_up_it() -> None:
    imports = graph("binsgdm")
    assert [module for module in imports if place(module) is None] == []
    names = {name for line in BINSGDM_ORDER for name in line}
    assert {name for name in names if not any(f"{module}.".startswith(f"binsgdm.{name}.") for module in imports)} == {
        "__init__"
    }
    assert upward(imports) == {}


def test_an_import_of_binsgdm_that_goes_up_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "binsgdm/comm/thread.py": "def f():\n    from binsgdm.optimizers.base import x",
        "binsgdm/optimizers/base.py": "from binsgdm.comm.thread import x",
    }
    plant(tmp_path, monkeypatch, files)
    assert upward(graph("binsgdm")) == {"binsgdm.comm.thread": {"binsgdm.optimizers.base"}}


def test_an_import_that_goes_up_is_found_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        tmp_path,
        monkeypatch,
        {
            "simnet/core/units.py": "def f():\n    from simnet.cluster.hardware import Link",
            "simnet/cluster/hardware.py": "from simnet.core import units",
            "simnet/cluster/schedule.py": "",
            "simnet/cluster/topology.py": "if TYPE_CHECKING:\n    from simnet.collectives.ring import x\n"
            "from simnet.cluster import schedule",
            "simnet/collectives/ring.py": "from simnet.cluster.topology import x",
        },
    )
    assert upward(graph("simnet")) == {
        "simnet.core.units": {"simnet.cluster.hardware"},
        "simnet.cluster.topology": {"simnet.collectives.ring"},
    }


def test_there_is_no_import_cycle() -> None:
    assert all(sources(package) for package in PACKAGES)
    TopologicalSorter(graph(*PACKAGES)).prepare()


@pytest.mark.parametrize(
    "files",
    [
        {"simnet/a.py": "import simnet.b", "simnet/b.py": "def f():\n    from simnet import a"},
        {"examples/a.py": "from b import x", "examples/b.py": "import a"},
        {"simnet/a/__init__.py": "from simnet.a.b import x", "simnet/a/b.py": "from simnet.a import x"},
    ],
    ids=["lazy", "scripts", "package"],
)
def test_a_cycle_is_found(files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, monkeypatch, files)
    with pytest.raises(CycleError):
        TopologicalSorter(graph("simnet", "examples")).prepare()


def plant(folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Let the sources be these files."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", folder)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    "line",
    [
        "import simpy",
        "import simpy.events as e",
        "def f():\n    from simpy import Environment",
        "from simnet.engine import simulation",
        "from ..engine import simulation",
        "from ..engine.links import Network",
    ],
)
def test_a_planted_import_is_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    path = tmp_path / "simnet" / "report" / "planted.py"
    path.parent.mkdir(parents=True)
    path.write_text(line + "\n", encoding="utf-8")
    assert len(offences([path], SIMULATOR)) == 1


def test_the_command_that_simulates_loads_nothing_that_it_does_not_use() -> None:
    code = "import atexit, json, sys; atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr));"
    code += "from simnet.cli.main import main; main(['simulate', 'bert_base_10gbit'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    modules = set(json.loads(done.stderr))
    assert "simnet.engine.simulation" in modules
    assert modules & {*HEAVY, *SLOW_TO_START} == set()


def test_starting_and_simulating_import_no_heavy_library() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIMULATE_INLINE], capture_output=True, text=True, cwd=ROOT, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["iteration_s"] > 0
    assert HEAVY & {name.partition(".")[0] for name in seen["modules"]} == set()


@pytest.mark.parametrize(
    ("word", "places"),
    [
        ("savefig(", {"simnet/report/figure.py"}),
        ("rc_context(", {"simnet/report/figure.py"}),
        ("csv.writer(", {"simnet/report/table.py"}),
        ("DictWriter(", set()),
        ("from rich.table", {"simnet/report/table.py"}),
        ("from rich.progress", {"simnet/report/progress_bar.py"}),
        ("progressbar(", set()),
    ],
)
def test_tables_figures_and_bars_are_made_in_one_place_each(word: str, places: set[str]) -> None:
    found = {
        path.relative_to(ROOT).as_posix() for path in sources("simnet") if word in path.read_text(encoding="utf-8")
    }
    assert found == places
