"""Steps that each worker takes alone, with an exchange after some of them: local SGD, and DiLoCo.

A period has `inner_steps` steps. Of these the streams of the program hold those in which something is exchanged; the
others are all alike, and simulated once.
"""

from typing import Annotated, ClassVar, Literal, NamedTuple

from msgspec import Meta
from msgspec.structs import replace

from simnet.cluster.hardware import GpuModel
from simnet.cluster.schedule import GroupKind
from simnet.cluster.topology import Topology
from simnet.collectives import algorithms
from simnet.core.bounded_types import BYTES_PER_ELEMENT, Count, Dtype
from simnet.core.errors import SimnetError
from simnet.strategies.base import (
    Algorithm,
    Choices,
    Exchange,
    Mathematics,
    Options,
    Strategy,
    all_gather,
    all_reduces_to_try,
    as_it_is,
    check_algorithm,
    choose_all_reduce,
    strategy_from_text,
)
from simnet.strategies.compressing import BETWEEN_NODES, COPY, CompressingStrategy
from simnet.strategies.fsdp import FullShard, sharded_memory
from simnet.strategies.program import (
    Communicate,
    Compute,
    InnerSteps,
    Kernel,
    Operation,
    OperationId,
    Program,
    StepShare,
    Streams,
)
from simnet.workload import gpu_memory
from simnet.workload.buckets import Bucket
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.training_step import Step

COMPUTE, INNER, OUTER = 0, 1, 2
"""Streams: of the GPU, of the exchange inside a worker, and of that between workers where steps hide it."""
AUTO: Options = {"algorithm": algorithms.AUTO}
AVERAGED_COPIES = 4
"""Of all parameters, that binsgdm.LocalSGD holds at once: flat, their sum, the mean, the check that it is finite."""
PSEUDO_GRADIENT = KernelCost(name="pseudo_gradient", bytes_per_element=12.0, is_streaming=True)
"""Read outer and local parameters, write their difference."""
OUTER_COPIES = 2
"""Outer parameters and their momentum, which stay beside those of the worker."""
STEPPED_COPIES = 5
"""Of what is exchanged, that binsgdm.DiLoCo holds at once: the mean, a new momentum, the way along both, new outer
parameters, and the check that they are finite."""
OUTER_UPDATE = KernelCost(name="outer_update", bytes_per_element=24.0, is_streaming=True)
"""Nesterov: read the mean difference, the momentum and outer parameters; write the latter two and local parameters."""


class _OuterExchange(NamedTuple):
    """What workers do after some of their steps.

    Attributes:
        before: kernels that make what is exchanged.
        exchange: what is exchanged, which steps of the next period may hide.
        after: what follows when it has ended: kernels, and messages that block.
    """

    before: tuple[Kernel, ...]
    exchange: Exchange
    after: tuple[Operation, ...]


