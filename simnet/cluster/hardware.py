"""The hardware as a scenario names it: frozen, strict, checked where it is built; it knows no strategy.

A field of a quantity type (`Bandwidth`, `Size`, `Duration`) is text with a unit in a file and an SI number in the
program; its name in the file has no unit, its name in the program has one.
"""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

from msgspec import Meta, Struct, field
from msgspec.structs import force_setattr, replace

from simnet.cluster import network_costs
from simnet.cluster.kernel_times import HostCost, KernelTime
from simnet.cluster.nccl_costs import BETWEEN_CLUSTERS, SAME_NETWORK, NcclCosts, Network
from simnet.cluster.network_costs import Cost, Efficiency, LibraryCosts, NodesPoint, check_intervals
from simnet.core import files, schema
from simnet.core.bounded_types import MAX_RANKS, Count, Factor, Fraction, Intervals, Kind, Precision, Share
from simnet.core.errors import SimnetError, did_you_mean
from simnet.core.schema import StructRegistry
from simnet.core.units import Bandwidth, Duration, Size

if TYPE_CHECKING:
    from numpy.random import Generator

    from simnet.core.bounded_types import FloatArray


NCCL_BANDWIDTH = "nccl.inter_node_efficiency"
LATENCY = "inter_node.latency"
INLINE = "inline"
"""Name of a part or a scenario that was written without one; people do not see it."""
USUAL_GPUS = {"a100": "A100-80GB", "h100": "H100-80GB", "v100": "V100-32GB"}
"""The card of several of one name that is meant by that name alone: the one with NVLink and the most memory."""
LinkKind = Literal["port_tx", "port_rx", "nic_tx", "nic_rx", "leaf_up", "leaf_down"]


def full_gpu_name(name: str) -> str:
    """Return the name of a GPU as the table of GPUs has it: of "H100", in any case, "H100-80GB"."""
    return USUAL_GPUS.get(name.lower(), name)


class NamedPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every named part carries.

    Attributes:
        name: what messages and figures call the part; the name of its file, if it comes from one.
        title: one line for people, as `simnet show` and tables show it.
        source: where the numbers come from: a paper, a data sheet, a measurement.
    """

    name: str = INLINE
    title: str = ""
    source: str = ""

    @property
    def label(self) -> str:
        """What messages call the part: "workload 'bert_base'", or its kind alone where nobody has named it."""
        kind, called = type(self).__name__.lower(), self.title if self.name == INLINE else self.name
        return f"{kind} {called!r}" if called else kind


class Link(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One direction of a full-duplex link: between the GPUs of a node (per rank), or a NIC (per NIC).

    Attributes:
        bytes_per_s: nominal, in one direction, as on the data sheet; at least 1 B/s.
        alpha_s: time before the first byte of a send arrives.
        source: where the numbers come from.
    """

    bytes_per_s: Bandwidth = field(name="bandwidth")
    alpha_s: Duration = field(name="latency")
    source: str = ""

    def __post_init__(self) -> None:
        if self.bytes_per_s < 1:
            raise ValueError(f"bandwidth: {self.bytes_per_s.text()!r}: must be at least 1 B/s")


