"""Write the generated pages of docs/reference, and docs/evidence/gpu.md: `python docs/generate.py`.

`--check` compares them.

The tables come from the structs, registries and commands of the packages; the text around them stands in
`docs/templates/reference/`.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))  # run as a script, from any directory

import click
from msgspec import Struct

from docs import commands, keys
from simnet import strategies
from simnet.analysis import convergence
from simnet.calibration import measurement_file, series_labels
from simnet.cli import terminal
from simnet.cli.main import DEVELOPMENT, FORMER, GROUPS, cli
from simnet.cluster import availability, gpu_models, hardware, kernel_times, network_costs
from simnet.cluster.nccl_costs import NcclCosts
from simnet.collectives import algorithms
from simnet.core import files, parsing, templates, units
from simnet.core.bounded_types import Precision
from simnet.core.registry import tag_of
from simnet.engine import result, scenario
from simnet.report import card_page
from simnet.strategies import step_file
from simnet.validation.lab import campaign
from simnet.workload import gpu_memory, roofline, training_step, workload
from simnet.workload.kernel_cost import KernelCost

REFERENCE = ROOT / "docs" / "reference"
EVIDENCE = ROOT / "docs" / "evidence"
STRUCTS: dict[type[Struct], str] = {
    scenario.RunSettings: "scenario.md#run",
    hardware.Cluster: "cluster.md",
    hardware.Link: "cluster.md#links",
    hardware.Fabric: "cluster.md#fabric",
    hardware.Fault: "cluster.md#faults",
    hardware.SlowNode: "cluster.md#faults",
    workload.Workload: "workload.md",
    workload.Gradient: "workload.md#tensors",
    workload.ComputeTime: "workload.md#compute",
    workload.Work: "workload.md#work",
    workload.StepMemory: "workload.md#memory",
    training_step.GradientsFile: "workload.md#gradients-files",
    hardware.Calibration: "calibration.md",
    hardware.LinkCalibration: "calibration.md#links",
    kernel_times.KernelTime: "calibration.md#kernels",
    kernel_times.HostCost: "calibration.md#host",
    network_costs.NodesPoint: "calibration.md#by_nodes",
    NcclCosts: "calibration.md#nccl",
    network_costs.LibraryCosts: "calibration.md#libraries",
    hardware.FittedTo: "calibration.md#fitted_to",
    campaign.Campaign: "campaign.md",
    campaign.Points: "campaign.md#points",
    campaign.Links: "campaign.md#links",
    convergence.Convergence: "convergence.md",
    convergence.TrainedSystem: "convergence.md#systems",
    convergence.TrainingCurve: "convergence.md#curves",
    result.RunResult: "results.md#one-result",
    result.StrategyResult: "results.md#result-and-baseline",
    result.Breakdown: "results.md#breakdown",
    gpu_memory.GpuMemory: "results.md#memory",
    result.RankWaits: "results.md#waits",
    result.LateRank: "results.md#waits",
    availability.Availability: "results.md#availability",
    result.LostTime: "results.md#lost_time",
    result.LostToFault: "results.md#lost_time",
    result.StepTimes: "results.md#lost_time",
    result.SweepResult: "results.md#a-sweep",
    result.SweptAxis: "results.md#a-sweep",
    result.PointResult: "results.md#a-sweep",
    result.RefusedPoint: "results.md#a-sweep",
    scenario.Scenario: "scenario.md",
    measurement_file.MeasurementFile: "measurement-file.md",
    measurement_file.Hardware: "measurement-file.md#hardware",
    measurement_file.Software: "measurement-file.md#software",
    measurement_file.Setup: "measurement-file.md#setups",
    measurement_file.Series: "measurement-file.md#series",
    measurement_file.Check: "measurement-file.md#checks",
    step_file.StepFile: "step-file.md",
    step_file.StepSource: "step-file.md#source",
    step_file.RecordedLayout: "step-file.md#recordings",
    step_file.RecordedGroup: "step-file.md#groups",
    step_file.RecordedStream: "step-file.md#streams",
    step_file.RecordedOperation: "step-file.md#operations",
    step_file.RecordedGradient: "step-file.md#gradients",
    strategies.Strategy: "strategies.md",
    strategies.CompressingStrategy: "strategies.md#keys-of-every-compressing-system",
    strategies.DenseAllReduce: "strategies.md#all_reduce",
    strategies.Planner: "strategies.md#planner",
}
"""The section that has the keys of a struct."""


def fault_sections() -> str:
    """Return a section for each registered fault."""
    sections = [
        f"### `{tag_of(fault)}`\n\n{keys.summary(fault)}\n\n{keys.table(fault, STRUCTS)}"
        for fault in hardware.FAULTS.built_in()
    ]
    return "\n\n".join(sections)


def _base_of(strategy: type[strategies.Strategy]) -> type[strategies.Strategy]:
    """Return the base whose keys have a section of their own."""
    is_compressing = issubclass(strategy, strategies.CompressingStrategy)
    return strategies.CompressingStrategy if is_compressing else strategies.Strategy


def topology_rows() -> str:
    """Return the topologies of each compressing system as a table."""
    rows = ["| `kind` | `topology`, its own first |", "|---|---|"]
    kinds: dict[tuple[str, ...], list[str]] = {}
    for strategy in strategies.STRATEGIES.built_in():
        if issubclass(strategy, strategies.CompressingStrategy):
            kinds.setdefault(strategy.topologies, []).append(f"`{tag_of(strategy)}`")
    rows += [f"| {', '.join(names)} | {', '.join(f'`{one}`' for one in found)} |" for found, names in kinds.items()]
    return "\n".join(rows)


def strategy_tables() -> dict[str, list[str]]:
    """Return the strategies with keys of their own, by the table of these keys."""
    found: dict[str, list[str]] = {}
    for strategy in strategies.STRATEGIES.built_in():
        if keys.own_keys(strategy, base := _base_of(strategy)):
            made = keys.table(strategy, STRUCTS, without=base)
            found.setdefault(made, []).append(tag_of(strategy))
    return found


def strategy_rows() -> str:
    """Return the strategies as a table: name in files, title, what each does, and its own keys."""
    rows = ["| `kind` | title | what it does | keys of its own |", "|---|---|---|---|"]
    sections = {kind: "-".join(kinds) for kinds in strategy_tables().values() for kind in kinds}
    for strategy in strategies.STRATEGIES.built_in():
        kind, own = tag_of(strategy), ", ".join(f"`{key}`" for key in keys.own_keys(strategy, _base_of(strategy)))
        name = f"[`{kind}`](#{sections[kind]})" if own else f"`{kind}`"
        what = " ".join(keys.summary(strategy).partition("\n\n")[0].split()).rstrip(".")
        rows.append(f"| {name} | {strategy.title} | {what} | {own or '-'} |")
    return "\n".join(rows)


def strategy_sections() -> str:
    """Return a section for each strategy with keys of its own; those with the same keys share one."""
    return "\n\n".join(f"### {', '.join(kinds)}\n\n{made}" for made, kinds in strategy_tables().items())


def label_sections() -> str:
    """Return a section for each kind of series in a measurement file: its names, and the labels that it must have."""
    sections = []
    # Every kind has the labels of this base class, which the page describes once.
    base = series_labels.LABELS["kernel"].__mro__[1]
    for kind, struct in series_labels.LABELS.items():
        # "kernel merge" is no kind but a name of the kind "kernel" with further labels.
        if " " not in kind:
            names = ", ".join(f"`{name}`" for name in series_labels.NAMES.get(kind, ()))
            rows = [*keys.keys(struct, {}, without=base), *_labels_of_names(kind, struct)]
            told = keys.as_table(rows) if rows else "It needs no labels."
            sections.append(f"### {kind}\n\n" + (f"Names: {names}.\n\n" if names else "") + told)
    return "\n\n".join(sections)


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
    """Return the kernels that each strategy runs as a table."""
    rows = ["| strategy | kernels, and the bytes that each moves per element |", "|---|---|"]
    for strategy in strategies.STRATEGIES.built_in():
        moved = (f"`{cost.name}` {_moved_text(cost)}" + ("" if cost.is_estimable else "*") for cost in strategy.kernels)
        rows.append(f"| `{tag_of(strategy)}` | {', '.join(moved)} |")
    return "\n".join(rows)


def _moved_text(cost: KernelCost) -> str:
    of_results = f" + {cost.bytes_per_result:g} of the result" if cost.bytes_per_result else ""
    return f"{cost.bytes_per_element:g}{of_results}"


def algorithm_rows() -> str:
    """Return the all-reduce algorithms as a table."""
    rows = ["| name | what it does | needs |", "|---|---|---|"]
    rows += [f"| `{one.name}` | {one.summary} | {one.rule or '-'} |" for one in algorithms.every()]
    tuned = ", ".join(f"`{one.name}`" for one in algorithms.every() if one.is_tuned_over and not one.needs_nccl)
    rows += [
        f"| `{algorithms.AUTO}` | what NCCL has: `{algorithms.NCCL}` where it exists, else the fastest of {tuned} for "
        "each message | - |",
        f"| `{algorithms.ANY}` | the fastest of all for each message; a note names what NCCL does not have | - |",
    ]
    return "\n".join(rows)


def gpu_rows() -> str:
    """Return the shipped GPUs as a table, and where their numbers come from."""
    formats = get_args(Precision)
    rows = [f"| name | {' | '.join(formats)} | bandwidth | memory |", "|---" * (len(formats) + 3) + "|"]
    gpus = [gpu_models.find(name) for name in files.names("gpus")]
    for gpu in gpus:
        peaks = (f"{gpu.peak_flops[one] / 1e12:,.5g}" if one in gpu.peak_flops else "-" for one in formats)
        sizes = f"{gpu.memory_bytes_per_s / 1e9:,.5g}", f"{gpu.memory_bytes / 1e9:g}"
        rows.append(f"| `{gpu.name}` | {' | '.join([*peaks, *sizes])} |")
    by_source: dict[str, list[str]] = {}
    for gpu in gpus:
        by_source.setdefault(gpu.source, []).append(gpu.name)
    return "\n".join([*rows, "", *(f"- {', '.join(named)}: {source}" for source, named in by_source.items())])


def share_rows() -> str:
    """Return the shares of rooflines that published trainings attain as a table."""
    every = roofline.attainments()
    rows = ["| work | share | 90 % interval | from |", "|---|---|---|---|"]
    for kind in every.__struct_fields__:
        found = getattr(every, kind)
        what = keys.meaning(roofline.Attainments, kind).rstrip(".")
        rows.append(
            f"| {what} | {found.share:.2f} | {found.interval[0]:.2f} to {found.interval[1]:.2f} | {found.source} |"
        )
    return "\n".join(rows)


def rendered(name: str) -> str:
    """Return a page of keys from its template."""
    structs = {struct.__name__: struct for struct in STRUCTS}

    def key_table(struct: str, without: str | None = None) -> str:
        return keys.table(structs[struct], STRUCTS, without=structs[without] if without else None)

    given = {
        "keys": key_table,
        "label_sections": label_sections,
        "faults": fault_sections,
        "strategies": strategy_rows,
        "topologies": topology_rows,
        "strategy_sections": strategy_sections,
        "algorithms": algorithm_rows,
        "kernels": kernel_rows,
        "gpus": gpu_rows,
        "shares": share_rows,
        "mebibytes": {
            "any": files.MAX_BYTES >> 20,
            "toml": files.MAX_TOML_BYTES >> 20,
            "step": step_file.MAX_BYTES >> 20,
        },
        "flops_per_byte": f"{step_file.FLOPS_PER_BYTE:g}",
        "depth": parsing.MAX_DEPTH,
        "quantity_length": units.MAX_TEXT,
        "line_length": terminal.LINE,
    }
    return templates.page(f"reference/{name}", given)


def command_sections() -> list[dict[str, object]]:
    """Return what the page of commands says of each; options that a group's commands share stand at the group alone."""
    sections: list[dict[str, object]] = []
    shared: list[str] = []
    for path, command in commands.commands(cli, "simnet"):
        rows = commands.rows(command)
        is_group = isinstance(command, click.Group)
        own = rows if is_group else [row for row in rows if row not in shared or path.count(" ") == 1]
        shared = rows if is_group else shared if path.count(" ") > 1 else []
        without = commands.apart(command) if isinstance(command, click.Group) else []
        said = {"path": path, "usage": commands.usage(command, path), "about": commands.about(command)}
        sections.append(
            said
            | {
                "is_group": is_group,
                "without": without,
                "options": commands.table(own),
                "examples": commands.examples(command),
            }
        )
    return sections


