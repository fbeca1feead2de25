"""Write the generated pages of docs/reference: `python docs/generate.py`.

`--check` compares them.

The tables come from the structs, registries and commands of the packages; the text around them stands in
`docs/templates/reference/`.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # run as a script, from any directory

from msgspec import Struct

from docs import commands, keys
from docs.regions import filled
from simnet import strategies
from simnet.analysis import convergence
from simnet.calibration import measurement_file, series_labels
from simnet.cli import output
from simnet.cli.main import FORMER, GROUPS, cli
from simnet.cluster import hardware, kernel_times, network_costs
from simnet.cluster.faults import node_failure, windows
from simnet.cluster.nccl_costs import NcclCosts
from simnet.collectives import algorithms
from simnet.core import files, parsing, templates, units
from simnet.core.bounded_types import Precision
from simnet.core.schema import tag_of
from simnet.engine import result, scenario
from simnet.report import rows
from simnet.strategies import step_file
from simnet.workload import gpu_memory, roofline, training_step, workload
from simnet.workload.kernel_cost import KernelCost

REFERENCE = ROOT / "docs" / "reference"
STRUCTS: dict[type[Struct], str] = {
    scenario.RunSettings: "scenario.md#run",
    hardware.Cluster: "cluster.md",
    hardware.Link: "cluster.md#links",
    hardware.Fabric: "cluster.md#fabric",
    hardware.Fault: "cluster.md#faults",
    hardware.SlowNode: "cluster.md#faults",
    workload.Workload: "scenario.md#workload",
    workload.Gradient: "scenario.md#tensors",
    workload.ComputeTime: "scenario.md#compute",
    workload.Work: "scenario.md#work",
    workload.StepMemory: "scenario.md#memory",
    training_step.GradientsFile: "scenario.md#gradients-files",
    hardware.Calibration: "cluster.md#calibration",
    hardware.LinkCalibration: "cluster.md#calibrated-links",
    kernel_times.KernelTime: "cluster.md#kernels",
    kernel_times.HostCost: "cluster.md#host",
    network_costs.NodesPoint: "cluster.md#by_nodes",
    NcclCosts: "cluster.md#nccl",
    network_costs.LibraryCosts: "cluster.md#libraries",
    hardware.FittedTo: "cluster.md#fitted_to",
    convergence.Convergence: "files.md#convergence",
    convergence.TrainedSystem: "files.md#systems",
    convergence.TrainingCurve: "files.md#curves",
    result.RunResult: "files.md#one-result",
    result.StrategyResult: "files.md#result-and-baseline",
    result.Breakdown: "files.md#breakdown",
    gpu_memory.GpuMemory: "files.md#memory",
    result.RankWaits: "files.md#waits",
    result.LateRank: "files.md#waits",
    node_failure.Availability: "files.md#availability",
    result.LostTime: "files.md#lost_time",
    result.LostToFault: "files.md#lost_time",
    result.StepTimes: "files.md#lost_time",
    result.SweepResult: "files.md#a-sweep",
    result.SweptAxis: "files.md#a-sweep",
    result.PointResult: "files.md#a-sweep",
    result.RefusedPoint: "files.md#a-sweep",
    scenario.Scenario: "scenario.md",
    measurement_file.MeasurementFile: "files.md#measurements",
    measurement_file.Hardware: "files.md#hardware",
    measurement_file.Software: "files.md#software",
    measurement_file.Setup: "files.md#setups",
    measurement_file.Series: "files.md#series",
    measurement_file.Check: "files.md#checks",
    step_file.StepFile: "files.md#recorded-steps",
    step_file.StepSource: "files.md#source",
    step_file.RecordedLayout: "files.md#recordings",
    step_file.RecordedGroup: "files.md#groups",
    step_file.RecordedStream: "files.md#streams",
    step_file.RecordedOperation: "files.md#operations",
    step_file.RecordedGradient: "files.md#gradients",
    strategies.Strategy: "scenario.md#strategies",
    strategies.CompressingStrategy: "scenario.md#keys-of-every-compressing-system",
    strategies.DenseAllReduce: "scenario.md#keys-of-single-strategies",
    strategies.Planner: "scenario.md#keys-of-every-strategy",
}
"""The section that has the keys of a struct."""
BASES = (hardware.NamedPart, windows.TimedFault)
"""What has keys that a page lists once, beside those."""


def fault_sections() -> str:
    """Return a section for each registered fault."""
    sections = []
    for fault in hardware.FAULTS.built_in():
        base = windows.TimedFault if issubclass(fault, windows.TimedFault) else hardware.Fault
        more = ["- `from`, `to`, `every`"] if base is windows.TimedFault else []
        listed = "\n".join([keys.listing(fault, STRUCTS, without=base), *more])
        sections.append(f"#### `{tag_of(fault)}`\n\n{keys.summary(fault)}\n\n{listed}")
    return "\n\n".join(sections)


def _base_of(strategy: type[strategies.Strategy]) -> type[strategies.Strategy]:
    """Return the base whose keys have a section of their own."""
    is_compressing = issubclass(strategy, strategies.CompressingStrategy)
    return strategies.CompressingStrategy if is_compressing else strategies.Strategy


def topology_rows() -> str:
    """Return the topologies of the compressing systems as a list."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for strategy in strategies.STRATEGIES.built_in():
        if issubclass(strategy, strategies.CompressingStrategy):
            kinds.setdefault(strategy.topologies, []).append(f"`{tag_of(strategy)}`")
    rows = (
        f"- {', '.join(names)}: {', '.join(f'`{topology}`' for topology in known)}" for known, names in kinds.items()
    )
    return "\n".join(rows)


