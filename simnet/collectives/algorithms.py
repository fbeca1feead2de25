"""The all-reduce algorithms by name, and which of them is fastest for a message, as NCCL's tuner chooses; broadcasts.

NCCL itself is one of them where the calibration holds its costs: a ring, or for an all-reduce a double binary tree, in
one of three protocols. Its schedules are those of the ring and of the tree; as pipelines they load the same links, and
`nccl_model` times them. Without a name it is the default there, the ring elsewhere; "auto" takes what NCCL has, and
"any" takes everything.

Another algorithm is one file that returns a `Schedule`, and one `register`.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from simnet.cluster import nccl_model
from simnet.cluster.nccl_costs import NcclCosts
from simnet.cluster.schedule import Group, Protocol, Schedule, any_of
from simnet.cluster.topology import Topology
from simnet.collectives import broadcast, closed_form, direct, link_loads, ring, tree
from simnet.collectives.closed_form import Shape
from simnet.core.errors import SimnetError, blamed_on_package, did_you_mean
from simnet.core.schema import is_foreign

AUTO, ANY = "auto", "any"
NCCL, PLAIN = "nccl", "ring"
COARSE = ("ring", "tree")
"""What NCCL's costs replace: the same algorithms, timed by links alone."""


class Algorithm(Struct, frozen=True, kw_only=True):
    """A way to all-reduce.

    Attributes:
        name: in scenario files.
        summary: what it does, for people.
        variants: its schedules on a group; the fastest for a message is taken.
        fits: tells whether it exists for a group; `rule` says what it needs.
        closed_form_s: the least time of all variants on idle equal links, in the literature's form: (shape, bytes of
            the message) to seconds, or None where there is none for that shape; the judge in the tests.
        is_tuned_over: whether "auto" may choose it; not what NCCL does not have.
        needs_nccl: whether it exists only where the calibration holds the costs of NCCL.
    """

    name: str
    variants: Callable[[Group], tuple[Schedule, ...]]
    closed_form_s: Callable[[Shape, float], float | None]
    fits: Callable[[Group], bool] = lambda _: True
    rule: str = ""
    summary: str = ""
    is_tuned_over: bool = True
    needs_nccl: bool = False


_KNOWN: dict[str, Algorithm] = {}


def register(algorithm: Algorithm) -> Algorithm:
    """Add an algorithm.

    Raises:
        SimnetError: its name is taken.
    """
    if algorithm.name in (*_KNOWN, AUTO, ANY):
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


def check(name: str | None) -> None:
    """Refuse a name that is not known; None is the default.

    Raises:
        ValueError: the sentence after the key.
    """
    if name is not None and name not in (*_KNOWN, AUTO, ANY):
        raise ValueError(f"{name!r}: unknown.{did_you_mean(name, (*_KNOWN, AUTO, ANY))}")


def default_name(
    costs: NcclCosts | None, num_nodes: int, otherwise: str = PLAIN, fitted_with: str | None = None
) -> str:
    """Return the algorithm of an all-reduce that names none.

    It is the one that the calibration's bandwidths were fitted with, else NCCL's where its costs are known, else
    another.
    """
    if fitted_with is not None:
        return fitted_with
    return NCCL if costs is not None and costs.holds_for(num_nodes) else otherwise


def choose(name: str | None, topology: Topology, message_bytes: float) -> Schedule:
    """Return the all-reduce over all ranks by an algorithm's name, or by the default of the calibration.

    Raises:
        SimnetError: the algorithm does not exist for this number of nodes and ranks, or this calibration.
    """
    name = name or default_name(topology.nccl, topology.num_nodes, fitted_with=topology.all_reduce)
    if name in (AUTO, ANY):
        # Each lane has links of its own, and maybe another fastest algorithm: all stand for it until times are known.
        if topology.lanes:
            return any_of(_candidates(topology, message_bytes, name == ANY))
        return _fastest_of_all(topology, message_bytes, name == ANY)
    algorithm, world = _KNOWN[name], topology.group("world")
    if algorithm.needs_nccl:
        return choose_nccl(topology, _nccl_costs(topology), message_bytes)
    if not algorithm.fits(world):
        others = [f"{other.name!r}" for other in every() if _exists(other, topology)]
        raise SimnetError(
            f"strategy.algorithm: {name!r}: needs {algorithm.rule}, not {topology.num_nodes} nodes of "
            f"{topology.ranks_per_node} ranks; choose {', '.join(others)} or 'auto'"
        )
    return _fastest(_variants(algorithm, world), topology, message_bytes)