class LocalStepsStrategy(Strategy, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Train workers apart for some steps.

    Attributes:
        inner_steps: optimizer steps between two exchanges of the same parameters.
        workers: "rank": each rank trains alone; "node": the ranks of a node are one worker, which all-reduces gradients
            in the node at every step, as DDP does.
        algorithm: the all-reduce algorithm, where something is all-reduced, as of `all_reduce`.
    """

    compresses: ClassVar[bool] = False
    uses_ddp_buckets: ClassVar[bool] = False
    choices: ClassVar[Choices] = Choices(bucketings=as_it_is)  # buckets inside a node hide behind backward as a rule

    inner_steps: Count = 8
    workers: Literal["rank", "node"] = "rank"
    algorithm: Algorithm | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_algorithm("algorithm", self.algorithm)
        if self.bucketing == "mg_wfbp":
            raise ValueError("bucketing: 'mg_wfbp': weighs exchanges of every step; use another, or leave it out")
        if self.workers == "rank" and (self.bucketing, self.bucket_cap, self.overlap) != ("ddp", None, True):
            raise ValueError(
                "workers: with 'rank' nothing is exchanged during backward; drop bucketing, bucket_cap and overlap, or "
                "set workers = 'node'"
            )

    @property
    def mathematics(self) -> Mathematics:
        """Steps that each worker takes alone; with one step between exchanges too, since parameters are averaged."""
        return "local_steps"

    def held_by_worker(self, model: ModelMemory, topology: Topology) -> RankMemory:
        """Return what a rank holds but for the exchange between workers: DDP's buckets where a worker has several."""
        held = gpu_memory.in_buckets(model)
        is_alone = self.workers == "rank" or topology.ranks_per_node == 1
        return replace(held, gradients=model.gradients, buckets=0.0) if is_alone else held

    def period(
        self, step: Step, topology: Topology, outer: _OuterExchange, *, steps: int, overlapped: int = 0
    ) -> Program:
        """Return a period of steps, in which there is one exchange."""
        inner = self.inner_step(step, topology)
        # What no step hides runs on the stream of the inner exchange, idle by then: two streams are simulated several
        # times as fast as three.
        stream = OUTER if overlapped else INNER
        made = Streams(stream + 1)
        _add_steps(made, inner, 1)
        made.add(COMPUTE, *outer.before)
        # The others follow the first in their stream, and have nothing else to wait for.
        first, *others = outer.exchange.operations
        made.add(stream, replace(first, after=(*first.after, *made.last(COMPUTE))), *others)
        # These steps run while the exchange is under way; nothing that it brings is applied before they end.
        _add_steps(made, inner, overlapped)
        _wait(made, stream)
        for operation in outer.after:  # of which compute waits for each
            stream_of_it, waited = (stream, COMPUTE) if isinstance(operation, Communicate) else (COMPUTE, stream)
            made.add(stream_of_it, replace(operation, after=(*operation.after, *made.last(waited))))
        if outer.after and isinstance(outer.after[-1], Communicate):
            _wait(made, stream)
        # One step ends in the exchange, some hide it; the others are alike and simulated once.
        left = steps - overlapped - 1
        return Program(
            streams=made.made(),
            num_buckets=inner.num_buckets,
            # A step, as of other strategies: the compression ratio then counts what local steps do not send.
            payload_bytes=outer.exchange.payload_bytes / steps,
            algorithm=outer.exchange.algorithm,
            num_steps=1 + overlapped,
            inner=InnerSteps(program=inner, number=left) if left else None,
        )

    def exchange(self, bucket: Bucket, step: Step, topology: Topology) -> Exchange:
        """Return the all-reduce of a worker's gradients in its node, at every step."""
        message_bytes = bucket.num_elements * step.bytes_per_element
        collective, label = choose_all_reduce(None, topology, message_bytes, "intra_node")
        return Exchange((collective,), message_bytes, label)

    def inner_step(self, step: Step, topology: Topology) -> Program:
        """Return a step of a worker: DDP's in its node, or compute alone."""
        if self.workers == "node" and topology.ranks_per_node > 1:
            return Strategy.program(self, step, topology)
        compute = (
            Compute(part="forward", share=StepShare(forward=step.micro_batches)),
            Compute(part="backward", share=StepShare(backward=step.micro_batches)),
            Compute(part="optimizer", share=StepShare(optimizer=1.0)),
        )
        return Program(streams=(compute, ()), num_buckets=1, payload_bytes=step.gradient_bytes, algorithm="none")


class LocalSGD(LocalStepsStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="local_sgd"):
    """Average all parameters after every few steps that each worker takes alone.

    Source: Stich, Local SGD, ICLR 2019, https://arxiv.org/abs/1805.09767; Lin et al., post-local SGD, ICLR 2020,
    https://arxiv.org/abs/1808.07217, which is `workers` = "node"; PeriodicModelAverager of PyTorch 2.13, which
    sends all parameters in one message.

    Attributes:
        wire_dtype: number format in which parameters travel.
    """

    title: ClassVar[str] = "local SGD"
    kernels: ClassVar[tuple[KernelCost, ...]] = (COPY,)
    choices: ClassVar[Choices] = LocalStepsStrategy.choices._replace(
        # numbers of steps that papers keep the quality of
        presets={f"{{title}} {steps}": ({"inner_steps": steps, **AUTO},) for steps in (4, 8)},
        topologies=all_reduces_to_try,
        training=lambda self: (LocalSGD, self.inner_steps),
    )

    wire_dtype: Dtype = "fp32"

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory:
        """Return what a rank holds: after the optimizer's step, copies of all parameters while they are averaged."""
        held = self.held_by_worker(model, topology)
        averaged = AVERAGED_COPIES * step.num_elements * BYTES_PER_ELEMENT[self.wire_dtype]
        return replace(held, update=max(held.update, averaged))

    def program(self, step: Step, topology: Topology) -> Program:
        """Return a period of steps: at its end parameters are put into one message, averaged, and put back."""
        num_elements = step.num_elements
        collective, label = choose_all_reduce(
            self.algorithm, topology, num_elements * BYTES_PER_ELEMENT[self.wire_dtype]
        )
        flatten = Kernel(name=COPY.name, part="encode", num_elements=num_elements)
        exchange = Exchange((collective,), collective.message_bytes, label)
        outer = _OuterExchange((flatten,), exchange, (replace(flatten, part="decode"),))
        return self.period(step, topology, outer, steps=self.inner_steps)


class DiLoCo(LocalStepsStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="diloco"):
    """Train workers apart for many steps, then let an outer Nesterov step follow the mean of what they moved.

    With workers of several ranks each rank exchanges its slice of the parameters between nodes, takes the outer step on
    it, and gathers the slices of the others in the node.

    Source: Douillard et al., DiLoCo, 2023, https://arxiv.org/abs/2311.08105; fragments and overlap: Douillard et al.,
    Streaming DiLoCo, 2025, https://arxiv.org/abs/2501.18512. Fragments are equal parts of all parameters; in the paper
    they are groups of layers.

    Attributes:
        outer_dtype: number format in which the difference travels.
        exchange_by: system that compresses the difference, with options after a colon, such as
            "ef_sign_sgd:scale_per=bucket"; by default it is all-reduced in `outer_dtype`.
        in_node: how the ranks of a worker train together: with "ddp" each holds all parameters, with "fsdp" a shard,
            whose outer step it takes.
        fragments: parts of the parameters that are exchanged at different steps of a period.
        overlap_steps: steps that hide an exchange, after which its result is applied.
    """

    title: ClassVar[str] = "DiLoCo"
    kernels: ClassVar[tuple[KernelCost, ...]] = (PSEUDO_GRADIENT, OUTER_UPDATE)
    choices: ClassVar[Choices] = LocalStepsStrategy.choices._replace(
        presets={
            # as many steps as this project has trained, in 8 bits and one bit too, and those of papers
            "{title} 30": ({"inner_steps": 30, **AUTO},),
            "{title} 30 int8": ({"inner_steps": 30, "exchange_by": "byte_grad:topology=scatter_reduce"},),
            "{title} 30 1-bit": (
                {"inner_steps": 30, "exchange_by": "ef_sign_sgd:topology=scatter_reduce,scale_per=bucket"},
            ),
            "{title} 50": (AUTO,),
            "{title} 500": ({"inner_steps": 500, **AUTO},),
            "streaming {title} 100": ({"inner_steps": 100, "fragments": 4, "overlap_steps": 5, **AUTO},),
        },
        topologies=lambda self: (
            [{"in_node": in_node} for in_node in ("ddp", "fsdp")]
            if self.workers == "node"
            else all_reduces_to_try(self)
        ),
        form=lambda self: f"{'FSDP in a node, ' if self.in_node == 'fsdp' else ''}a worker a {self.workers}",
        training=lambda self: (
            (DiLoCo, self.inner_steps, self.fragments, self.overlap_steps, self.outer_dtype or "fp32", self._system)
        ),
    )

    inner_steps: Count = 50
    workers: Literal["rank", "node"] = "node"
    outer_dtype: Dtype | None = None
    exchange_by: str = ""
    in_node: Literal["ddp", "fsdp"] = "ddp"
    fragments: Count = 1
    overlap_steps: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        system = self._system
        if self.inner_steps % self.fragments:
            raise ValueError(
                f"fragments: {self.fragments}: must divide inner_steps ({self.inner_steps}); change one of them"
            )
        if self.overlap_steps >= self.inner_steps // self.fragments:
            raise ValueError(
                f"overlap_steps: {self.overlap_steps}: must be below inner_steps / fragments "
                f"({self.inner_steps // self.fragments}), so that one exchange ends before the next; lower it"
            )
        if system is not None and (self.outer_dtype is not None or self.algorithm is not None):
            raise ValueError(
                "exchange_by: a system brings its own numbers; drop outer_dtype and algorithm, or exchange_by"
            )

        if self.in_node == "fsdp" and (self.workers, self.bucketing, self.bucket_cap) != ("node", "ddp", None):
            raise ValueError(
                "in_node: 'fsdp': needs workers of several ranks, which then have no buckets; set workers = 'node', "
                "and drop bucketing and bucket_cap"
            )

    @property
    def _system(self) -> CompressingStrategy | None:
        if not self.exchange_by:
            return None
        system = strategy_from_text(self.exchange_by, "exchange_by")
        if isinstance(system, CompressingStrategy) and system.topology not in BETWEEN_NODES:
            return system
        raise ValueError(
            f"exchange_by: {self.exchange_by!r}: must be a system that compresses gradients, in a topology that is not "
            "hierarchical; give such as 'ef_sign_sgd:scale_per=bucket' or 'byte_grad:topology=scatter_reduce'"
        )

    def check_gpu(self, gpu: GpuModel) -> None:
        """Refuse a GPU on which the system inside cannot run."""
        if self._system is not None:
            self._system.check_gpu(gpu)

    def memory(self, model: ModelMemory, step: Step, topology: Topology) -> RankMemory:
        """Return what a rank holds: its slice of the outer parameters and their momentum, and what it sends of them."""
        if self.in_node == "fsdp":
            held = sharded_memory(FullShard(), model, step, topology.ranks_per_node)
        else:
            held = self.held_by_worker(model, topology)
        ranks = topology.ranks_per_node if self.workers == "node" else 1
        slice_bytes = step.num_elements / ranks * BYTES_PER_ELEMENT["fp32"]
        system = self._system
        workers = topology.world_size // ranks
        lost = 0.0 if system is None else system.residual_bytes(step.num_elements / ranks, workers)
        sent = slice_bytes / self.fragments
        gathered = sent * ranks if ranks > 1 and self.in_node == "ddp" else 0.0
        return replace(
            held,
            residuals=OUTER_COPIES * slice_bytes + lost,
            buckets=held.buckets + (sent if self.overlap_steps else 0.0),
            update=max(held.update, STEPPED_COPIES * sent + gathered),
        )

    def inner_step(self, step: Step, topology: Topology) -> Program:
        """Return a step of a worker, which may share the model among its ranks."""
        if self.in_node == "ddp":
            return super().inner_step(step, topology)
        return FullShard().program_among(topology.group("intra_node"), step, topology)

    def program(self, step: Step, topology: Topology) -> Program:
        """Return the steps from one exchange of a fragment to that of the next.

        Raises:
            SimnetError: there are more fragments than tensors, or the exchange does not fit the workload or cluster.
        """
        tensors = len(step.tensors)
        if self.fragments > tensors > 0:
            raise SimnetError(
                f"strategy.fragments: {self.fragments}: the model has {tensors} tensors; give at most {tensors}"
            )
        shapes = tuple(tensor.shape for tensor in step.tensors if tensor.shape is not None)
        is_whole = self.fragments == 1 and len(shapes) == tensors > 0
        fragment = Bucket(
            index=0,
            num_elements=step.num_elements / self.fragments,
            backward_fraction=1.0,
            shapes=shapes if is_whole else None,
        )
        steps = self.inner_steps // self.fragments
        outer = self._outer(fragment, topology)
        return self.period(step, topology, outer, steps=steps, overlapped=self.overlap_steps)

    def _outer(self, part: Bucket, topology: Topology) -> _OuterExchange:
        ranks = topology.ranks_per_node if self.workers == "node" else 1
        slice_ = replace(part, num_elements=part.num_elements / ranks, shapes=part.shapes if ranks == 1 else None)
        update = Kernel(name=OUTER_UPDATE.name, part="decode", num_elements=slice_.num_elements)
        exchange = self._exchange(slice_, topology)
        return _OuterExchange(
            (Kernel(name=PSEUDO_GRADIENT.name, part="encode", num_elements=slice_.num_elements),),
            exchange._replace(payload_bytes=exchange.payload_bytes * ranks),
            (update, *self._gathered(part, topology)),
        )

    def _exchange(self, slice_: Bucket, topology: Topology) -> Exchange:
        """Return the mean of a rank's slice over workers."""
        kind: GroupKind = "inter_node" if self.workers == "node" else "world"
        system = self._system
        if system is not None:
            return system.exchange_among(kind, slice_, topology)
        message_bytes = slice_.num_elements * BYTES_PER_ELEMENT[self.outer_dtype or "fp32"]
        schedule = algorithms.choose_on(self.algorithm, topology, message_bytes, topology.group(kind))
        return Exchange((Communicate(schedule=schedule, message_bytes=message_bytes),), message_bytes, schedule.label)

    def _gathered(self, part: Bucket, topology: Topology) -> tuple[Operation, ...]:
        """Return the gather of new parameters in the node, where each rank has taken the step on a slice alone."""
        if self.workers == "rank" or self.in_node == "fsdp" or topology.ranks_per_node == 1:
            return ()
        return (all_gather(topology.group("intra_node"), topology, part.num_elements * BYTES_PER_ELEMENT["fp32"]),)


def _add_steps(made: Streams, inner: Program, number: int) -> None:
    """Add steps; the next one begins when compute of the last one has ended."""
    for _ in range(number):
        ends = [len(stream) for stream in made.lists]
        for index, stream in enumerate(inner.streams):
            for operation in stream:
                after = (
                    OperationId(awaited.stream, awaited.position + ends[awaited.stream]) for awaited in operation.after
                )
                made.add(index, replace(operation, after=tuple(after)))


def _wait(made: Streams, stream: int) -> None:
    """Let compute wait for what a stream has sent."""
    made.add(COMPUTE, Compute(part="optimizer", after=made.last(stream)))
