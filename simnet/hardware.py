"""The hardware as a scenario names it: frozen, strict, checked where it is built; it knows no strategy.

A field of a quantity type (`Bandwidth`, `Size`, `Duration`) is text with a unit in a file and an SI number in the
program; its name in the file has no unit, its name in the program has one.
"""

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from msgspec import Meta, Struct, field

from simnet.options import Options
from simnet.registry import Registry
from simnet.units import Bandwidth, Duration, Size
from simnet.values import MAX_RANKS, Count, Factor, Fraction, Intervals, Kind

LinkKind = Literal["port_tx", "port_rx", "nic_tx", "nic_rx", "leaf_up", "leaf_down"]


def check_intervals(intervals: Intervals) -> None:
    """Refuse factors that do not hold 1 between them."""
    for key, (low, high) in intervals.items():
        if not low <= 1 <= high:
            raise ValueError(f"intervals: {key!r}: [{low:g}, {high:g}]: are factors and must hold 1 between them")


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every named part carries: what it is called, and where its numbers come from."""

    name: str = "inline"
    title: str = ""
    source: str = ""


class Link(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One direction of a full-duplex link: between GPUs of a node (per rank), or a NIC (per NIC)."""

    bytes_per_s: Bandwidth = field(name="bandwidth")
    alpha_s: Duration = field(name="latency")
    source: str = ""

    def __post_init__(self) -> None:
        if self.bytes_per_s < 1:
            raise ValueError(f"bandwidth: {self.bytes_per_s.text()!r}: must be at least 1 B/s")


