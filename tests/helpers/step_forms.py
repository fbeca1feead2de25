"""What a recorded step and a simulated one send, in one form: collectives, groups, bytes, waits."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from simnet.strategies.program import Communicate, Compute, Kernel, Operation, OperationId, Program

Place = tuple[int, int]


class SentMessage(NamedTuple):
    """A collective of a step.

    Attributes:
        kind: such as "all_reduce".
        group: size and stride.
        num_bytes: the whole array.
        ready: how much of backward must be done before it, as a rank among all that is asked for: 0 for none of it.
        after: which of the collectives, in their order, must have ended before it.
    """

    kind: str
    group: tuple[int, int]
    num_bytes: float
    ready: int
    after: frozenset[int]


class StepForm(NamedTuple):
    """A step.

    Attributes:
        sent: its collectives, each after those that it waits for.
        waited: which of them must have ended before the last work of the optimizer.
    """

    sent: tuple[SentMessage, ...]
    waited: frozenset[int]


class _Node(NamedTuple):
    part: str  # of compute, or ""
    message: tuple[str, tuple[int, int], float] | None
    after: tuple[Place, ...]


def form_of_recording(recording: Mapping[str, Any]) -> StepForm:
    """Return the form of a recording, as `simnet record` writes it."""
    groups = [(group["size"], group["stride"]) for group in recording["groups"]]
    return _form(
        [[_recorded(operation, groups) for operation in stream["operations"]] for stream in recording["streams"]]
    )


def _recorded(one: Mapping[str, Any], groups: list[tuple[int, int]]) -> _Node:
    after = tuple((stream, position) for stream, position in one.get("after", ()))
    if one["kind"] == "compute":
        # What backward only copies, such as buckets back into gradients, brings no further gradient.
        part = "" if one["part"] == "backward" and not one.get("flops") else one["part"]
        return _Node(part, None, after)
    return _Node("", (one["kind"], groups[one["group"]], one["message_bytes"]), after)


def form_of_program(program: Program, is_hops: Callable[[Communicate], bool] = lambda _: False) -> StepForm:
    """Return the form of a simulated step.

    Args:
        program: of the simulator.
        is_hops: tells which rings the real system goes round hop by hop, since ranks merge what arrives.
    """
    streams: list[list[_Node]] = []
    places: dict[Place, Place] = {}
    for number, stream in enumerate(program.streams):
        nodes: list[_Node] = []
        for position, one in enumerate(stream):
            nodes += _hops(one) if isinstance(one, Communicate) and is_hops(one) else [_simulated(one)]
            places[number, position] = (number, len(nodes) - 1)
        streams.append(nodes)
    return _form(
        [[node._replace(after=tuple(places[each] for each in node.after)) for node in nodes] for nodes in streams]
    )


def unrolled(program: Program, steps: int) -> Program:
    """Return a program of so many steps, each of which begins when compute of the one before it has ended.

    The streams of its period are repeated, with those steps of it written out that are all alike.
    """
    assert steps % program.period == 0
    inner = [program.inner.program] * program.inner.number if program.inner else []
    streams: list[list[Operation]] = [[] for _ in program.streams]
    for part in (*inner, program) * (steps // program.period):
        ends = [len(stream) for stream in streams]
        for stream, added in zip(streams, part.streams, strict=False):
            for one in added:
                after = tuple(OperationId(each.stream, each.position + ends[each.stream]) for each in one.after)
                stream.append(replace(one, after=after))
    return replace(program, streams=tuple(map(tuple, streams)), num_steps=steps, inner=None)


def _hops(one: Communicate) -> list[_Node]:
    """Return the hops of half a ring."""
    assert one.schedule.algorithm == "ring"
    first = _simulated(one)
    _, group, num_bytes = first.message or ("", (0, 0), 0.0)
    hop = first._replace(message=("send_recv", group, num_bytes / group[0]))
    return [hop, *[hop._replace(after=())] * (group[0] - 2)]


def _simulated(one: Compute | Kernel | Communicate) -> _Node:
    after = tuple((waited.stream, waited.position) for waited in one.after)
    if isinstance(one, Communicate):
        group = one.schedule.group
        return _Node("", (one.schedule.collective, (group.size, group.stride), one.message_bytes), after)
    return _Node(one.part, None, after)


def _form(streams: list[list[_Node]]) -> StepForm:
    ancestors = _ancestors(streams)
    nodes = {(number, place): node for number, stream in enumerate(streams) for place, node in enumerate(stream)}
    messages = [place for place, node in nodes.items() if node.message is not None and node.message[1][0] > 1]
    sending = frozenset(messages)
    # A message comes after all that it waits for; of those that wait for as many, the first stream's.
    messages.sort(key=lambda place: (len(ancestors[place] & sending), place))
    number = {place: index for index, place in enumerate(messages)}

    def waits(place: Place) -> frozenset[int]:
        return frozenset(number[one] for one in ancestors[place] if one in number)

    def backward(place: Place) -> int:
        return sum(nodes[one].part == "backward" for one in ancestors[place])

    levels = sorted({0, *map(backward, messages)})
    sent = []
    for place in messages:
        kind, group, num_bytes = nodes[place].message or ("", (0, 0), 0.0)
        sent.append(SentMessage(kind, group, num_bytes, levels.index(backward(place)), waits(place)))
    last = [place for place, node in nodes.items() if node.part == "optimizer" and place[0] == 0]
    return StepForm(tuple(sent), waits(max(last)) if last else frozenset())


def _ancestors(streams: list[list[_Node]]) -> dict[Place, set[Place]]:
    """Return everything that must have ended before each operation."""
    found: dict[Place, set[Place]] = {}

    def of(place: Place) -> set[Place]:
        return found[place] | {place}

    ready = [0] * len(streams)
    while any(done < len(stream) for done, stream in zip(ready, streams, strict=True)):
        before_all = len(found)
        for number, stream in enumerate(streams):
            while ready[number] < len(stream) and all(one in found for one in stream[ready[number]].after):
                place = (number, ready[number])
                before: Iterable[Place] = _directly_before(place, stream)
                found[place] = set().union(*map(of, before))
                ready[number] += 1
        assert len(found) > before_all, "an operation waits for one that never ends"
    return found


def _directly_before(place: Place, stream: list[_Node]) -> Iterator[Place]:
    number, position = place
    yield from stream[position].after
    if position:
        yield number, position - 1
