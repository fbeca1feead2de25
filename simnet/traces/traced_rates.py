"""Rates of the NIC of a node and of the links of a GPU in it, as counters of a trace."""

from collections.abc import Callable, Iterable, Iterator

from simnet.cluster.topology import Topology
from simnet.collectives import link_loads
from simnet.engine.timeline import Streams
from simnet.strategies.program import Communicate
from simnet.traces.traced_work import TracedKernel

Sent = Callable[[Communicate], float]


def nic_bytes(topology: Topology) -> Sent:
    """Return what tells the bytes that a collective sends out of the busiest node [B]."""
    return lambda sent: link_loads.nic_bytes_per_node(topology, sent.schedule, sent.message_bytes)


def port_bytes(topology: Topology) -> Sent:
    """Return what tells the bytes that a collective sends out of the busiest GPU to others of its node [B]."""
    return lambda sent: sum(
        load.wire_bytes.get("port_tx", 0.0)
        for phase in link_loads.phases(topology, sent.schedule, sent.message_bytes)
        for load in phase
    )


def rates(kernels: Iterable[TracedKernel], streams: Streams, sent_bytes: Sent) -> Iterator[tuple[int, float]]:
    """Yield when the rate changes [ns], and what it is from then on [B/s]: of each collective its mean.

    Args:
        kernels: what ran.
        streams: the program.
        sent_bytes: bytes of a collective on the link.
    """
    changes = sorted(_changes(kernels, streams, sent_bytes))
    running: dict[int, float] = {}
    for at, (time_ns, launch, rate) in enumerate(changes):
        if rate:
            running[launch] = rate
        else:
            running.pop(launch, None)
        if at + 1 == len(changes) or changes[at + 1][0] > time_ns:
            yield time_ns, sum(running.values())


def _changes(kernels: Iterable[TracedKernel], streams: Streams, sent_bytes: Sent) -> Iterator[tuple[int, int, float]]:
    for kernel in kernels:
        which = kernel.span.operation
        operation = streams[which.stream][which.position] if which is not None else None
        if isinstance(operation, Communicate) and kernel.end_ns > kernel.start_ns:
            size = sent_bytes(operation)
            if size:
                yield kernel.start_ns, kernel.launch, size / (kernel.end_ns - kernel.start_ns) * 1e9
                yield kernel.end_ns, kernel.launch, 0.0