def choose_on(name: str | None, topology: Topology, message_bytes: float, group: Group) -> Schedule:
    """Return the all-reduce of any groups: all ranks as `choose` does, else groups side by side.

    Where a group is a part of a node, or whole nodes, NCCL's costs hold for it as for a cluster of this size.
    """
    # All ranks are what NCCL's costs were fitted to.
    if group == topology.group("world"):
        return choose(name, topology, message_bytes)
    costs, is_whole = topology.nccl, group.nodes == 1 or group.members_per_node == topology.ranks_per_node
    name = name or default_name(costs, group.nodes, fitted_with=topology.all_reduce)
    if name in (NCCL, AUTO, ANY) and is_whole and costs is not None and costs.holds_for(group.nodes):
        return choose_nccl(topology, costs, message_bytes, group)
    return choose_side_by_side(name, topology, message_bytes, group)


def choose_side_by_side(name: str | None, topology: Topology, message_bytes: float, group: Group) -> Schedule:
    """Return the all-reduce that groups such as rails do at the same time, each of its own message.

    An algorithm that links alone time is taken as it is. NCCL's costs are fitted to all ranks together and say nothing
    of rails: in their place, as for "auto", stands the faster of ring and tree.
    """
    algorithm = _KNOWN.get(name or PLAIN)
    if algorithm is None or algorithm.needs_nccl or not algorithm.fits(group):
        schedules = tuple(schedule for coarse in COARSE for schedule in _variants(_KNOWN[coarse], group))
    else:
        schedules = _variants(algorithm, group)
    return _fastest(schedules, topology, message_bytes)


def choose_broadcast(
    name: broadcast.Form | None,
    topology: Topology,
    message_bytes: float,
    group: Group,
    way: broadcast.Way = "broadcast",
) -> Schedule:
    """Return a broadcast or reduce in groups side by side: a tree, a pipeline, or without a name the faster of both.

    The pipeline is NCCL's where the calibration holds its costs for as many nodes.
    """
    of_nccl = _nccl_broadcast(topology, group, message_bytes, way) if name != "tree" else None
    if of_nccl is not None:
        return of_nccl
    pipelines = () if name == "tree" else tuple(broadcast.pipeline(group, chunks, way) for chunks in broadcast.CHUNKS)
    trees = () if name == "pipeline" else (broadcast.tree(group, way),)
    return _fastest((*trees, *pipelines), topology, message_bytes)


def _nccl_costs(topology: Topology) -> NcclCosts:
    """Return the costs of NCCL."""
    costs = topology.nccl
    if costs is None or not costs.holds_for(topology.num_nodes):
        missing = "nccl" if costs is None else f"nccl.{'intra' if topology.num_nodes == 1 else 'inter'}_node_efficiency"
        raise SimnetError(
            f"strategy.algorithm: {NCCL!r}: needs calibration.{missing}, which simnet calibrate fits to logs of "
            f"nccl-tests; give such a calibration, or choose 'ring' or 'auto'"
        )
    return costs


def _exists(algorithm: Algorithm, topology: Topology) -> bool:
    if algorithm.needs_nccl:
        return topology.nccl is not None and topology.nccl.holds_for(topology.num_nodes)
    return algorithm.fits(topology.group("world"))


def _variants(algorithm: Algorithm, group: Group) -> tuple[Schedule, ...]:
    """Return the schedules of an algorithm, which may be foreign code."""
    # One of ours is a defect, and keeps its traceback.
    where = f"algorithm {algorithm.name!r}: variants"
    with blamed_on_package(where) if is_foreign(algorithm.variants) else nullcontext():
        schedules = tuple(algorithm.variants(group))
        is_right = all(schedule.collective == "all_reduce" and schedule.group == group for schedule in schedules)
    if not schedules or not is_right:
        raise SimnetError(f"{where}: must be all-reduces on the given group")
    return schedules