def strategy_rows() -> str:
    """Return the strategies as a list: name in files, title, what each does, and its own keys."""
    rows = []
    for strategy in strategies.STRATEGIES.built_in():
        names = ", ".join(f"`{key}`" for key in keys.own_keys(strategy, _base_of(strategy)))
        what = " ".join(keys.summary(strategy).partition("\n\n")[0].split()).rstrip(".")
        title = "" if strategy.title in what else f"{strategy.title}. "
        rows.append(f"- `{tag_of(strategy)}`: {title}{what}." + (f" Keys: {names}." if names else ""))
    return "\n".join(rows)


def strategy_keys() -> str:
    """Return the keys of single strategies as a list, each once; a key that differs between strategies names them."""
    kinds: dict[keys.Key, list[str]] = {}
    for strategy in strategies.STRATEGIES.built_in():
        for key in keys.keys(strategy, STRUCTS, without=_base_of(strategy)):
            kinds.setdefault(key, []).append(tag_of(strategy))
    names = Counter(key.name for key in kinds)
    lines: list[str] = []
    meanings: set[tuple[str, str]] = set()
    for key in sorted(kinds, key=lambda key: key.name):
        whose = f"of {', '.join(f'`{kind}`' for kind in kinds[key])}: " if names[key.name] > 1 else ""
        is_known = (key.name, key.meaning) in meanings
        meanings.add((key.name, key.meaning))
        lines.append(key._replace(meaning=whose + ("the same" if is_known else key.meaning)).line())
    return "\n".join(lines)


def label_sections() -> str:
    """Return the kinds of series in a measurement file: their names, and the labels that they must have."""
    kinds: dict[str, list[str]] = {}
    # Every kind has the labels of this base class, which the page describes once.
    base = series_labels.LABELS["kernel"].__mro__[1]
    for kind, struct in series_labels.LABELS.items():
        # "kernel merge" is no kind but a name of the kind "kernel" with further labels.
        if " " not in kind:
            names = ", ".join(f"`{name}`" for name in series_labels.NAMES.get(kind, ()))
            rows = [*keys.keys(struct, {}, without=base), *_labels_of_names(kind, struct)]
            listed = "\n".join(row._replace(default="").line(is_data=True) for row in rows)
            kinds.setdefault(listed or "It needs no labels.", []).append(f"`{kind}`" + (f" ({names})" if names else ""))
    return "\n\n".join(f"{' and '.join(named)}:\n\n{listed}" for listed, named in kinds.items())