class Fabric(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Leaf-spine fabric between the nodes.

    Attributes:
        nodes_per_leaf: nodes that one leaf switch joins.
        oversubscription: bandwidth of the NICs below a leaf switch over that of its uplinks; 1 is non-blocking.
        source: where the numbers come from.
    """

    nodes_per_leaf: Count
    oversubscription: Factor = 1.0
    source: str = ""


class LinkId(NamedTuple):
    """One direction of one link: the port of a rank, the NICs of a node, or the uplinks of a leaf.

    Attributes:
        kind: which link, and in which direction.
        place: number of that rank, node or leaf, from 0.
    """

    kind: LinkKind
    place: int


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Something that makes some ranks or links slower than the rest, or varies; a subclass says which, and by how much.

    Ranks of a cluster with a fault are no longer alike. Factors of several faults multiply, latencies and pauses add
    up, and of several limits the lowest holds. Times are seconds from the start of the run.

    Attributes:
        varies: whether it draws anything: factors, pauses.
        amounts: names of fields that say how much and not where: with another amount it draws by the same random
            numbers, so that a sweep over one is smooth.
    """

    title: ClassVar[str] = ""
    varies: ClassVar[bool] = False
    amounts: ClassVar[tuple[str, ...]] = ()

    def check(self, cluster: "Cluster") -> None:
        """Refuse a cluster that it does not fit.

        Raises:
            ValueError: the sentence, what was given and the rule.
        """

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """Nodes whose ranks and links it slows down; None: any may be one."""
        return None

    def contradicts(self, other: "Fault") -> str:  # noqa: ARG002
        """Return why it cannot be true beside another fault of its kind, in one sentence; empty where it can."""
        return ""

    def on(self, cluster: "Cluster", compute_s: Callable[[str], float]) -> "Fault":  # noqa: ARG002
        """Return it as it is on a cluster, with numbers in place of names.

        Args:
            cluster: the cluster.
            compute_s: what forward and backward take on a GPU, by its name [s].
        """
        return self

    def compute_factor(self, node: int, local_rank: int) -> float:  # noqa: ARG002
        """Return the factor on the time of compute on a rank."""
        return 1.0

    def link_factor(self, link: LinkId, time_s: float) -> float:  # noqa: ARG002
        """Return the factor on the time of a byte on a link."""
        return 1.0

    def link_limit(self, link: LinkId, time_s: float) -> float:  # noqa: ARG002
        """Return the most bytes per second that a link carries, whatever its rate."""
        return math.inf

    def added_latency_s(self, link: LinkId, time_s: float) -> float:  # noqa: ARG002
        """Return what a send over a link waits beside its usual latency [s]."""
        return 0.0

    @property
    def changes_s(self) -> tuple[float, ...]:
        """Times at which what it says of links changes [s]."""
        return ()

    def next_change_s(self, after_s: float) -> float:
        """Return the first such time after a time [s], infinity if there is none."""
        return min((time_s for time_s in self.changes_s if time_s > after_s), default=math.inf)

    def draw_compute(self, draws: "Generator", iteration: int, num_ranks: int) -> "FloatArray | None":  # noqa: ARG002
        """Return the factor on the time of compute of each rank in an iteration; None if it does not vary."""
        return None

    def draw_pauses_s(self, draws: "Generator", iteration: int, num_ranks: int) -> "FloatArray | None":  # noqa: ARG002
        """Return how long each rank stands still at the start of an iteration [s]; None if none does."""
        return None

    def draw_collectives(self, draws: "Generator", iteration: int, number: int) -> "FloatArray | None":  # noqa: ARG002
        """Return the factor on the time of each of the collectives of an iteration; None if it does not vary."""
        return None


FAULTS: StructRegistry[Fault] = StructRegistry("fault", Fault, "simnet.faults")
if TYPE_CHECKING:
    AnyFault = Fault
else:
    AnyFault = FAULTS.annotation


@FAULTS.register
class SlowNode(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="slow_node"):
    """One node that is slower than the rest, a straggler.

    Attributes:
        node: its number.
        compute_slowdown: factor on its compute time.
        nic_slowdown: factor on the time of its NICs.
    """

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

    @property
    def nodes(self) -> tuple[int, ...]:
        """The one."""
        return (self.node,)

    def compute_factor(self, node: int, local_rank: int) -> float:  # noqa: ARG002
        """Return the node's own factor."""
        return self.compute_slowdown if node == self.node else 1.0

    def link_factor(self, link: LinkId, time_s: float) -> float:  # noqa: ARG002
        """Return the slowdown of the node's NICs."""
        is_of_node = link.kind in ("nic_tx", "nic_rx") and link.place == self.node
        return self.nic_slowdown if is_of_node else 1.0


class Cluster(NamedPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes of GPUs: fast links inside a node, NICs and a fabric between nodes.

    A node's NICs are modelled as one link of `nics_per_node` times the bandwidth: NCCL builds a channel per NIC, so one
    collective uses them all.

    Attributes:
        num_nodes: nodes, each one host.
        ranks_per_node: one GPU each; at most 1,000,000 ranks in all.
        intra_node: links between the GPUs of a node, such as NVLink; bandwidth per GPU.
        inter_node: links between nodes; bandwidth per NIC.
        nics_per_node: NICs of a node, which its ranks share.
        gpu: chooses the rows of `workload.compute` and prices `workload.work`; "A100", "H100" and "V100" are the cards
            with NVLink and the most memory.
        network: what the NICs speak; it changes no time, but says how far another cluster's NCCL costs may be off.
        fabric: switches between the nodes; without it the fabric is never the limit.
        slow_nodes: a short way to write faults of kind "slow_node".
        faults: what makes some ranks or links slower; factors multiply.
    """

    num_nodes: Count
    ranks_per_node: Count
    intra_node: Link
    inter_node: Link
    nics_per_node: Count = 1
    gpu: str = ""
    network: Network = ""
    fabric: Fabric | None = None
    slow_nodes: tuple[SlowNode, ...] = ()
    faults: tuple[AnyFault, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "gpu", full_gpu_name(self.gpu))
        if self.world_size > MAX_RANKS:
            raise ValueError(f"num_nodes: {self.num_nodes} x {self.ranks_per_node} ranks: at most {MAX_RANKS} ranks")
        for key, faults in (("slow_nodes", self.slow_nodes), ("faults", self.faults)):
            for fault in faults:
                try:
                    fault.check(self)
                except ValueError as error:
                    raise ValueError(f"{key}: {error}") from error
        # Two kinds of fault add up; only two of one kind can contradict each other.
        for place, fault in enumerate(self.faults):
            for other in self.faults[:place]:
                why = fault.contradicts(other) if type(other) is type(fault) else ""
                if why:
                    raise ValueError(f"faults: {why}")
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


MAX_WINDOW = 2**34
GLOO_WINDOW = Size(2 * 2**20)
"""Two of gloo's segments of at most 1 MiB: a chunk's iteration waits for the receive of the one before the last."""


class LinkCalibration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a link really gives.

    Attributes:
        efficiency: fraction of the nominal bandwidth that sends reach: a number, or pairs of bytes of one send and
            fraction, such as `[["64 KiB", 0.3], ["16 MiB", 0.9]]`, ascending, interpolated over the logarithm of the
            size, constant outside.
        overlap_efficiency: further fraction while the GPU at the link computes, since the kernels that send share it
            with backward; NICs slow down with the part of their node's GPUs that do.
        alpha_s: in place of that of the cluster's link.
        window: bytes of a send that may be under way at once, at most 16 GiB, as of a library that waits for the
            receiver: "2 MiB" for gloo, two segments of 1 MiB. A send of s bytes then takes s / W times the larger of W
            / rate and 2 x latency + 0.75 W / rate, with W = min(window, s), in place of latency + s / rate.
        measured_on: nominal bandwidth of the measured link; on another one the efficiency is a guess, and the result
            says so.
        source: where the numbers come from.
    """

    efficiency: Efficiency = 1.0
    overlap_efficiency: Fraction = 1.0
    alpha_s: Duration | None = field(name="latency", default=None)
    window: Size | None = None
    measured_on: Bandwidth | None = None
    source: str = ""

    def __post_init__(self) -> None:
        network_costs.check_efficiency(self.efficiency)
        if self.window is not None and not 1 <= self.window <= MAX_WINDOW:
            raise ValueError(f"window: {self.window.text()!r}: must be from 1 B to 16 GiB; drop it to have none")


class FittedTo(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measurement file that a calibration or a workload was fitted to.

    Attributes:
        file: its name.
        digest: hash of its content, by which `simnet validate` refuses to predict it.
        measured: kinds of the series in it.
        num_nodes: nodes that were measured.
        ranks_per_node: ranks on each of them.
        nic_bytes_per_s: bandwidth of a node's NICs, if shaped or known.
    """

    file: str
    digest: str
    measured: tuple[str, ...]
    num_nodes: Count
    ranks_per_node: Count
    nic_bytes_per_s: Bandwidth | None = field(name="nic", default=None)


class Calibration(NamedPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What hardware and software were measured (or are estimated) to take, apart from nominal link rates.

    `collective_launch`, `message_cost` and `poll_cost` pass before the wire works; `host` passes while it works.

    Attributes:
        kind: where the numbers come from; "ideal" are neutral values.
        gpu: that the kernels and the memory bandwidth belong to.
        network: what the NICs speak that `nccl` was fitted to, as of a cluster.
        intra_node: what the links inside a node give.
        inter_node: what the NICs give.
        collective_launch_s: paid once by each collective.
        message_s: paid by a rank for each send that it posts.
        poll_s: paid by a rank for each send that it posts together with others, times their number: a progress engine
            polls every open connection.
        host: CPU time that collectives need of a rank.
        backward_slowdown: factor on compute that runs while communication does.
        hook_slowdown: factor on a backward that exchanges gradients, over backward on one GPU by itself: DDP's hooks,
            copies into buckets, checks.
        compute_spread: standard deviation / mean of the time of GPUs of one kind for the same compute; FSDP, HSDP and
            ZeRO-2 wait for the slowest of all ranks.
        host_pause_s: mean pause of a rank's host in a step, as to collect garbage, at most 1 s, for which FSDP, HSDP
            and ZeRO-2 wait.
        memory_bytes_per_s: of the GPU, at least 1 MB/s. Kernels that are not in `kernels` take `kernel_launch` + bytes
            moved / (`memory_bandwidth` * `codec_efficiency`).
        codec_efficiency: fraction of the memory bandwidth that encode and decode reach; casts reach all.
        kernel_launch_s: time of a kernel over no bytes.
        kernels: timed kernels by name.
        all_to_all_efficiency: further fraction of the NICs' bandwidth for sends to many peers at once.
        flat_ring_latency: of a round of a flat ring, where one hop in `ranks_per_node` leaves the node: that of the
            slowest hop (rounds in lock-step), or the mean of all (NCCL's cost model).
        hops_hide: whether latency between nodes beyond 14 us, a hop of NCCL's, hides behind bytes in all hops of a ring
            but the first, as NCCL passes slices on; else every hop is paid in full, as by libraries that wait for whole
            chunks. By default true, but false where `kind` is "measured" without costs of NCCL, since such latencies
            are fitted with every hop paid.
        by_nodes: costs between nodes by the number of nodes, in place of the plain ones.
        libraries: costs of exchanges that another library carries, by its name, such as "mpi".
        all_reduce: algorithm that the bandwidths were fitted with, the default of strategies that name none.
        nccl: what NCCL's all-reduce costs; `algorithm = "nccl"` takes it and is then the default.
        intervals: 90 % intervals of fitted values by dotted key, as factors, such as `"inter_node.latency" = [0.9,
            1.2]`; that of an efficiency curve holds for all its points.
        fitted_to: measurement files behind the values, written by `simnet calibrate`.
    """

    kind: Kind = "ideal"
    gpu: str = ""
    network: Network = ""
    intra_node: LinkCalibration = LinkCalibration()
    inter_node: LinkCalibration = LinkCalibration()
    collective_launch_s: Duration = field(name="collective_launch", default=Duration(0))
    message_s: Duration = field(name="message_cost", default=Duration(0))
    poll_s: Duration = field(name="poll_cost", default=Duration(0))
    host: HostCost = HostCost()
    backward_slowdown: Factor = 1.0
    hook_slowdown: Factor = 1.0
    compute_spread: Share = 0.0
    host_pause_s: Duration = field(name="host_pause", default=Duration(0))
    memory_bytes_per_s: Bandwidth | None = field(name="memory_bandwidth", default=None)
    codec_efficiency: Fraction = 1.0
    kernel_launch_s: Duration = field(name="kernel_launch", default=Duration(0))
    kernels: dict[str, KernelTime] = {}
    all_to_all_efficiency: Fraction = 1.0
    flat_ring_latency: Literal["slowest", "mean"] = "slowest"
    hops_hide: bool | None = None
    by_nodes: tuple[NodesPoint, ...] = ()
    libraries: dict[str, LibraryCosts] = {}
    all_reduce: str | None = None
    nccl: NcclCosts | None = None
    intervals: Intervals = {}
    fitted_to: tuple[FittedTo, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "gpu", full_gpu_name(self.gpu))
        check_intervals(self.intervals)
        if self.host_pause_s > 1:
            raise ValueError(f"host_pause: {self.host_pause_s.text()!r}: must be at most 1 s; a slow rank is a fault")
        if self.memory_bytes_per_s is not None and self.memory_bytes_per_s < 1e6:
            raise ValueError(f"memory_bandwidth: {self.memory_bytes_per_s.text()!r}: must be at least 1 MB/s")
        network_costs.check_points(self.by_nodes)
        carried = [strategy for library in self.libraries.values() for strategy in library.carries]
        if len(set(carried)) < len(carried):
            raise ValueError(f"libraries: carries {carried}: name each strategy in one library")

    @property
    def hides_hops(self) -> bool:
        """Tell whether latencies of a ring hide behind its bytes."""
        return self.hops_hide if self.hops_hide is not None else self.kind != "measured" or self.nccl is not None

    def library_of(self, strategy: str) -> LibraryCosts | None:
        """Return the library that carries a strategy's exchange; None: the one that the plain costs are of."""
        return next((library for library in self.libraries.values() if strategy in library.carries), None)

    def at_nodes(self, num_nodes: int) -> "Calibration":
        """Return the calibration of clusters of so many nodes, in which plain costs have taken the place of points."""
        libraries = {name: library.at_nodes(num_nodes) for name, library in self.libraries.items()}
        calibration = self._with_costs(network_costs.costs_at(self.by_nodes, num_nodes)) if self.by_nodes else self
        if self.by_nodes:
            calibration = replace(calibration, intervals=calibration.intervals | self._wider(calibration, num_nodes))
        return replace(calibration, by_nodes=(), libraries=libraries) if self.by_nodes or libraries else calibration

    def _wider(self, calibration: "Calibration", num_nodes: int) -> Intervals:
        """Return the intervals of costs that no point holds, but that were measured on the nodes of the points."""
        intervals = {key: interval for key, interval in calibration.intervals.items() if key == NCCL_BANDWIDTH}
        has_latency = any(point.alpha_s is not None for point in self.by_nodes)
        if calibration.inter_node.alpha_s is not None and not has_latency:
            intervals[LATENCY] = calibration.intervals.get(LATENCY, (1.0, 1.0))
        wider = {key: network_costs.widened(interval, self.by_nodes, num_nodes) for key, interval in intervals.items()}
        return {key: interval for key, interval in wider.items() if interval != (1.0, 1.0)}

    def nccl_spread(self, cluster: Cluster) -> Intervals:
        """Return how far NCCL's times may be off because its costs are of another cluster, by band; empty if not.

        Another cluster has other GPUs, NICs of another rate, or another network. Two clusters of one network differ by
        less than others.
        """
        # A measured calibration is taken to be of the cluster that it was measured on.
        if self.nccl is None or self.kind == "measured":
            return {}
        on = self.inter_node.measured_on
        is_other_gpu = bool(self.gpu and cluster.gpu) and self.gpu != cluster.gpu
        # Files write rates with few digits.
        is_other_rate = on is not None and not math.isclose(on, cluster.inter_node.bytes_per_s, rel_tol=0.01)
        if self.network and cluster.network:
            is_same = self.network == cluster.network
            return (
                {}
                if is_same and not is_other_gpu and not is_other_rate
                else SAME_NETWORK
                if is_same
                else BETWEEN_CLUSTERS
            )
        return BETWEEN_CLUSTERS if is_other_gpu or is_other_rate else {}

    def for_strategy(self, strategy: str) -> "Calibration":
        """Return the calibration with the costs of the library that carries a strategy's exchange."""
        library = self.library_of(strategy)
        return self if library is None else self._with_costs(network_costs.own_costs(library))

    def _with_costs(self, costs: Iterable[Cost]) -> "Calibration":
        values: dict[str, Any] = {}
        link: dict[str, Any] = {}
        intervals = dict(self.intervals)
        for cost in costs:
            known = network_costs.KEYS[cost.key]
            (link if known.key.startswith("inter_node.") else values)[known.name] = cost.value
            # An interval belongs to the value that was measured with it.
            intervals.pop(known.key, None)
            if cost.interval is not None:
                intervals[known.key] = cost.interval
        return replace(self, **values, inter_node=replace(self.inter_node, **link), intervals=intervals)


PeakFlops = Annotated[float, Meta(ge=1e9, le=1e18)]


class GpuModel(NamedPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the data sheet of a GPU promises.

    Attributes:
        memory_bytes: size of its memory.
        memory_bytes_per_s: bandwidth of its memory; at least 1 MB/s.
        peak_flops: FLOPs a second of matrix products by number format, dense: without sparsity. "fp32" is without
            tensor cores; a format that the GPU has not is left out.
    """

    memory_bytes: Size = field(name="memory")
    memory_bytes_per_s: Bandwidth = field(name="bandwidth")
    peak_flops: dict[Precision, PeakFlops]

    def __post_init__(self) -> None:
        if self.memory_bytes_per_s < 1e6:
            raise ValueError(f"bandwidth: {self.memory_bytes_per_s.text()!r}: must be at least 1 MB/s")

    def peak_in(self, precision: str) -> float:
        """Return its peak in a number format [FLOP/s]."""
        peak = self.peak_flops.get(precision)  # type: ignore[call-overload]
        if peak is None:
            known = ", ".join(self.peak_flops)
            raise SimnetError(f"{precision!r}: {self.name} has no peak in it: it has {known}; take one of them")
        return float(peak)


def find_gpu(name: str) -> GpuModel:
    """Return the GPU of a name."""
    gpu = known_gpu(full_gpu_name(name))
    if gpu is None:
        known_names = files.names("gpus")
        longer = [gpu_name for gpu_name in known_names if name and gpu_name.lower().startswith(name.lower())]
        hint = f" Did you mean {' or '.join(map(repr, longer))}?" if longer else did_you_mean(name, known_names)
        raise SimnetError(f"{name!r}: unknown GPU.{hint}")
    return gpu


@lru_cache(maxsize=64)
def known_gpu(name: str) -> GpuModel | None:
    """Return the GPU of a name; None if there is none."""
    if files.is_path(name) or name not in files.names("gpus"):
        return None
    path = files.locate("gpus", name)
    return schema.build(GpuModel, {"name": name, **files.read_file(path)}, files.label(path))
