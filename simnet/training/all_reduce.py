"""DDP's exchange: cast if asked to, all-reduce, cast back."""

from functools import lru_cache

from simnet.collectives import halving_doubling, hierarchical, loads, ring, tree
from simnet.collectives.schedule import Schedule
from simnet.errors import SimnetError
from simnet.network.topology import Topology
from simnet.strategies import AllReduce
from simnet.training.stages import Collective, Exchange, Kernel, Stage
from simnet.values import BYTES_PER_ELEMENT


def exchange(strategy: AllReduce, num_elements: float, bytes_per_element: int, topology: Topology) -> Exchange:
    """Return the stages of one bucket.

    Args:
        strategy: payload and algorithm.
        num_elements: gradients in the bucket.
        bytes_per_element: of the gradients as backward leaves them.
        topology: what "auto" chooses the algorithm for.
    """
    width = BYTES_PER_ELEMENT[strategy.payload] if strategy.payload else bytes_per_element
    message_bytes = num_elements * width
    schedule = choose(strategy.algorithm, topology, message_bytes)
    stages: tuple[Stage, ...] = (Collective(schedule=schedule, message_bytes=message_bytes),)
    if width != bytes_per_element:
        down = Kernel(name="cast", part="encode", num_elements=num_elements)
        up = Kernel(name="cast", part="decode", num_elements=num_elements)
        stages = (down, *stages, up)
    return Exchange(stages=stages, payload_bytes=message_bytes, algorithm=schedule.name.split()[0])


def choose(algorithm: str, topology: Topology, message_bytes: float) -> Schedule:
    """Return the schedule of an algorithm by name; "auto" takes the fastest for this size, as NCCL's tuner does.

    Raises:
        SimnetError: halving_doubling on a number of nodes or ranks that is no power of two.
    """
    world = topology.group("world")
    if algorithm == "ring":
        return ring.all_reduce(world)
    if algorithm == "hierarchical":
        return hierarchical.all_reduce(world)
    if algorithm == "tree":
        return _best_tree(topology, message_bytes)
    if algorithm == "halving_doubling":
        if not halving_doubling.fits(world):
            raise SimnetError(
                f"strategy.algorithm: 'halving_doubling': needs powers of two, not {topology.num_nodes} nodes of "
                f"{topology.ranks_per_node} ranks; choose 'ring', 'tree', 'hierarchical' or 'auto'"
            )
        return halving_doubling.all_reduce(world)
    return _auto(topology, message_bytes)


@lru_cache(maxsize=4096)
def _auto(topology: Topology, message_bytes: float) -> Schedule:
    candidates = [choose(name, topology, message_bytes) for name in _candidates(topology)]
    return _fastest(candidates, topology, message_bytes)


@lru_cache(maxsize=256)
def _candidates(topology: Topology) -> tuple[str, ...]:
    fits = halving_doubling.fits(topology.group("world"))
    return ("ring", "hierarchical", "tree", *(("halving_doubling",) if fits else ()))


def _best_tree(topology: Topology, message_bytes: float) -> Schedule:
    """Return the tree with the number of chunks that is fastest on this topology."""
    trees = [tree.all_reduce(topology.group("world"), num_chunks) for num_chunks in tree.CHUNKS]
    return _fastest(trees, topology, message_bytes)


def _fastest(schedules: list[Schedule], topology: Topology, message_bytes: float) -> Schedule:
    return min(schedules, key=lambda schedule: loads.duration_s(topology, schedule, message_bytes))
