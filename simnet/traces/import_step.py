"""Files of other programs to a step file, whatever they are: Chakra execution traces, or a trace of torch.profiler."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simnet.core import files
from simnet.core.errors import SimnetError
from simnet.strategies.step_file import FORMAT, VERSION, RecordedLayout, StepFile, StepSource
from simnet.traces import chakra, chakra_file, kineto, layouts, profiled_step
from simnet.traces.chakra import ChakraRank
from simnet.traces.kineto import Trace
from simnet.traces.layouts import Ranks, WorldShape

_RANK = re.compile(r"\.(\d{1,7})\.(?:et|json)(?:\.gz)?$")


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What the user says of traces that these do not.

    Attributes:
        num_nodes: nodes; None if not given.
        ranks_per_node: ranks of a node; None if not given.
        comm_groups: ASTRA-sim's file of communicator groups; None if not given.
        step: number of the ProfilerStep; None if not given.
    """

    num_nodes: int | None = None
    ranks_per_node: int | None = None
    comm_groups: Path | None = None
    step: int | None = None


def step_of(paths: Sequence[Path], options: ImportOptions) -> StepFile:
    """Return the step that Chakra execution traces of one or several ranks hold, or one trace of torch.profiler.

    Raises:
        SimnetError: one cannot be read or is no such trace, they hold no step of symmetric ranks, or an option has no
            effect.
    """
    traces = [_loaded(path) for path in paths]
    ranks = [trace for trace in traces if isinstance(trace, ChakraRank)]
    profiled = [trace for trace in traces if isinstance(trace, Trace)]
    if profiled and len(traces) > 1:
        raise SimnetError(
            f"{profiled[0].where}: a trace of torch.profiler besides others: one rank stands for all; give its trace "
            "alone"
        )
    layout, source = _profiled_step(profiled[0], options) if profiled else _chakra_step(ranks, options)
    return StepFile(format=FORMAT, version=VERSION, source=source, recordings=(layout,))


def _loaded(path: Path) -> ChakraRank | Trace:
    """Return the trace that a file holds: of Chakra, or the JSON of torch.profiler."""
    where = files.label(path)
    data = files.gunzipped(files.read_bytes(path), path)
    if not data:
        raise SimnetError(f"{where}: is empty; give a Chakra execution trace, or one of torch.profiler")
    if chakra_file.is_json(data):
        objects = chakra_file.json_objects(data, where)
        if len(objects) == 1 and kineto.looks_like(objects[0]):
            return kineto.parse(objects[0], where)
        trace = chakra_file.parse_json(objects, where)
    else:
        trace = chakra_file.parse_protobuf(data, where)
    chakra_file.check_version(trace, where)
    chakra_file.check_nodes(trace, where)
    rank = _RANK.search(path.name)
    return ChakraRank(trace=trace, rank=int(rank[1]) if rank else None, where=where)


def _profiled_step(trace: Trace, options: ImportOptions) -> tuple[RecordedLayout, StepSource]:
    if options.comm_groups is not None:
        raise SimnetError("--comm-groups: has no effect on a trace of torch.profiler; drop it")
    world = profiled_step.world_of(trace, options.num_nodes, options.ranks_per_node)
    return profiled_step.layout_of(trace, world, options.step), profiled_step.source_of(trace)


def _chakra_step(ranks: Sequence[ChakraRank], options: ImportOptions) -> tuple[RecordedLayout, StepSource]:
    if options.step is not None:
        raise SimnetError("--step: has no effect on a Chakra trace, which has no ProfilerStep; drop it")
    first = ranks[0]
    groups = chakra.read_comm_groups(options.comm_groups) if options.comm_groups else {}
    layout, timed_by = chakra.layout_of(ranks, _world(first, groups, options), groups)
    # A CPU trace of a step has no word for it; that of a GPU says of its kernels that they are none of the CPU.
    on_gpu = any(node.attributes.get("is_cpu_op") is False for node in first.trace.nodes)
    device: Literal["cpu", "cuda"] = "cuda" if on_gpu else "cpu"
    return layout, StepSource(how="chakra", command=first.where, device=device, compute=timed_by)


def _world(first: ChakraRank, groups: Mapping[str, Ranks], options: ImportOptions) -> WorldShape:
    exported = chakra.own_layout(first.trace, first.where)
    known = {**chakra.pg_ranks(first.trace, first.where), **groups}
    largest = max((max(ranks) + 1 for ranks in known.values() if ranks), default=0)
    if exported is not None:
        return layouts.world_shape(
            options.num_nodes or exported.num_nodes,
            options.ranks_per_node or exported.ranks_per_node,
            exported.world_size,
            None,
            first.where,
        )
    says_size = largest and not (options.num_nodes and options.ranks_per_node)
    return layouts.world_shape(
        options.num_nodes, options.ranks_per_node, largest if says_size else None, None, first.where
    )