class Fabric(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Leaf-spine fabric: a leaf switch joins `nodes_per_leaf` nodes; its uplinks carry 1/oversubscription of them."""

    nodes_per_leaf: Count
    oversubscription: Factor = 1.0
    source: str = ""


class LinkId(NamedTuple):
    """One direction of one link: the port of a rank, the NICs of a node, or the uplinks of a leaf."""

    kind: LinkKind
    place: int


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Something that makes some ranks or links slower than the rest; a subclass says which, and by how much.

    A cluster with a fault is simulated rank by rank (the exact executor). Factors of several faults multiply.
    """

    title: ClassVar[str] = ""

    def check(self, cluster: "Cluster") -> None:
        """Refuse a cluster that it does not fit.

        Raises:
            ValueError: the sentence, what was given and the rule.
        """

    def compute_factor(self, node: int, local_rank: int) -> float:  # noqa: ARG002
        """Return how many times as long compute takes on a rank."""
        return 1.0

    def link_factor(self, link: LinkId, time_s: float) -> float:  # noqa: ARG002
        """Return how many times as long a byte takes on a link at a time [s from the start of the iteration]."""
        return 1.0

    @property
    def changes_s(self) -> tuple[float, ...]:
        """Times at which `link_factor` changes [s]."""
        return ()


FAULTS: Registry[Fault] = Registry("fault", Fault, "simnet.faults")
if TYPE_CHECKING:
    AnyFault = Fault
else:
    AnyFault = FAULTS.annotation


@FAULTS.register
class SlowNode(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="slow_node"):
    """One node that is slower than the rest, as a factor >= 1 on its compute time and on its NIC time."""

    title: ClassVar[str] = "slow node"

    node: Annotated[int, Meta(ge=0)]
    compute_slowdown: Factor = 1.0
    nic_slowdown: Factor = 1.0

    def check(self, cluster: "Cluster") -> None:
        """Refuse a node that is not there.

        Raises:
            ValueError: it is not.
        """
        if self.node >= cluster.num_nodes:
            raise ValueError(f"node {self.node}: the cluster has nodes 0 to {cluster.num_nodes - 1}")

    def compute_factor(self, node: int, local_rank: int) -> float:  # noqa: ARG002
        """Return the node's own factor."""
        return self.compute_slowdown if node == self.node else 1.0

    def link_factor(self, link: LinkId, time_s: float) -> float:  # noqa: ARG002
        """Return the slowdown of the node's NICs."""
        is_mine = link.kind in ("nic_tx", "nic_rx") and link.place == self.node
        return self.nic_slowdown if is_mine else 1.0


class Cluster(Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes of GPUs: fast links inside a node, NICs and a fabric between nodes.

    A node's NICs are modelled as one link of `nics_per_node` times the bandwidth: NCCL builds a channel per NIC, so one
    collective uses them all.
    """

    num_nodes: Count
    ranks_per_node: Count
    intra_node: Link
    inter_node: Link
    nics_per_node: Count = 1
    gpu: str = ""
    fabric: Fabric | None = None
    slow_nodes: tuple[SlowNode, ...] = ()
    faults: tuple[AnyFault, ...] = ()

    def __post_init__(self) -> None:
        if self.world_size > MAX_RANKS:
            raise ValueError(f"num_nodes: {self.num_nodes} x {self.ranks_per_node} ranks: at most {MAX_RANKS} ranks")
        for key, faults in (("slow_nodes", self.slow_nodes), ("faults", self.faults)):
            for fault in faults:
                try:
                    fault.check(self)
                except ValueError as error:
                    raise ValueError(f"{key}: {error}") from error
        nodes = [slow.node for slow in self.all_faults if isinstance(slow, SlowNode)]
        if len(set(nodes)) < len(nodes):
            raise ValueError(f"{'faults' if self.faults else 'slow_nodes'}: {nodes}: name each slow node once")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_nodes * self.ranks_per_node

    @property
    def all_faults(self) -> tuple[Fault, ...]:
        """All that is slower than the rest; `slow_nodes` is a short way to write the commonest."""
        return (*self.slow_nodes, *self.faults)


class LinkCalibration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a link really gives: a fraction of its nominal bandwidth, by bytes of one send, and a latency.

    `efficiency` is one number, or `[["64 KiB", 0.3], ["16 MiB", 0.9]]`, read log-linearly and constant outside.
    `latency` replaces the cluster's if given. `measured_on` is the nominal bandwidth of the link that was measured; on
    another link the efficiency is a guess, and the result says so.
    """

    efficiency: Fraction | tuple[tuple[Size, Fraction], ...] = 1.0
    alpha_s: Duration | None = field(name="latency", default=None)
    measured_on: Bandwidth | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.efficiency, tuple):
            sizes = [size for size, _ in self.efficiency]
            if not sizes or sizes[0] <= 0 or sizes != sorted(set(sizes)):
                raise ValueError("efficiency: message sizes must be above zero and ascending; sort the points")


class KernelTime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A timed kernel: `launch + time_per_element * elements`, which replaces the estimate by bytes moved.

    Where a cache ends: up to `cached_elements` so, from twice as many on with `time_per_element_beyond` for all of
    them, log-linear in between. `options` are those of the system that it was timed for, `{ bits = 4, block_size =
    8192 }`; a result of another setting says so.
    """

    launch_s: Duration = field(name="launch", default=Duration(0))
    s_per_element: Duration = field(name="time_per_element")
    cached_elements: Count | None = None
    beyond_s_per_element: Duration | None = field(name="time_per_element_beyond", default=None)
    options: Options = field(default_factory=Options)
    source: str = ""

    def __post_init__(self) -> None:
        if (self.cached_elements is None) != (self.beyond_s_per_element is None):
            raise ValueError("cached_elements: goes with time_per_element_beyond; give both, or none")

    def seconds(self, num_elements: float) -> float:
        """Return the time over so many elements [s]."""
        per_element = float(self.s_per_element)
        if self.cached_elements is not None and self.beyond_s_per_element is not None:
            part = part_beyond(num_elements, self.cached_elements)
            per_element += part * (self.beyond_s_per_element - per_element)
        return float(self.launch_s) + per_element * num_elements


def part_beyond(num_elements: float, cached_elements: float) -> float:
    """Return from 0 to 1 how far a size is beyond a cache: 1 at twice the elements that it holds."""
    return min(math.log2(num_elements / cached_elements), 1.0) if num_elements > cached_elements else 0.0


class HostCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rank's own cores need for a collective while the wire works, as where ranks share cores.

    The collective takes at least `launch + round x rounds + message x sends + time_per_byte x bytes sent` of a rank:
    the gaps g and G of LogGP (Alexandrov et al., SPAA 1995), with what a rank takes to wake up.
    """

    launch_s: Duration = field(name="launch", default=Duration(0))
    round_s: Duration = field(name="round", default=Duration(0))
    message_s: Duration = field(name="message", default=Duration(0))
    s_per_byte: Duration = field(name="time_per_byte", default=Duration(0))
    source: str = ""


class FittedTo(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measurement file that a calibration or a workload was fitted to: what it says in a hash, and what it measured.

    Attributes:
        measured: kinds of series.
        nic_bytes_per_s: of a node; None where the NICs were not shaped, or it is not known.
    """

    file: str
    digest: str
    measured: tuple[str, ...]
    num_nodes: Count
    ranks_per_node: Count
    nic_bytes_per_s: Bandwidth | None = field(name="nic", default=None)


class Calibration(Part, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What hardware and software were measured (or are estimated) to take, apart from nominal link rates.

    `collective_launch` is paid once by each collective, `message_cost` for each send that a rank posts, `poll_cost`
    for each send that it posts at once with others, times how many these are (a progress engine that polls every
    open connection for each of them). These come before the wire; `host` is beside it. `all_to_all_efficiency` is
    the further fraction of the NICs that sends to many peers at once reach. `flat_ring_latency`: one hop in G of a
    flat ring leaves the node; rounds in lock-step pay the "slowest" latency each, NCCL's own cost model charges
    each hop once along the ring, which is the "mean" a round.

    `backward_slowdown` multiplies the time of compute that runs while communication does. Kernels without a time in
    `kernels` take `kernel_launch` + bytes moved / (`memory_bandwidth` x `codec_efficiency`); plain casts run at the
    whole `memory_bandwidth`. `gpu` names the GPU that kernels and memory bandwidth belong to.

    `intervals` gives the 90 % interval of fitted values, by dotted key, as factors on the value: `"inter_node.latency"
    = [0.9, 1.2]`; that of an efficiency curve holds for all its points.
    """

    kind: Kind = "ideal"
    gpu: str = ""
    intra_node: LinkCalibration = LinkCalibration()
    inter_node: LinkCalibration = LinkCalibration()
    collective_launch_s: Duration = field(name="collective_launch", default=Duration(0))
    message_s: Duration = field(name="message_cost", default=Duration(0))
    poll_s: Duration = field(name="poll_cost", default=Duration(0))
    host: HostCost = HostCost()
    backward_slowdown: Factor = 1.0
    memory_bytes_per_s: Bandwidth | None = field(name="memory_bandwidth", default=None)
    codec_efficiency: Fraction = 1.0
    kernel_launch_s: Duration = field(name="kernel_launch", default=Duration(0))
    kernels: dict[str, KernelTime] = {}
    all_to_all_efficiency: Fraction = 1.0
    flat_ring_latency: Literal["slowest", "mean"] = "slowest"
    intervals: Intervals = {}
    fitted_to: tuple[FittedTo, ...] = ()

    def __post_init__(self) -> None:
        check_intervals(self.intervals)
        if self.memory_bytes_per_s is not None and self.memory_bytes_per_s < 1e6:
            raise ValueError(f"memory_bandwidth: {self.memory_bytes_per_s.text()!r}: must be at least 1 MB/s")
