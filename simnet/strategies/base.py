"""Strategies: frozen options that say how gradients are bucketed and exchanged, and give a `Program`.

Another strategy is a struct with a tag, a `title`, the costs of its kernels, and `exchange`: what one bucket goes
through. `register` makes it known to scenario files, `simnet advise` and everything that goes through `STRATEGIES`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, cast

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from simnet.cluster.hardware import Calibration, GpuModel
from simnet.cluster.schedule import Group, GroupKind
from simnet.cluster.topology import Topology
from simnet.collectives import algorithms, link_loads
from simnet.core import schema
from simnet.core.bounded_types import BYTES_PER_ELEMENT, Dtype
from simnet.core.errors import SimnetError, did_you_mean, shown
from simnet.core.schema import StructRegistry, tag_of
from simnet.core.system_options import SystemOptions, read_option
from simnet.core.units import Bandwidth, Duration, Size
from simnet.strategies.program import Communicate, Compute, Kernel, Operation, OperationId, Program, StepShare, Streams
from simnet.workload import buckets as bucketing
from simnet.workload import gpu_memory
from simnet.workload.buckets import Bucket, LinearCost
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.kernel_cost import ADAMW, KernelCost
from simnet.workload.training_step import Step

Options = Mapping[str, Any]
"""Options of a setting, or those in which a variant differs from it."""


def as_it_is(*_: object) -> tuple[Options, ...]:
    """Return the only variant of a setting: itself."""
    return ({},)


def capped_or_fused(_: object, caps: Sequence[Size | None]) -> Iterable[Options]:
    """Return buckets closed at each of these caps, and all gradients in one after backward."""
    return [*({"bucket_cap": cap} for cap in caps), {"bucketing": "fused", "overlap": False}]


class Choices(NamedTuple):
    """How a strategy is tuned and compared; functions get a setting of it.

    Attributes:
        presets: settings to compare on a new cluster, by what to call them, "{title}" for the title of the class; each
            is tuned over its variants.
        topologies: variants of a setting, one for each topology that is worth a try.
        bucketings: those for each way to cut buckets that is worth a try; gets caps, too.
        form: which of its topologies a setting has, for people; empty where it has one only.
        training: what two settings have alike if a training with one says how one with the other goes.
    """

    presets: Mapping[str, Sequence[Options]] = {"{title}": ({},)}
    topologies: Callable[[Any], Iterable[Options]] = as_it_is
    bucketings: Callable[[Any, Sequence[Size | None]], Iterable[Options]] = capped_or_fused
    form: Callable[[Any], str] = lambda _: ""
    training: Callable[[Any], object] = type


class Tuned(Protocol):
    """What of a strategy says how it is tuned."""

    title: ClassVar[str]
    choices: ClassVar[Choices]
    stage_key: ClassVar[str]


S = TypeVar("S", bound=Tuned)


def presets_of(kind: type[S]) -> dict[str, tuple[S, ...]]:
    """Return the settings of a class to compare on a new cluster, by what to call them."""
    made = kind.choices.presets.items()
    return {name.format(title=kind.title): tuple(kind(**options) for options in every) for name, every in made}


def variants_of(setting: S, caps: Sequence[Size | None]) -> Iterator[S]:
    """Yield a setting in each topology and with each way to cut buckets that is worth a try."""
    for topology in setting.choices.topologies(setting):
        # The topology first: which buckets are worth a try depends on it.
        formed = replace(cast("Any", setting), **topology)
        for cut in formed.choices.bucketings(formed, caps):
            yield replace(formed, **cut)


def form_of(setting: Tuned) -> str:
    """Return which of its topologies a setting has, for people; empty where it has one only."""
    return setting.choices.form(setting)


def train_alike(setting: Tuned, other: Tuned) -> bool:
    """Tell whether a training with one setting says how one with another goes."""
    return setting.choices.training(setting) == other.choices.training(other)


def for_longer_training(setting: S, scale: float) -> S:
    """Return a setting for a training `scale` times as long: a stage at its start grows with it."""
    # The stage is a part of the training: of a longer one it takes as many more steps.
    key, struct = setting.stage_key, cast("Any", setting)
    return replace(struct, **{key: round(getattr(setting, key) * scale)}) if key else setting


BITS_PER_BYTE = 8
Mathematics = Literal["same", "rounding", "compression", "local_steps"]
"""What a strategy does to the mathematics of data-parallel training: nothing, values rounded to fewer bits
(8 as a rule), a system that compresses further, or steps that each rank takes alone."""
CASTS = ("wire_dtype", "gather_dtype", "reduce_dtype")
"""Options that cast what travels; by default it keeps the number format of the gradients."""
# Streams of a data-parallel iteration.
COMPUTE, COMMUNICATION = 0, 1


class DenseStage(NamedTuple):
    """Steps without compression: their strategy, and their number in a training."""

    strategy: "Strategy"
    steps: int


class Planner(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a merging rule assumes that an all-reduce takes: `start_up + bytes / bandwidth`, right or wrong.

    Attributes:
        start_up_s: of an all-reduce of no bytes.
        bytes_per_s: gradients that an all-reduce adds up per second; at least 1 B/s.
        source: where the numbers come from.
    """

    start_up_s: Duration = field(name="start_up")
    bytes_per_s: Bandwidth = field(name="bandwidth")
    source: str = ""

    def __post_init__(self) -> None:
        if self.bytes_per_s < 1:
            raise ValueError(f"bandwidth: {self.bytes_per_s.text()!r}: must be at least 1 B/s")


