"""`simnet record`: the command of `binsgdm.recording`; and recorded steps from and for other programs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from simnet.cli import options
from simnet.cli.binsgdm_commands import adopted
from simnet.cli.output import check_file, check_writable, tell
from simnet.core.errors import SimnetError

if TYPE_CHECKING:
    from simnet.strategies.step_file import RecordedLayout, StepFile

command = adopted("binsgdm.recording.command", "record")
command.params += [
    options.Mode(
        ["--from"], of="record.import_step", help="Make the step of a trace instead: simnet record --from --help."
    ),
    options.Mode(
        ["--chakra"],
        of="record.export_step",
        metavar="PREFIX",
        help="Make Chakra execution traces of a recorded step instead: simnet record --chakra --help.",
    ),
]


@click.group(
    "step",
    cls=options.CommandGroup,
    help="Make a recorded step of a trace, or traces of a recorded step.\n\n"
    "A recorded step is what simnet simulates as the strategy `recorded`, and simnet show prints.",
    epilog="\b\nExample:\n  simnet record --from trace.0.et --nodes 2 --ranks-per-node 8 -o step.json",
)
def step() -> None:
    """Hold the former names of both."""


@step.command(
    "import",
    help="Make a recorded step of FILES: Chakra execution traces (protobuf or JSON) of one or several ranks, which "
    "must be alike, or one trace of torch.profiler with record_shapes. Both may be packed by gzip.\n\n"
    "Nodes and ranks need no option where the trace has them.",
    epilog="\b\nExamples:\n"
    "  simnet record --from trace.0.et trace.1.et --nodes 2 --ranks-per-node 8 --comm-groups groups.json -o step.json\n"
    "  simnet record --from profile.json.gz --ranks-per-node 8 -o step.json",
)
@click.argument("files", nargs=-1, required=True, type=options.INPUT_PATH)
@click.option("-o", "--output", type=options.OUTPUT_PATH, required=True, help="Write the recorded step to this file.")
@click.option("--nodes", type=click.IntRange(1, 10**6), metavar="N", help="Number of nodes.")
@click.option("--ranks-per-node", type=click.IntRange(1, 10**6), metavar="N", help="Ranks of each node.")
@click.option(
    "--comm-groups",
    type=options.INPUT_PATH,
    help="Ranks of the process groups that a Chakra trace names, as ASTRA-sim's communicator group file has them.",
)
@click.option("--step", type=int, metavar="K", help="Take ProfilerStep#K.  [default: the one of median duration]")
def import_step(  # noqa: PLR0913, PLR0917 - one argument an option
    files: tuple[Path, ...],
    output: Path,
    nodes: int | None,
    ranks_per_node: int | None,
    comm_groups: Path | None,
    step: int | None,
) -> None:
    """Run `simnet record --from`."""
    from simnet.core.files import write_file
    from simnet.report import recorded_step
    from simnet.strategies import step_file
    from simnet.traces.import_step import ImportOptions, step_of

    chosen = ImportOptions(num_nodes=nodes, ranks_per_node=ranks_per_node, comm_groups=comm_groups, step=step)
    recorded = step_of(files, chosen)
    data = step_file.encode(recorded)
    step_file.decode(data, str(output))  # what is written can be read
    check_file(output)
    write_file(output, data)
    for note in recorded.recordings[0].notes:
        tell(f"note: {note}")
    for sentence in recorded_step.communication_text(recorded):
        tell(sentence if sentence.startswith("warning") else f"found: {sentence}")
    tell(f"wrote {output}")


@step.command(
    "export",
    help="Make Chakra execution traces of the recorded step in FILE: PREFIX.RANK.et of every rank, for ASTRA-sim and "
    "others, and PREFIX.groups.json, its file of communicator groups.",
    epilog="\b\nExample:\n  simnet record --chakra out/trace step.json",
)
@click.argument("file", type=options.INPUT_PATH)
@click.option(
    "--chakra", "prefix", type=options.OUTPUT_PATH, required=True, metavar="PREFIX", help="Begin the names with this."
)
@click.option(
    "--nodes", type=click.IntRange(1, 10**6), metavar="N", help="Nodes of the layout.  [default: the only one]"
)
@click.option(
    "--ranks-per-node", type=click.IntRange(1, 10**6), metavar="N", help="Ranks of each node.  [default: the only one]"
)
def export_step(file: Path, prefix: Path, nodes: int | None, ranks_per_node: int | None) -> None:
    """Run `simnet record --chakra`."""
    import json

    from simnet.core.files import write_file
    from simnet.strategies import step_file
    from simnet.traces import chakra, chakra_file

    layout = _layout(step_file.read(file), nodes, ranks_per_node, str(file))
    groups = f"{json.dumps(chakra.comm_groups(layout))}\n".encode()
    made = {
        prefix.with_name(f"{prefix.name}.{rank}.et"): chakra_file.encode(trace)
        for rank, trace in chakra.traces(layout, str(file))
    }
    made[prefix.with_name(f"{prefix.name}.groups.json")] = groups
    for path in made:
        check_writable(path, "--chakra")
    for path, data in made.items():
        write_file(path, data)
    tell(f"wrote {prefix}.0.et to {prefix}.{layout.world_size - 1}.et and {prefix}.groups.json")


def _layout(step: "StepFile", nodes: int | None, ranks_per_node: int | None, where: str) -> "RecordedLayout":
    """Return the layout that is asked for, or the only one."""
    layouts = [
        layout
        for layout in step.recordings
        if nodes in (None, layout.num_nodes) and ranks_per_node in (None, layout.ranks_per_node)
    ]
    if len(layouts) != 1:
        known = ", ".join(layout.text for layout in step.recordings)
        raise SimnetError(f"{where}: recorded on {known}; choose one of these with --nodes and --ranks-per-node")
    return layouts[0]