def commands_page() -> str:
    """Return the page of commands."""
    former = {name: [f"simnet {now}" for now in now.split(", ")] for name, (_, now) in FORMER.items()}
    groups = {**GROUPS, "Development": DEVELOPMENT}
    return templates.page("reference/commands.md", {"groups": groups, "former": former, "sections": command_sections()})


def systems_page() -> str:
    """Return the page of systems, which needs torch."""
    from docs import systems

    tables = ("overview", "authors_forms", "options", "bytes_sent", "differences")
    return templates.page("reference/systems.md", {name: getattr(systems, name) for name in tables})


def cards_page() -> str:
    """Return the page of all measured cards."""
    return card_page.cards_page(card_page.measured_cards(EVIDENCE))


def pages() -> dict[Path, Callable[[], str]]:
    """Return what makes each generated page; that of the systems only where torch is installed."""
    names = (
        "scenario.md",
        "cluster.md",
        "workload.md",
        "gpus.md",
        "calibration.md",
        "strategies.md",
        "campaign.md",
        "convergence.md",
        "results.md",
        "measurement-file.md",
        "step-file.md",
        "files.md",
    )
    made: dict[str, Callable[[], str]] = {name: partial(rendered, name) for name in names}
    made["commands.md"] = commands_page
    if find_spec("torch"):
        made["systems.md"] = systems_page
    others = {EVIDENCE / "gpu.md": cards_page}
    return {REFERENCE / name: make for name, make in made.items()} | others


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