def _labels_of_names(kind: str, base: type[Struct]) -> list[keys.Key]:
    """Return the further labels of some names of a kind."""
    names: dict[type[Struct], list[str]] = {}
    for key, struct in series_labels.LABELS.items():
        if key.startswith(f"{kind} "):
            names.setdefault(struct, []).append(f"`{key.partition(' ')[2]}`")
    return [
        row._replace(meaning=f"of {', '.join(named)}: {row.meaning}")
        for struct, named in names.items()
        for row in keys.keys(struct, {}, without=base)
    ]


def kernel_rows() -> str:
    """Return the kernels that each strategy runs as a list."""
    kinds: dict[str, list[str]] = {}
    for strategy in strategies.STRATEGIES.built_in():
        kind = tag_of(strategy)
        moved = (
            f"`{cost.name.removeprefix(kind)}` {_moved_text(cost)}" + ("" if cost.is_estimable else "*")
            for cost in strategy.kernels
        )
        kinds.setdefault(", ".join(moved), []).append(f"`{kind}`")
    return "\n".join(f"- {', '.join(named)}: {moved}" for moved, named in kinds.items())


def _moved_text(cost: KernelCost) -> str:
    of_results = f" + {cost.bytes_per_result:g} of the result" if cost.bytes_per_result else ""
    return f"{cost.bytes_per_element:g}{of_results}"


def algorithm_rows() -> str:
    """Return the all-reduce algorithms as a list."""
    rows = [
        f"- `{algorithm.name}`: {algorithm.summary}" + (f"; needs {algorithm.rule}" if algorithm.rule else "")
        for algorithm in algorithms.every()
    ]
    known = (algorithm for algorithm in algorithms.every() if algorithm.is_tuned_over and not algorithm.needs_nccl)
    tuned = ", ".join(f"`{algorithm.name}`" for algorithm in known)
    rows += [
        f"- `{algorithms.AUTO}`: what NCCL has: `{algorithms.NCCL}` where it exists, else the fastest of {tuned} for "
        "each message",
        f"- `{algorithms.ANY}`: the fastest of all for each message; a note names what NCCL does not have",
    ]
    return "\n".join(rows)


def column_rows(fields: Iterable[rows.Field]) -> str:
    """Return fields of results as one line: the column of each, with what people call it where no key of it says so."""
    named = {*result.RunResult.__struct_fields__, *result.StrategyResult.__struct_fields__}
    return ", ".join(f"`{one.name}`" + f" ({one.text.strip()})" * (one.name not in named) for one in fields)