class Exchange(NamedTuple):
    """How one bucket is exchanged.

    Attributes:
        operations: kernels and collectives, in order.
        payload_bytes: size of the bucket in the form in which it is sent, from which the compression ratio follows.
        algorithm: of the collectives, for people.
    """

    operations: tuple[Operation, ...]
    payload_bytes: float
    algorithm: str


class Strategy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """How gradients are bucketed, and whether their exchange overlaps backward.

    Attributes:
        title: for people.
        kernels: the kernels that it runs around its messages.
        compresses: whether fewer bits travel than the gradients have.
        uses_ddp_buckets: whether DDP forms the buckets of bucketing "ddp", anew after the first step.
        path_keys: keys that hold the path of a file, which in a scenario file starts from its folder.
        choices: what `simnet advise` tries of it.
        stage_key: the option that says how many steps at the start of a training are done otherwise; empty: there is
            none.
        waits_for_hosts: whether a step waits for the slowest of all ranks and for pauses of every host, by
            `compute_spread` and `host_pause` of the calibration.
        takes_other_micro_batches: whether its program holds for any number of micro-batches.
        bucketing: "ddp" closes a bucket at `bucket_cap`, as DDP does; "per_tensor" makes a bucket a tensor; "fused" one
            of all; "mg_wfbp" merges tensors where the start-up of an all-reduce outweighs waiting for the next (Shi et
            al., MG-WFBP, 2019).
        bucket_cap: size that closes a bucket of "ddp"; by default DDP's own, 1 MiB first and then 25 MiB.
        overlap: exchange buckets while backward runs.
        planner: what "mg_wfbp" assumes that an all-reduce takes; by default what it takes.
    """

    title: ClassVar[str] = ""
    kernels: ClassVar[tuple[KernelCost, ...]] = ()
    compresses: ClassVar[bool] = True
    uses_ddp_buckets: ClassVar[bool] = True
    path_keys: ClassVar[tuple[str, ...]] = ()
    waits_for_hosts: ClassVar[bool] = False
    takes_other_micro_batches: ClassVar[bool] = True
    choices: ClassVar[Choices] = Choices()
    stage_key: ClassVar[str] = ""

    bucketing: Literal["ddp", "per_tensor", "fused", "mg_wfbp"] = "ddp"
    bucket_cap: Size | None = None
    overlap: bool = True
    planner: Planner | None = None

    def __post_init__(self) -> None:
        if self.planner is not None and self.bucketing != "mg_wfbp":
            raise ValueError(f"planner: has no effect with bucketing {self.bucketing!r}; drop one of them")
        if self.bucket_cap is not None and self.bucketing != "ddp":
            raise ValueError(f"bucket_cap: has no effect with bucketing {self.bucketing!r}; drop one of them")
        if self.bucket_cap is not None and self.bucket_cap < 1:
            raise ValueError(f"bucket_cap: {self.bucket_cap.text()!r}: must be at least 1 B")

    @property
    def kind(self) -> str:
        """Name in scenario files."""
        return tag_of(self)

    @property
    def mathematics(self) -> Mathematics:
        """What it does to the mathematics of data-parallel training."""
        if self.compresses:
            return "compression"
        return "rounding" if any(getattr(self, key, None) for key in CASTS) else "same"

    def exchange(self, bucket: Bucket, step: Step, topology: Topology) -> Exchange:
        """Return what one bucket goes through on every rank.

        Raises:
            SimnetError: the workload lacks what the exchange needs, or the strategy does not fit the cluster.
        """
        raise NotImplementedError  # a struct cannot be abstract, and who overrides `program` needs no exchange

    def epilogue(self, buckets: Sequence[Bucket], topology: Topology) -> tuple[Operation, ...]:  # noqa: ARG002
        """Return what follows the exchange of the last bucket."""
        return ()

    def buckets(self, step: Step, topology: Topology) -> tuple[Bucket, ...]:
        """Return the buckets in the order in which backward makes them ready."""
        return bucketing.build(self, step, _exchange_cost(self, step, topology))

    def program(self, step: Step, topology: Topology) -> Program:
        """Return one iteration: buckets exchanged during backward or after it."""
        buckets = self.buckets(step, topology)
        exchanges = tuple(self.exchange(bucket, step, topology) for bucket in buckets)
        return data_parallel(self, step, buckets, exchanges, epilogue=self.epilogue(buckets, topology))

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory | None:  # noqa: ARG002
        """Return what one rank holds, without activations; None if that is not known."""
        return gpu_memory.in_buckets(model)

    def largest_bucket(self, step: Step, topology: Topology) -> Bucket:
        """Return the bucket of most elements."""
        return max(self.buckets(step, topology), key=lambda bucket: bucket.num_elements)

    def dense_stage(self, steps: int | None) -> DenseStage | None:  # noqa: ARG002
        """Return the steps without compression in a training of `steps` steps; None if the strategy has none."""
        return None

    @property
    def dense_fraction(self) -> float:
        """Part of a long training's steps that are done without compression, 0 to 1."""
        return 0.0

    def timed_as(self, options: SystemOptions) -> SystemOptions:
        """Return options that a kernel was timed with as they compare with `kernel_options`."""
        return options

    def kernel_options(self) -> dict[str, object]:
        """Return the options that its kernels depend on, or may."""
        return asdict(self)

    def check_steps(self, steps: int | None) -> None:
        """Refuse a stage at the start of a training without `run.steps`, or longer than those.

        Raises:
            ValueError: "key: given: rule".
        """
        steps_of_stage = getattr(self, self.stage_key) if self.stage_key else 0
        if steps_of_stage and steps is None:
            raise ValueError(f"{self.stage_key}: {steps_of_stage}: has no effect without run.steps; give both")
        if steps_of_stage > (steps or steps_of_stage):
            raise ValueError(f"{self.stage_key}: {steps_of_stage}: more than run.steps ({steps})")

    def check_gpu(self, gpu: GpuModel) -> None:
        """Refuse a GPU that cannot do what it asks for."""


