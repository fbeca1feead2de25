"""The plan of a lab as data: names, addresses, commands, and the environment of each rank."""

from collections.abc import Sequence

from msgspec import Struct

from simnet.core.errors import SimnetError
from simnet.core.units import Bandwidth, Duration

Command = tuple[str, ...]

MAX_NODES = 254  # addresses of 10.77.0.0/24
MIN_BANDWIDTH = Bandwidth(125e3)
LATENCY_MS = 20
"""Longest wait of a packet in the queue of tbf; later packets are dropped, as in a switch with small buffers."""
BURST_S, MIN_BURST_BYTES = 2e-3, 32768
"""Bucket of tbf, as time at its rate. A NIC whose node waits for a core sends late; the bucket lets it catch up."""
MAX_PACKET_BYTES = 65536
MAX_LATENCY = Duration(1.0)
NIC = "eth0"
QUEUED_OVERHEAD = 1.1
"""Length of a packet in a queue, which counts the headers of all its segments, over that of its payload; at most."""
_FIRST_PORT, _NUM_PORTS = 29500, 1000  # the first is torchrun's


class LabSpec(Struct, frozen=True, kw_only=True):
    """The nodes of a lab, their ranks and their network.

    Attributes:
        num_nodes: number of nodes.
        ranks_per_node: ranks on each node.
        bandwidth: of each node's NIC in each direction; None sets no limit.
        latency: what each frame that leaves a node waits on its way to the switch, one way.
        threads_per_rank: becomes OMP_NUM_THREADS.
        pins_cores: pin each rank to its share of the cores, as if on a machine of its own; else the scheduler moves
            ranks between cores.
        cores_per_rank: part of a core that each rank may use, whatever the others do; None sets no limit.
        spare_nodes: further nodes, after the others, on which no rank runs: where traffic of others comes from.
    """

    num_nodes: int
    ranks_per_node: int = 1
    bandwidth: Bandwidth | None = None
    latency: Duration = Duration(0)
    threads_per_rank: int = 1
    pins_cores: bool = True
    cores_per_rank: float | None = None
    spare_nodes: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.num_nodes <= self.all_nodes <= MAX_NODES:
            raise SimnetError(f"lab: nodes: {self.all_nodes}: must be from 1 to {MAX_NODES}")
        for what in ("ranks_per_node", "threads_per_rank"):
            if getattr(self, what) < 1:
                raise SimnetError(f"lab: {what}: {getattr(self, what)}: must be at least 1")
        check_bandwidth(self.bandwidth)
        check_latency(self.latency)

    @property
    def world_size(self) -> int:
        """Ranks of all nodes."""
        return self.num_nodes * self.ranks_per_node

    @property
    def all_nodes(self) -> int:
        """Nodes with ranks and spare ones."""
        return self.num_nodes + self.spare_nodes


class RankPlan(Struct, frozen=True, kw_only=True):
    """One rank: the command that starts it in its node, and its additional environment variables."""

    rank: int
    node: int
    command: Command
    environment: dict[str, str]


def check_bandwidth(bandwidth: Bandwidth | None) -> None:
    """Check that a NIC can have this bandwidth.

    Raises:
        SimnetError: the bandwidth is below 1 Mbit/s, where the smallest bucket of tbf lasts a quarter of a second.
    """
    if bandwidth is not None and bandwidth < MIN_BANDWIDTH:
        raise SimnetError(f"lab: bandwidth: {bandwidth.text()!r}: must be at least {MIN_BANDWIDTH.text()!r}")


def check_latency(latency: Duration) -> None:
    """Check that a NIC can have this latency."""
    if not 0 <= latency <= MAX_LATENCY:
        raise SimnetError(f"lab: latency: {latency.text()!r}: must be from '0 s' to {MAX_LATENCY.text()!r}")


def switch_name(prefix: str) -> str:
    """Return the name of the switch's namespace."""
    return f"{prefix}-switch"


def node_name(prefix: str, node: int) -> str:
    """Return the name of a node's namespace."""
    return f"{prefix}-node{node}"


def address(node: int) -> str:
    """Return the IPv4 address of a node, private to its lab.

    Example:
        >>> address(0)
        '10.77.0.1'
    """
    return f"10.77.0.{node + 1}"


def create_commands(spec: LabSpec, prefix: str) -> list[Command]:
    """Return the commands that create a lab, in order."""
    # Every interface is created inside a namespace of the lab: no name of the host can collide with one of them.
    switch = switch_name(prefix)
    commands: list[Command] = [
        ("ip", "netns", "add", switch),
        ("ip", "-n", switch, "link", "add", "bridge", "type", "bridge"),
        ("ip", "-n", switch, "link", "set", "bridge", "up"),
    ]
    for node in range(spec.all_nodes):
        commands += _node_commands(prefix, node, has_cable=spec.latency > 0)
    return commands + shape_commands(range(spec.all_nodes), prefix, spec.bandwidth)