def gpu_rows() -> str:
    """Return the shipped GPUs as a table of text."""
    formats = get_args(Precision)
    rows = [("name", *formats, "bandwidth", "memory")]
    for gpu in (hardware.find_gpu(name) for name in files.names("gpus")):
        peaks = (f"{gpu.peak_flops[name] / 1e12:,.5g}" if name in gpu.peak_flops else "-" for name in formats)
        rows.append((gpu.name, *peaks, f"{gpu.memory_bytes_per_s / 1e9:,.5g}", f"{gpu.memory_bytes / 1e9:g}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)
    return "\n".join(["```text", *lines, "```"])


def share_rows() -> str:
    """Return the shares of rooflines that published trainings attain as a table."""
    every = roofline.attainments()
    rows = ["| work | share | 90 % interval | from |", "|---|---|---|---|"]
    for kind in every.__struct_fields__:
        attained = getattr(every, kind)
        what = keys.meaning(roofline.Attainments, kind).rstrip(".")
        rows.append(
            f"| {what} | {attained.share:.2f} | {attained.interval[0]:.2f} to {attained.interval[1]:.2f} "
            f"| {attained.source} |"
        )
    return "\n".join(rows)


def rendered(name: str) -> str:
    """Return a page of keys from its template."""
    structs = {struct.__name__: struct for struct in (*STRUCTS, *BASES)}

    def key_list(struct: str, without: str | None = None) -> str:
        base = structs[without] if without else None
        return keys.listing(structs[struct], STRUCTS, without=base, is_data=name == "files.md")

    facts = {
        "keys": key_list,
        "label_sections": label_sections,
        "faults": fault_sections,
        "strategies": strategy_rows,
        "topologies": topology_rows,
        "strategy_keys": strategy_keys,
        "algorithms": algorithm_rows,
        "kernels": kernel_rows,
        "gpus": gpu_rows,
        "columns": column_rows,
        "rows": rows,
        "shares": share_rows,
        "mebibytes": {
            "any": files.MAX_BYTES >> 20,
            "toml": files.MAX_TOML_BYTES >> 20,
            "step": step_file.MAX_BYTES >> 20,
        },
        "flops_per_byte": f"{step_file.FLOPS_PER_BYTE:g}",
        "depth": parsing.MAX_DEPTH,
        "quantity_length": units.MAX_TEXT,
        "line_length": output.LINE,
    }
    return templates.page(f"reference/{name}", facts)


def command_sections() -> tuple[list[str], list[dict[str, object]]]:
    """Return the options that several commands share, and what the page of commands says of each command."""
    every = dict(commands.commands(cli, "simnet"))
    counts = Counter(pair for command in every.values() for pair in commands.lines(command).items())
    # Of several forms of an option the commonest is told once.
    shared = {name: line for (name, line), count in reversed(counts.most_common()) if count > 1}
    sections = []
    for path, command in every.items():
        of_it = commands.lines(command)
        is_shared = {name: shared.get(name) == line for name, line in of_it.items()}
        sections.append(
            {
                "path": path,
                "usage": commands.usage(command, path).replace(" [OPTIONS]", ""),
                "about": commands.about(command),
                "options": [line for name, line in of_it.items() if not is_shared[name]],
                "shared": [name for name in of_it if is_shared[name]],
                "rare": commands.rare(command),
            }
        )
    return sorted(shared.values()), sections


def commands_page() -> str:
    """Return the page of commands."""
    former = {name: now.split(", ") for name, (_, now) in FORMER.items()}
    shared, sections = command_sections()
    facts = {"groups": GROUPS, "former": former, "shared": shared, "sections": sections}
    return templates.page("reference/commands.md", facts)


def python_page() -> str:
    """Return the page of the Python interfaces, of which the region of the systems is generated; it needs torch."""
    from docs import systems

    return filled((REFERENCE / "python.md").read_text(encoding="utf-8"), {"systems": systems.every()})


def pages() -> dict[Path, Callable[[], str]]:
    """Return what makes each generated page; that of the systems only where torch is installed."""
    names = ("scenario.md", "cluster.md", "files.md")
    made: dict[str, Callable[[], str]] = {name: partial(rendered, name) for name in names}
    made["commands.md"] = commands_page
    if find_spec("torch"):
        made["python.md"] = python_page
    return {REFERENCE / name: make for name, make in made.items()}


def is_current(path: Path) -> bool:
    """Return whether a page is the same as if it were generated now."""
    return path.exists() and path.read_text(encoding="utf-8") == pages()[path]()


def main() -> int:
    """Write the pages, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the generated pages of docs/reference.")
    parser.add_argument("--check", action="store_true", help="compare only; exit code 1 if a page is not current")
    if parser.parse_args().check:
        old = [path.relative_to(ROOT).as_posix() for path in pages() if not is_current(path)]
        sys.stderr.writelines(f"{name}: not current; run python docs/generate.py\n" for name in old)
        return int(bool(old))
    for path, make in pages().items():
        path.write_text(make(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