FORMER_HOOKS = ("presets", "topology_variants", "bucketing_variants", "trains_as")


def _check_is_distinct(added: type[Strategy]) -> None:
    """Refuse a title or a kernel's cost that another strategy already has."""
    where = f"strategy {tag_of(added)!r}"
    if former := [name for name in FORMER_HOOKS if callable(getattr(added, name, None))]:
        raise SimnetError(f"{where}: {former[0]}: is never called; give what it returned in Strategy.choices")
    try:
        labels = set(presets_of(added))
    except Exception as error:  # foreign code
        raise SimnetError(f"{where}: presets: {error}: must give settings to try; see Strategy.choices") from error
    others = [other for other in STRATEGIES.built_in() if tag_of(other) != tag_of(added)]
    for other in others:
        if not added.title or labels & set(presets_of(other)):
            raise SimnetError(f"{where}: title: {added.title!r}: must be text, and the title of no other; set another")
    costs = {cost.name: cost for other in others for cost in other.kernels}
    for cost in added.kernels:
        if costs.get(cost.name, cost) != cost:
            raise SimnetError(f"{where}: kernels: {cost.name!r}: has another cost in another strategy; rename it")


STRATEGIES: StructRegistry[Strategy] = StructRegistry(
    "strategy", Strategy, "simnet.strategies", _check_is_distinct, also={"ddp": "all_reduce"}
)
register = STRATEGIES.register
if TYPE_CHECKING:
    AnyStrategy = Strategy
else:
    AnyStrategy = STRATEGIES.annotation