@lru_cache(maxsize=65_536)
def _fastest_of_all(topology: Topology, message_bytes: float, also_beyond_nccl: bool) -> Schedule:
    return _fastest(_candidates(topology, message_bytes, also_beyond_nccl), topology, message_bytes)


def _candidates(topology: Topology, message_bytes: float, also_beyond_nccl: bool) -> tuple[Schedule, ...]:
    world = topology.group("world")
    tried = [algorithm for algorithm in every() if algorithm.is_tuned_over or also_beyond_nccl]
    fitting = [algorithm for algorithm in tried if _exists(algorithm, topology)]
    # NCCL's own ring and tree in its own time; the same by links alone would be faster than NCCL is.
    if any(algorithm.needs_nccl for algorithm in fitting):
        fitting = [algorithm for algorithm in fitting if algorithm.name not in COARSE]
    variants = (
        (choose_nccl(topology, _nccl_costs(topology), message_bytes),)
        if algorithm.needs_nccl
        else _variants(algorithm, world)
        for algorithm in fitting
    )
    return tuple(schedule for schedules in variants for schedule in schedules)


def _fastest(schedules: tuple[Schedule, ...], topology: Topology, message_bytes: float) -> Schedule:
    """Return the fastest, the first of equals; one whose latencies alone take longer is not counted at all."""
    if len(schedules) == 1 or topology.lanes:
        return any_of(schedules)
    least = sorted((link_loads.lower_bound_s(topology, schedule), number) for number, schedule in enumerate(schedules))
    best_s, best = float("inf"), len(schedules)
    # In the order of their bounds: once one bound exceeds the best time, so do all that follow.
    for least_s, number in least:
        if least_s > best_s:
            break
        best_s, best = min((best_s, best), (link_loads.duration_s(topology, schedules[number], message_bytes), number))
    return schedules[best]


def choose_nccl(topology: Topology, costs: NcclCosts, message_bytes: float, group: Group | None = None) -> Schedule:
    """Return the fastest all-reduce of a group, by default all ranks, for a message by the closed form alone."""
    group = group or topology.group("world")
    if topology.lanes:
        return any_of(nccl_variants(group, costs))
    fastest = _fastest_in_nccl(topology, costs, nccl_model.known_candidates, group, message_bytes)
    return nccl_all_reduce(group, fastest.algorithm, fastest.protocol)


def nccl_variants(group: Group, costs: NcclCosts | None = None) -> tuple[Schedule, ...]:
    """Return every algorithm in every protocol; trees run only across nodes, through NVSwitches where the costs say."""
    names: tuple[nccl_model.Algorithm, ...] = ("ring", "tree") if group.nodes > 1 else ("ring",)
    schedules = tuple(
        nccl_all_reduce(group, algorithm, protocol) for algorithm in names for protocol in nccl_model.PROTOCOLS
    )
    if costs is None:
        return schedules
    if group.nodes > 1 and nccl_model.has_nvls(costs, group.members_per_node):
        schedules = (*schedules, nccl_all_reduce(group, "nvls_tree", "Simple"))
    return tuple(
        schedule for schedule in schedules if schedule.protocol and costs.allows(schedule.algorithm, schedule.protocol)
    )


@lru_cache(maxsize=16_384)
def nccl_all_reduce(group: Group, algorithm: nccl_model.Algorithm, protocol: Protocol) -> Schedule:
    """Return an all-reduce by an algorithm in a protocol.

    In a tree every rank is the head of a chain through its node for its slice of the message, as NCCL gives each
    channel another head: a reduce-scatter in the node, and the trees between the nodes' heads.
    """
    if algorithm == "ring":
        return replace(ring.all_reduce(group), protocol=protocol)
    # As one stream the tree has no rounds that wait for their busiest node: the folded time is the time itself.
    return replace(tree.all_reduce(group), algorithm=algorithm, protocol=protocol, folded_is_upper_bound=False)


def choose_all_gather(topology: Topology, group: Group, message_bytes: float) -> Schedule:
    """Return the all-gather of a message to which each rank of a group adds 1/n.

    It is NCCL's ring in its fastest protocol where the calibration holds its costs for as many nodes, else a plain one.
    """
    return _half_ring(topology, ring.all_gather(group), message_bytes)


