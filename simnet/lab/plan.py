"""The plan of a lab as data: names, addresses, commands, and the environment of each rank."""

from collections.abc import Sequence

from msgspec import Struct

from simnet.errors import SimnetError
from simnet.units import Bandwidth

Command = tuple[str, ...]

MAX_NODES = 254
MIN_BANDWIDTH = Bandwidth(125e3)
LATENCY_MS = 20
BURST_S, MIN_BURST_BYTES = 2e-3, 32768
"""What a shaper lets through at once, at its rate: as long as nodes that share cores may be late for their turn."""
MAX_PACKET_BYTES = 65536
NIC = "eth0"
NETWORK = f"network namespaces, tbf burst {BURST_S * 1e3:g} ms, latency {LATENCY_MS} ms, TCP reno"
_FIRST_PORT, _NUM_PORTS = 29500, 1000


class LabSpec(Struct, frozen=True, kw_only=True):
    """What a lab is: nodes, the ranks on each, and the bandwidth of each node's NIC in each direction.

    `bandwidth` None leaves the NICs unshaped. `threads_per_rank` becomes OMP_NUM_THREADS. `pins_cores`: each rank is
    pinned to its share of the cores, as on a node of its own; else the scheduler moves ranks about.
    """

    num_nodes: int
    ranks_per_node: int = 1
    bandwidth: Bandwidth | None = None
    threads_per_rank: int = 1
    pins_cores: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.num_nodes <= MAX_NODES:
            raise SimnetError(f"lab: nodes: {self.num_nodes}: must be from 1 to {MAX_NODES}")
        for what in ("ranks_per_node", "threads_per_rank"):
            if getattr(self, what) < 1:
                raise SimnetError(f"lab: {what}: {getattr(self, what)}: must be at least 1")
        check_bandwidth(self.bandwidth)

    @property
    def world_size(self) -> int:
        """The number of ranks of all nodes."""
        return self.num_nodes * self.ranks_per_node


class RankPlan(Struct, frozen=True, kw_only=True):
    """One rank: the command that starts it inside its node, and the environment variables it gets on top."""

    rank: int
    node: int
    command: Command
    environment: dict[str, str]


def check_bandwidth(bandwidth: Bandwidth | None) -> None:
    """Check that a NIC can be given this bandwidth.

    Raises:
        SimnetError: it is so low that the burst of the shaper lasts longer than a second.
    """
    if bandwidth is not None and bandwidth < MIN_BANDWIDTH:
        raise SimnetError(f"lab: bandwidth: {bandwidth.text()!r}: must be at least {MIN_BANDWIDTH.text()!r}")


def switch_name(prefix: str) -> str:
    """Return the name of the namespace in which the switch is."""
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
    """Return the commands that make a lab, in their order; every interface is born inside a namespace of the lab."""
    switch = switch_name(prefix)
    commands: list[Command] = [
        ("ip", "netns", "add", switch),
        ("ip", "-n", switch, "link", "add", "bridge", "type", "bridge"),
        ("ip", "-n", switch, "link", "set", "bridge", "up"),
    ]
    for node in range(spec.num_nodes):
        commands += _node_commands(prefix, node)
    return commands + shape_commands(spec.num_nodes, prefix, spec.bandwidth)


def _node_commands(prefix: str, node: int) -> list[Command]:
    """Return the commands that make one node and plug it into the switch."""
    switch, name, port = switch_name(prefix), node_name(prefix, node), f"port{node}"
    here = ("ip", "-n", name)
    return [
        ("ip", "netns", "add", name),
        ("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", NIC, "netns", name),
        ("ip", "-n", switch, "link", "set", port, "master", "bridge", "up"),
        (*here, "link", "set", "lo", "up"),
        (*here, "address", "add", f"{address(node)}/24", "dev", NIC),
        (*here, "link", "set", NIC, "up"),
        # The congestion control that every kernel allows, so that machines can be compared.
        (*here, "route", "replace", "10.77.0.0/24", "dev", NIC, "src", address(node), "congctl", "reno"),
    ]


def shape_commands(num_nodes: int, prefix: str, bandwidth: Bandwidth | None) -> list[Command]:
    """Return the commands that give every NIC a bandwidth: what it sends, and what the switch sends to it.

    Segmentation offload stays on, since without it the CPU is the limit, but a packet is at most half a burst, and a
    burst short: what goes through at once is not limited to the bandwidth.
    """
    check_bandwidth(bandwidth)
    burst = 0 if bandwidth is None else max(MIN_BURST_BYTES, round(bandwidth * BURST_S))
    if bandwidth is None:
        discipline: Command = ("noqueue",)
    else:
        rate = ("rate", f"{round(bandwidth * 8)}bit")
        discipline = ("tbf", *rate, "burst", str(burst), "latency", f"{LATENCY_MS}ms")
    packet = min(MAX_PACKET_BYTES, burst // 2) if burst else MAX_PACKET_BYTES
    ends = [(node_name(prefix, node), NIC) for node in range(num_nodes)]
    ends += [(switch_name(prefix), f"port{node}") for node in range(num_nodes)]
    return [
        command
        for name, nic in ends
        for command in (
            ("ip", "-n", name, "link", "set", nic, "gso_max_size", str(packet)),
            ("tc", "-n", name, "qdisc", "replace", "dev", nic, "root", *discipline),
        )
    ]


def rank_plans(
    spec: LabSpec, prefix: str, command: Sequence[str], launch: int = 0, cores: Sequence[int] = ()
) -> list[RankPlan]:
    """Return how to start `ranks_per_node` processes on each node, with the environment that torchrun gives.

    Each rank dies when the process that started it dies, however that happens.

    Args:
        spec: the lab.
        prefix: of the names of its namespaces.
        command: program and arguments, the same for every rank.
        launch: how many launches this lab has seen; each gets a port of its own, since the last may still be closing.
        cores: of this machine, which the ranks divide among them; none lets the scheduler move them about.
    """
    port = _FIRST_PORT + launch % _NUM_PORTS
    plans = []
    for rank, share in enumerate(core_shares(spec.world_size, cores)):
        node = rank // spec.ranks_per_node
        pinned = ("taskset", "--cpu-list", ",".join(map(str, share))) if share else ()
        enter = (*pinned, "setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", node_name(prefix, node))
        environment = _environment(spec, rank, port)
        plans.append(RankPlan(rank=rank, node=node, command=(*enter, *command), environment=environment))
    return plans


def core_shares(world_size: int, cores: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the cores of each rank: as many as there are for each, or one that it shares with others.

    Example:
        >>> core_shares(2, [0, 1, 2, 3, 4]), core_shares(3, [0, 1])
        ([(0, 1), (2, 3)], [(0,), (1,), (0,)])
    """
    each = len(cores) // world_size
    if each:
        return [tuple(cores[rank * each : (rank + 1) * each]) for rank in range(world_size)]
    return [(cores[rank % len(cores)],) if cores else () for rank in range(world_size)]


def _environment(spec: LabSpec, rank: int, port: int) -> dict[str, str]:
    """Return what torchrun tells a rank."""
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