def strategy_from_text(text: str, where: str, known: Iterable[Strategy | None] = ()) -> Strategy:
    """Return the strategy that a text names: the first known one of this kind, else with its options or defaults.

    Args:
        text: a kind, with options after a colon or without.
        where: how messages call the place of the text.
        known: strategies that a bare kind stands for, such as those of a scenario.

    Raises:
        SimnetError: the kind or an option is unknown, or does not fit.
    """
    name, _, options = text.partition(":")
    kind = STRATEGIES.tag(name)
    strategy = next(
        (setting for setting in known if setting is not None and setting.kind == kind and not options), None
    )
    try:
        return strategy or schema.build(STRATEGIES.find(kind), _options(options, where), where)
    except SimnetError as error:
        message = str(error)
        raise SimnetError(message if message.startswith(where) else f"{where}: {message}") from error
    except ValueError as error:
        raise SimnetError(f"{where}: {error}") from error


def with_paths_at(strategy: object, directory: Path) -> object:
    """Return the table of a strategy whose relative paths of files start from the working directory.

    Args:
        strategy: data of a scenario file, not checked yet.
        directory: where relative paths start there.
    """
    if not isinstance(strategy, Mapping):
        return strategy
    known = {tag_of(built_in): built_in for built_in in STRATEGIES.built_in()}
    kind = known.get(str(strategy.get("kind")))
    paths = {key: path for key in kind.path_keys if isinstance(path := strategy.get(key), str)} if kind else {}
    return {**strategy, **{key: str(directory / path) for key, path in paths.items() if path}}


def _options(text: str, where: str) -> dict[str, object]:
    """Return options such as "bits=4,overlap=false"."""
    options: dict[str, object] = {}
    for piece in filter(None, text.split(",")):
        option = read_option(piece)
        if option is None:
            raise SimnetError(f"{where}: {shown(piece)}: write options as key=value, such as qsgd:bits=4")
        options[option[0]] = option[1]
    return options


def every_kernel() -> Mapping[str, KernelCost]:
    """Return the cost of every kernel, those of other packages' strategies included."""
    return {cost.name: cost for strategy in STRATEGIES for cost in strategy.kernels}


def kernel_costs_of(names: frozenset[str]) -> dict[str, KernelCost]:
    """Return the costs of these kernels; other packages are asked only if one is not built in."""
    known = _built_in_kernels()
    # Packages that bring strategies are loaded only when a name asks for one, which takes long.
    if not names <= known.keys():
        known = dict(every_kernel())
    for name in sorted(names - known.keys()):
        raise SimnetError(f"kernel {name!r}: no strategy declares its cost; add it to the kernels of its strategy")
    return {name: known[name] for name in names}


def check_calibration(calibration: Calibration) -> None:
    """Refuse unknown kernels, strategies and algorithms, and a time of each result where a kernel has none."""
    _check_libraries(calibration)
    try:
        algorithms.check(calibration.all_reduce)
    except ValueError as error:
        raise SimnetError(f"{calibration.label}: all_reduce: {error}") from error
    for name, timed in calibration.kernels.items():
        if timed.s_per_result is not None and not getattr(every_kernel().get(name), "bytes_per_result", True):
            raise SimnetError(
                f"{calibration.label}: kernels.{name}.time_per_result: {timed.s_per_result.text()!r}: has "
                "no effect on this kernel; drop it"
            )
    if calibration.kernels.keys() <= _built_in_kernels().keys():
        return
    known = every_kernel()
    for name in calibration.kernels:
        if name not in known:
            raise SimnetError(f"{calibration.label}: kernels: {name!r}: unknown kernel.{did_you_mean(name, known)}")


def _check_libraries(calibration: Calibration) -> None:
    for name, library in calibration.libraries.items():
        for strategy in library.carries:
            if (
                strategy not in {tag_of(built_in) for built_in in STRATEGIES.built_in()}
                and strategy not in STRATEGIES.names()
            ):
                raise SimnetError(
                    f"{calibration.label}: libraries.{name}.carries: {strategy!r}: unknown strategy."
                    f"{did_you_mean(strategy, STRATEGIES.names())}"
                )


def _built_in_kernels() -> dict[str, KernelCost]:
    return {cost.name: cost for strategy in STRATEGIES.built_in() for cost in strategy.kernels}