def choose_reduce_scatter(topology: Topology, group: Group, message_bytes: float) -> Schedule:
    """Return the reduce-scatter of a message of each rank: the other half of the ring, at the same costs."""
    return _half_ring(topology, ring.reduce_scatter(group), message_bytes)


def _half_ring(topology: Topology, half: Schedule, message_bytes: float) -> Schedule:
    # A half of the ring is what NCCL's gathers are: the costs that were fitted to all-reduces hold for its hops and
    # bytes.
    costs, group = topology.nccl, half.group
    if costs is None or not costs.holds_for(group.nodes) or not half.rounds:
        return half
    if topology.lanes:
        return _in_every_protocol(half, costs, _in_protocol)
    fastest = _fastest_in_nccl(topology, costs, nccl_model.gather_candidates, group, message_bytes)
    return _in_protocol(half, fastest.protocol)


def _nccl_broadcast(topology: Topology, group: Group, message_bytes: float, way: broadcast.Way) -> Schedule | None:
    """Return a broadcast or reduce through the ring in its fastest protocol; None without costs for these nodes."""
    costs, passed_on = topology.nccl, broadcast.pipeline(group, 1, way)
    if costs is None or not costs.holds_for(group.nodes) or not passed_on.rounds:
        return None
    if topology.lanes:
        return _in_every_protocol(passed_on, costs, _counted_in_full)
    fastest = _fastest_in_nccl(topology, costs, nccl_model.broadcast_candidates, group, message_bytes)
    return _counted_in_full(passed_on, fastest.protocol)


def _in_every_protocol(ring: Schedule, costs: NcclCosts, made: Callable[[Schedule, Protocol], Schedule]) -> Schedule:
    """Return what stands for a ring in the fastest protocol that NCCL may take in each lane."""
    return any_of([made(ring, protocol) for protocol in nccl_model.PROTOCOLS if costs.allows("ring", protocol)])


def _fastest_in_nccl(
    topology: Topology,
    costs: NcclCosts,
    candidates: Callable[[NcclCosts, int, int], tuple[nccl_model.Candidate, ...]],
    group: Group,
    message_bytes: float,
) -> nccl_model.Candidate:
    return nccl_model.fastest(
        candidates(costs, group.nodes, group.members_per_node),
        nccl_model.rates(costs, topology.intra_node.bytes_per_s, topology.inter_node.bytes_per_s),
        message_bytes * link_loads.rails_per_node(group),
        topology.nccl_added_s,
    )


@lru_cache(maxsize=16_384)
def _counted_in_full(schedule: Schedule, protocol: Protocol) -> Schedule:
    """Return a pipeline whose chunks are counted over all repetitions, since they are one stream on the links."""
    rounds = tuple(replace(round_, distinct_loads=None) for round_ in schedule.rounds)
    return replace(schedule, algorithm="ring", protocol=protocol, rounds=rounds)


@lru_cache(maxsize=16_384)
def _in_protocol(schedule: Schedule, protocol: Protocol) -> Schedule:
    return replace(schedule, protocol=protocol)


def _tree_s(shape: Shape, message_bytes: float) -> float | None:
    """Return the closed form of the best tree, known for at least 4 nodes that are a power of two."""
    nodes = shape.num_nodes
    # Elsewhere branches differ in length, and no closed form is known.
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
        variants=lambda group: (ring.hierarchical_all_reduce(group),),
        closed_form_s=closed_form.hierarchical_all_reduce_s,
        is_tuned_over=False,
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
        variants=lambda group: (direct.halving_doubling_all_reduce(group),),
        closed_form_s=closed_form.halving_doubling_all_reduce_s,
        fits=direct.halves,
        rule="powers of two",
        is_tuned_over=False,
    )
)
register(
    Algorithm(
        name=NCCL,
        summary="NCCL's ring, double binary tree or NVLSTree in LL, LL128 or Simple, the fastest by the fitted costs",
        variants=nccl_variants,
        closed_form_s=lambda _shape, _message_bytes: None,  # its closed form is `nccl_model`, which is fitted
        rule="a calibration with a table `nccl`",
        needs_nccl=True,
    )
)