def _node_commands(prefix: str, node: int, *, has_cable: bool) -> list[Command]:
    """Return the commands that create one node and connect it to the switch, or prepare both ends for `cable.c`."""
    switch, name, port = switch_name(prefix), node_name(prefix, node), f"port{node}"
    here, there = ("ip", "-n", name), ("ip", "-n", switch)
    tap = ("mode", "tap", "vnet_hdr")
    ends: list[Command] = [(*there, "link", "add", port, "type", "veth", "peer", "name", NIC, "netns", name)]
    if has_cable:
        ends = [(*here, "tuntap", "add", NIC, *tap), (*there, "tuntap", "add", port, *tap)]
    return [
        ("ip", "netns", "add", name),
        *ends,
        (*there, "link", "set", port, "master", "bridge", "up"),
        (*here, "link", "set", "lo", "up"),
        (*here, "address", "add", f"{address(node)}/24", "dev", NIC),
        (*here, "link", "set", NIC, "up"),
        # Every kernel has reno, so measurements on different machines use the same congestion control.
        (*here, "route", "replace", "10.77.0.0/24", "dev", NIC, "src", address(node), "congctl", "reno"),
    ]


def shape_commands(
    nodes: Sequence[int], prefix: str, bandwidth: Bandwidth | None, before: Bandwidth | None = None
) -> list[Command]:
    """Return the commands that limit the NICs of some nodes in both directions: its own end, and the switch's port.

    Segmentation offload stays on, since without it the CPU is the limit. Its packets are at most half a bucket, since
    tbf splits or drops a packet larger than the bucket. The bucket is short, since a full one passes at once and thus
    faster than the bandwidth. Packets that were queued at another bandwidth must fit into it too: one that does not
    would wait for ever, and all others behind it.

    Args:
        nodes: whose NICs.
        prefix: of the lab's names.
        bandwidth: of each NIC; None removes the limit.
        before: the bandwidth until now, of which packets may be queued; None for a NIC that is idle.
    """
    check_bandwidth(bandwidth)
    queued = 0 if before is None else round(QUEUED_OVERHEAD * _packet_bytes(_burst_bytes(before)))
    burst = 0 if bandwidth is None else max(_burst_bytes(bandwidth), queued)
    if bandwidth is None:
        discipline: Command = ("noqueue",)
    else:
        rate = ("rate", f"{round(bandwidth * 8)}bit")
        discipline = ("tbf", *rate, "burst", str(burst), "latency", f"{LATENCY_MS}ms")
    packet = _packet_bytes(burst)
    ends = [(node_name(prefix, node), NIC) for node in nodes]
    ends += [(switch_name(prefix), f"port{node}") for node in nodes]
    return [
        command
        for name, nic in ends
        for command in (
            ("ip", "-n", name, "link", "set", nic, "gso_max_size", str(packet)),
            ("tc", "-n", name, "qdisc", "replace", "dev", nic, "root", *discipline),
        )
    ]


def _burst_bytes(bandwidth: Bandwidth) -> int:
    return max(MIN_BURST_BYTES, round(bandwidth * BURST_S))


def _packet_bytes(burst: int) -> int:
    return min(MAX_PACKET_BYTES, burst // 2) if burst else MAX_PACKET_BYTES


def rank_plans(  # noqa: PLR0913, PLR0917 - what a lab knows of a launch
    spec: LabSpec,
    prefix: str,
    command: Sequence[str],
    launch: int = 0,
    cores: Sequence[int] = (),
    quotas: Sequence[str] = (),
) -> list[RankPlan]:
    """Return how to start `ranks_per_node` processes on each node, with the environment that torchrun gives.

    Each rank dies with the process that starts it (`setpriv --pdeathsig`), even if that process is killed.

    Args:
        spec: the lab.
        prefix: start of the names of its namespaces.
        command: program and arguments, the same for every rank.
        launch: number of earlier launches of this lab; each uses another port, since the last may still be closing.
        cores: cores that the ranks share out; none leaves the choice to the scheduler.
        quotas: file of each rank into which it writes its process id, so that its CPU time is limited; none has one.
    """
    port = _FIRST_PORT + launch % _NUM_PORTS
    plans = []
    for rank, share in enumerate(core_shares(spec.world_size, cores)):
        node = rank // spec.ranks_per_node
        pinned = ("taskset", "--cpu-list", ",".join(map(str, share))) if share else ()
        held = ("sh", "-c", 'echo $$ > "$0" && exec "$@"', quotas[rank]) if quotas else ()
        enter = (*held, *pinned, "setpriv", "--pdeathsig", "KILL", *inside(prefix, node))
        environment = _environment(spec, rank, port)
        plans.append(RankPlan(rank=rank, node=node, command=(*enter, *command), environment=environment))
    return plans


def inside(prefix: str, node: int) -> Command:
    """Return what runs a command in a node, if it follows."""
    return ("ip", "netns", "exec", node_name(prefix, node))


def core_shares(world_size: int, cores: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the cores of each rank: an equal number for each, or one shared core if there are more ranks than cores.

    Example:
        >>> core_shares(2, [0, 1, 2, 3, 4]), core_shares(3, [0, 1])
        ([(0, 1), (2, 3)], [(0,), (1,), (0,)])
    """
    each = len(cores) // world_size
    if each:
        return [tuple(cores[rank * each : (rank + 1) * each]) for rank in range(world_size)]
    return [(cores[rank % len(cores)],) if cores else () for rank in range(world_size)]


def _environment(spec: LabSpec, rank: int, port: int) -> dict[str, str]:
    """Return the environment variables that torchrun sets for a rank."""
    node, local_rank = divmod(rank, spec.ranks_per_node)
    variables = {
        "RANK": rank,
        "WORLD_SIZE": spec.world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": spec.ranks_per_node,
        "GROUP_RANK": node,
        "GROUP_WORLD_SIZE": spec.num_nodes,
        "MASTER_ADDR": address(0),
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": NIC,
        "OMP_NUM_THREADS": spec.threads_per_rank,
    }
    return {name: str(value) for name, value in variables.items()}