def data_parallel(  # noqa: PLR0913 - what is exchanged, and what ranks hand out
    strategy: Strategy,
    step: Step,
    buckets: Sequence[Bucket],
    exchanges: Sequence[Exchange],
    *,
    epilogue: Sequence[Operation] = (),
    share: float = 1.0,
    every_micro_batch: bool = False,
    handed_out: Sequence[Communicate] = (),
    in_forward: bool = False,
) -> Program:
    """Return the iteration of data-parallel training: exchanges in order, during the last backward or after it.

    Backward makes buckets ready; one communication stream takes them in order, as a communication thread or NCCL's
    stream does. With micro-batches, one whose gradients are not exchanged only computes; the next one waits for what
    was exchanged of one whose gradients are, as DDP, DeepSpeed and FSDP do at the end of backward. The optimizer
    follows the last exchange.

    Args:
        strategy: says whether exchanges overlap backward.
        step: what a rank computes.
        buckets: in the order in which they become ready.
        exchanges: of these buckets.
        epilogue: what follows the last exchange.
        share: part of all parameters that the rank with the most of them updates.
        every_micro_batch: whether the gradients of each micro-batch are exchanged, not of the last alone.
        handed_out: messages by which ranks hand out what they have updated, in order; of each bucket one, if they do so
            in the next forward.
        in_forward: whether they do.
    """
    made = Streams(2)
    # What was exchanged of a micro-batch, for which the next forward waits as DDP waits at the end of backward.
    exchanged: tuple[OperationId, ...] = ()
    for number in range(step.micro_batches):
        if in_forward and number == 0:
            _add_gathered_forward(made, buckets, handed_out)
        else:
            made.add(COMPUTE, Compute(part="forward", share=StepShare(forward=1.0), after=exchanged))
        if every_micro_batch or number == step.micro_batches - 1:
            _add_exchanged_backward(made, buckets, exchanges, overlap=strategy.overlap)
            exchanged = made.last(COMMUNICATION)
        else:
            made.add(COMPUTE, Compute(part="backward", share=StepShare(backward=1.0)))
    exchanged = made.add(COMMUNICATION, *epilogue)
    updated = made.add(COMPUTE, Compute(part="optimizer", share=StepShare(optimizer=share), after=exchanged))
    if handed_out and not in_forward:  # the iteration ends once all is there
        first, *others = handed_out
        handed = made.add(COMMUNICATION, replace(first, after=updated), *others)
        made.add(COMPUTE, Compute(part="optimizer", after=handed))
    return Program(
        streams=made.made(),
        num_buckets=len(buckets),
        payload_bytes=sum(exchange.payload_bytes for exchange in exchanges),
        algorithm="+".join(sorted({exchange.algorithm for exchange in exchanges})),
    )


def _add_gathered_forward(made: Streams, buckets: Sequence[Bucket], gathers: Sequence[Communicate]) -> None:
    """Add forward, from the last bucket to the first; the next one is gathered while one computes."""
    order = buckets[::-1]
    gathered = made.add(COMMUNICATION, gathers[order[0].index])
    for bucket, following in zip_longest(order, order[1:]):
        begun = made.last(COMPUTE)
        share = StepShare(forward=bucket.backward_fraction)
        made.add(COMPUTE, Compute(part="forward", share=share, bucket=bucket.index, after=gathered))
        if following is not None:
            gathered = made.add(COMMUNICATION, replace(gathers[following.index], after=begun))


def _add_exchanged_backward(
    made: Streams, buckets: Sequence[Bucket], exchanges: Sequence[Exchange], *, overlap: bool
) -> None:
    """Add a backward, and the exchange of each bucket once it is ready, or of all once backward ends."""
    first = len(made.lists[COMPUTE])
    for bucket in buckets:
        share = StepShare(exchanged_backward=bucket.backward_fraction)
        made.add(COMPUTE, Compute(part="backward", share=share, bucket=bucket.index))
    for bucket, exchange in zip(buckets, exchanges, strict=True):
        ready = (OperationId(COMPUTE, first + bucket.index),) if overlap else made.last(COMPUTE)
        # Only the first operation waits for backward: a stream runs the others of a bucket, and the buckets, in order.
        for operation in exchange.operations:
            after = () if operation is not exchange.operations[0] else ready
            made.add(COMMUNICATION, _of_bucket(operation, bucket.index, after))


def _of_bucket(operation: Operation, bucket: int, after: tuple[OperationId, ...]) -> Operation:
    return replace(operation, bucket=bucket, after=after)


def width_of(dtype: Dtype | None, step: Step) -> int:
    """Return the bytes of an element in a number format, by default that of the gradients."""
    return BYTES_PER_ELEMENT[dtype] if dtype else step.bytes_per_element


