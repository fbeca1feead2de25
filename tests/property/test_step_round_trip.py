"""A recorded step becomes Chakra traces and a step again: collectives, bytes, groups, order and waits are the same."""

import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from simnet.strategies import step_file
from simnet.strategies.step_file import RecordedLayout
from simnet.traces import chakra, chakra_file
from simnet.traces.chakra_file import LAYOUT_ATTRIBUTE, ChakraNode, ChakraTrace
from simnet.traces.import_step import ImportOptions, step_of
from tests.helpers import step_files

GROUPS = ((8, 1), (4, 1), (2, 4), (2, 1), (4, 2))
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce")
PARTS = ("forward", "backward", "encode", "decode", "optimizer")
# What Chakra has no field for: without these, a trace is one of any program.
OF_SIMNET = ("group", "part", "bucket", "dtype", "flops", "bytes", "seconds", "message_bytes")


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    """Return a step on 2 x 4 ranks whose operations wait for some that were drawn before them."""
    streams: list[list[dict[str, Any]]] = [[] for _ in range(draw(st.integers(1, 4)))]
    for number in range(draw(st.integers(1, 12))):
        known = [[s, p] for s, stream in enumerate(streams) for p in range(len(stream))]
        stream = draw(st.integers(0, len(streams) - 1)) if number else 0
        others = [place for place in known if place[0] != stream]
        after = draw(st.lists(st.sampled_from(others), max_size=3, unique_by=tuple)) if others else []
        if stream == 0:
            seconds = draw(st.integers(0, 10**6)) / 1e6
            operation = step_files.compute(draw(st.sampled_from(PARTS)), after=after)
            amounts = {name: float(draw(st.integers(1, 2**50))) for name in ("flops", "bytes")}
            operation |= {"seconds": seconds, **amounts}
        else:
            size = 8.0 * draw(st.integers(1, 2**40))
            kind, group = draw(st.sampled_from(KINDS)), draw(st.integers(0, len(GROUPS) - 1))
            operation = step_files.collective(
                kind, size, group, after=after, bucket=draw(st.none() | st.integers(0, 9))
            )
        streams[stream].append(operation)
    return step_files.step(step_files.layout(streams, 2, 4, GROUPS), compute="timed")


def clocks(layout: RecordedLayout) -> list[list[tuple[int, ...]]]:
    """Return how much of each stream has ended before each operation begins: what its waits say, in whatever words."""
    clocks_of: list[list[tuple[int, ...]]] = [[] for _ in layout.streams]
    for stream, position in chakra._in_order(layout.streams):
        clock = list(clocks_of[stream][-1]) if position else [0] * len(layout.streams)
        clock[stream] = position
        for other, place in layout.streams[stream].operations[position].after:
            implied = list(clocks_of[other][place])
            implied[other] = place + 1
            clock = [max(pair) for pair in zip(clock, implied, strict=True)]
        clocks_of[stream].append(tuple(clock))
    return clocks_of


def essence(layout: RecordedLayout) -> list[list[tuple[Any, ...]]]:
    return [
        [
            (operation.kind, round(operation.seconds * 1e6), operation.flops, operation.num_bytes)
            if operation.kind == "compute"
            else (
                operation.kind,
                operation.message_bytes,
                layout.groups[operation.group].size,
                layout.groups[operation.group].stride,
            )
            for operation in stream.operations
        ]
        for stream in layout.streams
    ]


def there_and_back(data: dict[str, Any], *, keeps_own: bool, ranks: tuple[int, ...]) -> tuple[RecordedLayout, ...]:
    (layout,) = step_file.decode(json.dumps(data).encode(), "step.json").recordings
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "groups.json").write_text(json.dumps(chakra.comm_groups(layout)))
        for rank, trace in chakra.traces(layout, "step.json"):
            if rank not in ranks:
                continue
            written = trace if keeps_own else foreign(trace)
            (folder / f"t.{rank}.et").write_bytes(chakra_file.encode(written))
        options = (
            ImportOptions()
            if keeps_own
            else ImportOptions(num_nodes=2, ranks_per_node=4, comm_groups=folder / "groups.json")
        )
        step = step_of([folder / f"t.{rank}.et" for rank in ranks], options)
        return layout, *step_file.decode(step_file.encode(step), "back.json").recordings


def foreign(trace: ChakraTrace) -> ChakraTrace:
    """Return a trace as a program would write it that knows nothing of simnet."""

    def plain(node: ChakraNode) -> ChakraNode:
        return replace(node, attributes={key: value for key, value in node.attributes.items() if key not in OF_SIMNET})

    attributes = {key: value for key, value in trace.attributes.items() if key != LAYOUT_ATTRIBUTE}
    return replace(trace, nodes=tuple(map(plain, trace.nodes)), attributes=attributes)


@given(steps())
def test_a_step_comes_back_whole(data: dict[str, Any]) -> None:
    before, after = there_and_back(data, keeps_own=True, ranks=(0, 5))
    assert essence(after) == essence(before)
    assert clocks(after) == clocks(before)
    assert after.groups == before.groups
    assert [operation.part for operation in after.operations] == [operation.part for operation in before.operations]
    assert [operation.bucket for operation in after.operations] == [operation.bucket for operation in before.operations]


@given(steps())
def test_a_step_comes_back_from_traces_of_a_program_that_knows_nothing_of_simnet(data: dict[str, Any]) -> None:
    before, after = there_and_back(data, keeps_own=False, ranks=(3,))
    # Streams in which nothing runs are not in such a trace, and the one that computes most comes first.
    used = [number for number, stream in enumerate(before.streams) if stream.operations]
    assert essence(after) == [essence(before)[number] for number in used]
    expected = clocks(before)
    assert clocks(after) == [[tuple(clock[stream] for stream in used) for clock in expected[number]] for number in used]
