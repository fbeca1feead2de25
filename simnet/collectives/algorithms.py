"""The all-reduce algorithms by name, and which of them is fastest for a message, as NCCL's tuner chooses.

Another algorithm is one file that returns a `Schedule`, and one `register`.
"""

from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct

from simnet.collectives import closed_form, halving_doubling, hierarchical, loads, ring, tree
from simnet.collectives.closed_form import Shape
from simnet.collectives.schedule import Group, Schedule
from simnet.errors import SimnetError, did_you_mean
from simnet.network.topology import Topology

AUTO = "auto"


class Algorithm(Struct, frozen=True, kw_only=True):
    """A way to all-reduce.

    Attributes:
        name: in scenario files.
        summary: what it does, for people.
        variants: its schedules on a group; the fastest for a message is taken.
        fits: tells whether it exists for a group; `rule` says what it needs.
        closed_form_s: the least time of all variants on idle equal links, in the literature's form: (shape, bytes of
            the message) to seconds, or None where there is none for that shape; the judge in the tests.
        is_tuned_over: whether "auto" may choose it.
    """

    name: str
    variants: Callable[[Group], tuple[Schedule, ...]]
    closed_form_s: Callable[[Shape, float], float | None]
    fits: Callable[[Group], bool] = lambda _: True
    rule: str = ""
    summary: str = ""
    is_tuned_over: bool = True


_KNOWN: dict[str, Algorithm] = {}


def register(algorithm: Algorithm) -> Algorithm:
    """Add an algorithm.

    Raises:
        SimnetError: its name is taken.
    """
    if algorithm.name in (*_KNOWN, AUTO):
        raise SimnetError(f"algorithm {algorithm.name!r}: is registered twice; give the second one another name")
    _KNOWN[algorithm.name] = algorithm
    _forget()
    return algorithm


def remove(name: str) -> None:
    """Take an algorithm out again, as a test does that has added it."""
    _KNOWN.pop(name, None)
    _forget()


def _forget() -> None:
    _fastest_of_all.cache_clear()


def every() -> tuple[Algorithm, ...]:
    """Return all algorithms, in the order in which "auto" prefers equals."""
    return tuple(_KNOWN.values())


def check(name: str) -> None:
    """Refuse a name that is not known.

    Raises:
        ValueError: the sentence after the key.
    """
    if name not in (*_KNOWN, AUTO):
        raise ValueError(f"{name!r}: unknown.{did_you_mean(name, (*_KNOWN, AUTO))}")


def choose(name: str, topology: Topology, message_bytes: float) -> Schedule:
    """Return the all-reduce over all ranks by an algorithm's name; "auto" takes the fastest for this size.

    Raises:
        SimnetError: the algorithm does not exist for this number of nodes and ranks.
    """
    if name == AUTO:
        return _fastest_of_all(topology, message_bytes)
    algorithm, world = _KNOWN[name], topology.group("world")
    if not algorithm.fits(world):
        others = [f"{one.name!r}" for one in every() if one.fits(world)]
        raise SimnetError(
            f"strategy.algorithm: {name!r}: needs {algorithm.rule}, not {topology.num_nodes} nodes of "
            f"{topology.ranks_per_node} ranks; choose {', '.join(others)} or 'auto'"
        )
    return _fastest(_variants(algorithm, world), topology, message_bytes)


def _variants(algorithm: Algorithm, group: Group) -> tuple[Schedule, ...]:
    """Return the schedules of an algorithm, which may be foreign code.

    Raises:
        SimnetError: it gives none, or others than all-reduces.
    """
    try:
        found = tuple(algorithm.variants(group))
        is_right = all(one.collective == "all_reduce" and one.group == group for one in found)
    except Exception as error:
        raise SimnetError(f"algorithm {algorithm.name!r}: variants: {type(error).__name__}: {error}; fix it") from error
    if not found or not is_right:
        raise SimnetError(f"algorithm {algorithm.name!r}: variants: must be all-reduces on the given group")
    return found


@lru_cache(maxsize=65_536)
def _fastest_of_all(topology: Topology, message_bytes: float) -> Schedule:
    world = topology.group("world")
    fitting = [one for one in every() if one.is_tuned_over and one.fits(world)]
    return _fastest(tuple(schedule for one in fitting for schedule in _variants(one, world)), topology, message_bytes)


def _fastest(schedules: tuple[Schedule, ...], topology: Topology, message_bytes: float) -> Schedule:
    """Return the fastest, the first of equals; one whose latencies alone take longer is not counted at all."""
    if len(schedules) == 1:
        return schedules[0]
    least = sorted((loads.lower_bound_s(topology, one), number) for number, one in enumerate(schedules))
    best_s, best = float("inf"), len(schedules)
    for least_s, number in least:
        if least_s > best_s:
            break
        best_s, best = min((best_s, best), (loads.duration_s(topology, schedules[number], message_bytes), number))
    return schedules[best]


def _tree_s(shape: Shape, message_bytes: float) -> float | None:
    """Return the closed form of the best tree, known for at least 4 nodes that are a power of two."""
    nodes = shape.num_nodes
    if nodes < 4 or nodes & (nodes - 1):
        return None
    return min(closed_form.tree_all_reduce_s(shape, message_bytes, chunks) for chunks in tree.CHUNKS)


def _ring_s(shape: Shape, message_bytes: float) -> float:
    slowest = shape.inter_node if shape.num_nodes > 1 else shape.intra_node
    return closed_form.ring_all_reduce_s(shape.num_nodes * shape.ranks_per_node, message_bytes, slowest)


register(
    Algorithm(
        name="ring",
        summary="reduce-scatter and all-gather around one ring of all ranks",
        variants=lambda group: (ring.all_reduce(group),),
        closed_form_s=_ring_s,
    )
)
register(
    Algorithm(
        name="hierarchical",
        summary="reduce-scatter in the node, a ring between nodes for each slice, all-gather in the node",
        variants=lambda group: (hierarchical.all_reduce(group),),
        closed_form_s=closed_form.hierarchical_all_reduce_s,
    )
)
register(
    Algorithm(
        name="tree",
        summary="double binary tree between nodes, pipelined, as NCCL's tree",
        variants=lambda group: tuple(tree.all_reduce(group, chunks) for chunks in tree.CHUNKS),
        closed_form_s=_tree_s,
    )
)
register(
    Algorithm(
        name="halving_doubling",
        summary="recursive halving and doubling, nearest ranks first",
        variants=lambda group: (halving_doubling.all_reduce(group),),
        closed_form_s=closed_form.halving_doubling_all_reduce_s,
        fits=halving_doubling.fits,
        rule="powers of two",
    )
)