def choose_all_reduce(
    algorithm: str | None, topology: Topology, message_bytes: float, group: GroupKind = "world"
) -> tuple[Communicate, str]:
    """Return an all-reduce over all ranks of a group, and the algorithm that was chosen."""
    if group == "world":
        schedule = algorithms.choose(algorithm, topology, message_bytes)
    else:
        schedule = algorithms.choose_side_by_side(algorithm, topology, message_bytes, topology.group(group))
    return Communicate(schedule=schedule, message_bytes=message_bytes), schedule.label


def all_gather(group: Group, topology: Topology, message_bytes: float) -> Communicate:
    """Return an all-gather of a message to which each rank of a group adds an equal part."""
    return Communicate(
        schedule=algorithms.choose_all_gather(topology, group, message_bytes), message_bytes=message_bytes
    )


def padded_sign_bytes(num_elements: float, world_size: int) -> int:
    """Return the bytes of one bit an element, whole bytes for every rank."""
    return math.ceil(num_elements / (BITS_PER_BYTE * world_size)) * world_size


def _exchange_cost(strategy: Strategy, step: Step, topology: Topology) -> LinearCost:
    """Return the cost by which "mg_wfbp" merges: the planner's, else a line through two simulated exchanges.

    The two are one of next to no elements and one of all gradients.
    """
    if strategy.bucketing != "mg_wfbp":
        return LinearCost(start_up_s=0.0, s_per_byte=0.0)  # no other rule asks for it
    if strategy.planner is not None:
        return LinearCost(start_up_s=strategy.planner.start_up_s, s_per_byte=1 / strategy.planner.bytes_per_s)
    least_s, most_s = (_exchange_s(strategy, step, topology, part) for part in (1e-9, 1.0))
    return LinearCost(start_up_s=least_s, s_per_byte=(most_s - least_s) / step.gradient_bytes)


def _exchange_s(strategy: Strategy, step: Step, topology: Topology, part: float) -> float:
    bucket = Bucket(index=0, num_elements=step.num_elements * part, backward_fraction=1.0)
    operations: tuple[Any, ...] = strategy.exchange(bucket, step, topology).operations
    collectives = (operation for operation in operations if isinstance(operation, Communicate))
    return sum(
        link_loads.duration_s(topology, collective.schedule, collective.message_bytes) for collective in collectives
    )


HIERARCHICAL = "hierarchical"
Algorithm = str
"""The name of an all-reduce algorithm, "auto" or "any"."""
CAST = KernelCost(name="cast", bytes_per_element=6.0, is_streaming=True)
"""Read 4, write 2, or the reverse."""


def all_reduces_to_try(setting: Any) -> Sequence[Options]:
    """Return a setting with the fastest all-reduce that NCCL has, and with the one that sums inside the node first."""
    return ({}, {"algorithm": HIERARCHICAL}) if setting.algorithm == algorithms.AUTO else ({},)


class DenseAllReduce(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="all_reduce"):
    """Average gradients without compression, as DDP does.

    Attributes:
        wire_dtype: number format in which gradients travel; by default their own.
        algorithm: all-reduce algorithm; by default that which the calibration was fitted with, else NCCL's where the
            calibration holds its costs, else a ring. "auto" takes the fastest for each message that NCCL has, as its
            tuner does, "any" the fastest of all.
    """

    title: ClassVar[str] = "DDP"
    kernels: ClassVar[tuple[KernelCost, ...]] = (CAST, ADAMW)
    compresses: ClassVar[bool] = False
    choices: ClassVar[Choices] = Choices(
        topologies=all_reduces_to_try, form=lambda self: self.algorithm if self.algorithm == HIERARCHICAL else ""
    )

    wire_dtype: Dtype | None = None
    algorithm: Algorithm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_algorithm("algorithm", self.algorithm)

    def exchange(self, bucket: Bucket, step: Step, topology: Topology) -> Exchange:
        """Return cast, all-reduce and cast back."""
        width = width_of(self.wire_dtype, step)
        collective, algorithm = choose_all_reduce(self.algorithm, topology, bucket.num_elements * width)
        operations: tuple[Operation, ...] = (collective,)
        if width != step.bytes_per_element:
            down = Kernel(name=CAST.name, part="encode", num_elements=bucket.num_elements)
            up = Kernel(name=CAST.name, part="decode", num_elements=bucket.num_elements)
            operations = (down, collective, up)
        return Exchange(operations, collective.message_bytes, algorithm)


def check_algorithm(key: str, name: str | None) -> None:
    """Refuse an algorithm that is not known.

    Raises:
        ValueError: "key: given: rule".
    """
    try:
        algorithms.check(name)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
