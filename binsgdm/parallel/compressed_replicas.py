"""Let a system of the field average the gradients of copies of a model that FSDP2 shards inside a node.

FSDP2 averages gradients inside a node and leaves each rank with those of its shard. Before the optimizer steps, each
rank exchanges them with the ranks that hold the same shard on other nodes.

mesh = init_device_mesh("cuda", (nodes, ranks_per_node), mesh_dim_names=("node", "local"))
fully_shard(model, mesh=mesh["local"])
optimizer = torch.optim.AdamW(model.parameters())
replicas = compress_replicas(optimizer, mesh, "byte_grad", topology="scatter_reduce")
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from operator import is_not
from typing import Any

import torch
from torch._compile import _disable_dynamo  # as in binsgdm.optimizers.base
from torch.distributed.device_mesh import DeviceMesh

from binsgdm.comm import Protocol, consistency
from binsgdm.comm.arguments import check_arguments
from binsgdm.comm.consistency import Alike, agreed, check_same_settings, checksum_of, checksums, comparable
from binsgdm.comm.groups import Groups
from binsgdm.comm.transport import Sent
from binsgdm.compressors.base import REPAIR, Averager, GradientBucket, Topology, check_state, check_whole
from binsgdm.compressors.registry import SYSTEMS, canonical, check_options, make
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels import streams
from binsgdm.optimizers.agreement import bucket_elements, plain
from binsgdm.optimizers.base import OneBitOptimizer
from binsgdm.parallel.fsdp import (
    check_placements,
    copy_first_node,
    groups_of,
    let_step_alone,
    local,
    of_same_shard,
    shard_context,
    transport_between_nodes,
)

_WHERE = "compress_replicas"
_ATTRIBUTE = "_binsgdm_replicas"


def compress_replicas(  # noqa: PLR0913
    optimizer: torch.optim.Optimizer,
    mesh: DeviceMesh,
    system: str,
    *,
    seed: int = 0,
    topology: Topology | None = None,
    bucket_cap_mb: float = 25.0,
    timeout: timedelta | None = None,
    on_sent: Callable[[Sent], None] | None = None,
    **options: Any,
) -> "ReplicaExchange":
    """Let a system average gradients between nodes before each step; every rank must call it.

    The parameters of the first node are broadcast to the others, which FSDP2 does not do. Gradients are exchanged in
    fp32 and given back in their own dtype. Those that are not finite become so on all ranks that hold the shard.

    Before each exchange all ranks compare, in one message of a few bytes, step, settings of the optimizer and which
    parameters have gradients; at the first one, at every 256th, and after a state was loaded or parameters were written
    to, shards, the system's state and the optimizer's, too (of writes after every step, such as a clamp, the first 16,
    then one in 256 and the last). A recording leaves these messages out. The optimizer is the only one that may step
    its parameters, and may get no others.

    Args:
        optimizer: of torch, made after fully_shard, with all its parameters.
        mesh: two dimensions, (nodes, ranks of a node); fully_shard was given its second dimension.
        system: a name in `binsgdm.SYSTEMS`; "int8" is "byte_grad".
        seed: of the draws, the same on all ranks.
        topology: among whom payloads travel: one of the system's `topologies` that is not hierarchical.
        bucket_cap_mb: size of a shard's gradients that ends a message, in MiB of fp32.
        timeout: of the collectives between nodes; a rank that is gone is noticed after it.
        on_sent: called with every collective between nodes that this rank takes part in.
        options: of the system, such as bits=4.

    Returns:
        The exchange, whose state belongs into the checkpoint of its rank.

    Raises:
        BinsgdmError: a mesh of another form, a parameter that is not sharded over its second dimension alone, an
            unknown system or option, or ranks that differ in any of it; on all ranks.
    """
    system = canonical(system)
    with agreed(_WHERE) as call:
        groups = groups_of(_WHERE, mesh, timeout)
        call.group = groups.world
        parameters = _parameters_of(optimizer)
        call.device = next((parameter.device for parameter in parameters), None)
        check_arguments(_WHERE, timeout=timeout, on_sent=on_sent)
        check_whole(f"{_WHERE}: seed", seed, low=0, high=2**64 - 1)
        cap = bucket_elements(_WHERE, bucket_cap_mb)
        check_placements(_WHERE, parameters, groups)
        check_options(system, options)
        if topology is not None and "hierarchical" in str(topology):
            raise BinsgdmError(
                f"{_WHERE}: topology: {shown(topology)}: must not be hierarchical, as FSDP2 averages inside the node; "
                f"give one of {[known for known in SYSTEMS[system].topologies if 'hierarchical' not in known]}"
            )
        nodes = of_same_shard(groups)
        end = make(system, rank=nodes.rank, world_size=nodes.world_size, ranks_per_node=1, topology=topology, **options)
        chosen = {"system": system, "seed": seed, "topology": topology, "bucket_cap_mb": bucket_cap_mb, **options}
        shapes = [tuple(parameter.shape) for parameter in parameters]
        call.settings = {**chosen, "optimizer": type(optimizer).__name__, "parameters": shapes}
        if SYSTEMS[system].needs_equal_threads:
            call.settings["torch.get_num_threads()"] = torch.get_num_threads()
    # Before the first comparison of shards, which nodes that were built apart would not pass.
    copy_first_node(parameters, groups)
    kind = SYSTEMS[system]
    saved = {**chosen, "topology": topology or kind.topologies[0], **kind.options, **options}
    exchange = ReplicaExchange(optimizer, parameters, end, groups, cap=cap, settings=saved, on_sent=on_sent)
    setattr(optimizer, _ATTRIBUTE, exchange)
    let_step_alone(_WHERE, optimizer, groups, lambda stepping: hasattr(stepping, _ATTRIBUTE))
    return exchange


def _parameters_of(optimizer: object) -> list[torch.Tensor]:
    """Return the parameters of an optimizer of torch."""
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, OneBitOptimizer):
        raise BinsgdmError(
            f"{_WHERE}: optimizer: a {type(optimizer).__name__}: must be an optimizer of torch that exchanges nothing; "
            "give such as torch.optim.AdamW(model.parameters()), and BinSGDM to attach_fsdp"
        )
    if hasattr(optimizer, _ATTRIBUTE):
        raise BinsgdmError(f"{_WHERE}: an optimizer with a system: must have none; make the optimizer anew")
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class ReplicaExchange:
    """One rank's end of a system between the copies of a sharded model.

    Attributes:
        system: with its state.
        step: of the coming exchange, from 1; draws and periods count by it.
    """

    def __init__(  # noqa: PLR0913
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[torch.Tensor],
        system: Averager,
        groups: Groups,
        *,
        cap: int,
        settings: Mapping[str, Any],
        on_sent: Callable[[Sent], None] | None,
    ) -> None:
        self.system, self.step = system, 1
        self._parameters, self._cap, self._seed = parameters, cap, settings["seed"]
        self._settings = {name: shown(value) for name, value in settings.items()}
        self._groups = groups
        self._comparisons = consistency.ComparisonSchedule()
        self._transport = transport_between_nodes(groups, on_sent, _WHERE)
        self._member, self._all_that_step = self._transport.member(), self._transport.member(groups)
        self._buckets: list[list[int]] | None = None
        # torch's GradScaler then steps on every rank or says so: alone, each would decide by its own shard.
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
        known = weakref.ref(self)

        # A compiled step would draw, and compare, what the step in which it was compiled drew and compared.
        @_disable_dynamo
        def before_step(stepping: torch.optim.Optimizer, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            if (exchange := known()) is None:
                raise BinsgdmError(f"{_WHERE}: the exchange is gone; keep what it returned as long as you train")
            exchange.before_step(stepping, (*args[1:], *keywords.values()))

        @_disable_dynamo
        def after_step(stepping: torch.optim.Optimizer, *_: Any) -> None:
            if (exchange := known()) is not None:
                exchange._comparisons.note(exchange._written(), len(stepping.state))

        def after_loading(_: torch.optim.Optimizer) -> None:
            if (exchange := known()) is not None:
                exchange._comparisons.invalidate()

        optimizer.register_step_pre_hook(before_step)
        optimizer.register_step_post_hook(after_step)
        optimizer.register_load_state_dict_post_hook(after_loading)

    def state_dict(self) -> dict[str, Any]:
        """Return step, settings and state of the system; each rank saves its own, between two steps."""
        return {"step": self.step, "settings": dict(self._settings), "system": self.system.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned on this rank; every rank must, between the same steps.

        Raises:
            BinsgdmError: it is no such state, or one of other settings; then nothing is taken.
        """
        check_state(_WHERE, state, ("step", "settings", "system"))
        check_whole(f"{_WHERE}: step of the state", state["step"], low=1, high=2**32 - 1)
        if state["settings"] != self._settings:
            raise BinsgdmError(f"{_WHERE}: a state of other settings: must be of {self._settings}; {REPAIR}")
        self.system.load_state_dict(state["system"])
        self.step, self._buckets = state["step"], None
        self._comparisons.invalidate()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # A copied or unpickled optimizer knows of no exchange.
        return type(None), ()

    @torch.no_grad()
    def before_step(self, optimizer: torch.optim.Optimizer, arguments: Sequence[object]) -> None:
        """Exchange the gradients of this rank's shards, and put the means in their place.

        Raises:
            BinsgdmError: a CUDA graph that is captured; or on all ranks, where one has a closure, which would make
                gradients after the exchange, a GradScaler, other parameters, or other gradients than in the first step,
                or where ranks differ.
        """
        device = local(self._parameters[0]).device
        streams.check_not_captured(_WHERE, device, "each step draws anew, and the host counts them")
        having = [number for number, parameter in enumerate(self._parameters) if parameter.grad is not None]
        self._compare(optimizer, having, self._refusal(optimizer, arguments, having))
        if self._buckets is None:
            self._begin(having)
        assert self._buckets is not None
        for index, numbers in enumerate(self._buckets):
            self._average(index, numbers)
        # Over NCCL the host reads soon what was carried, and would wait for a rank that is gone for ever.
        self._transport.wait("the exchange of gradients")
        self.step += 1

    def _refusal(
        self, optimizer: torch.optim.Optimizer, arguments: Sequence[object], having: Sequence[int]
    ) -> BinsgdmError | None:
        """Return why this rank cannot exchange."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if any(argument is not None for argument in arguments):
            why = (
                "step(closure): gradients would be made after the exchange; call backward, and step() without a closure"
            )
        elif hasattr(optimizer, "found_inf"):
            why = (
                "a GradScaler: each rank would skip steps by its own shard; train in bf16 with MixedPrecisionPolicy, "
                "which needs none"
            )
        elif len(parameters) != len(self._parameters) or any(map(is_not, parameters, self._parameters)):
            why = (
                "parameters of the optimizer have changed, and would never be exchanged; make the optimizer with all "
                "of them, and call compress_replicas anew"
            )
        elif not having:
            why = "a step without gradients; call backward before"
        elif self._buckets is not None and sorted(number for bucket in self._buckets for number in bucket) != having:
            why = "other parameters have gradients than in the first step: must be the same in all"
        else:
            return None
        return BinsgdmError(f"{_WHERE}: {why}")

    def _compare(self, optimizer: torch.optim.Optimizer, having: Sequence[int], refused: BinsgdmError | None) -> None:
        """Compare with all ranks what they are about to do; all raise, where they differ or one refuses."""
        settings = {
            f"{name} of group {number}": plain(value)
            for number, group in enumerate(optimizer.param_groups)
            for name, value in group.items()
            if name != "params"
        }
        facts = {"step": self.step, "gradients of": list(having), **settings}
        # Whoever has written to parameters, or dropped states, on some ranks alone would let replicas differ.
        is_due = self._comparisons.is_due(self._written(), len(optimizer.state))
        values = [refused is not None, consistency.number_of(facts), is_due]
        seen = [Alike(name="", value=value, group=None) for value in values]
        device = local(self._parameters[0]).device
        rows = self._transport.run(consistency.check_alike(_WHERE, seen, self._all_that_step, device, "")).tolist()
        if any(row[0] or row[1] != rows[0][1] for row in rows):
            check_same_settings(_WHERE, facts, refused, self._groups.world)
        if any(row[2] for row in rows):
            self._comparisons.invalidate()
            self._transport.run(self._comparison(optimizer))
            self._comparisons.compared()

    def _written(self) -> list[torch.Tensor]:
        # Operations of a DTensor count on it alone, and what is done to its shard on that alone.
        return [tensor for parameter in self._parameters for tensor in (parameter, local(parameter))]

    def _comparison(self, optimizer: torch.optim.Optimizer) -> Protocol:
        shards = [local(parameter) for parameter in self._parameters]
        states = [optimizer.state.get(parameter, {}) for parameter in self._parameters]
        kept = {
            (number, name): value
            for number, state in enumerate(states)
            for name, value in state.items()
            if isinstance(value, torch.Tensor)
        }
        values = {
            "shards": int(checksum_of(shards).item()),
            "state": consistency.number_of(comparable(self.system.common_values())),
            "state of the optimizer": consistency.number_of(checksums(kept)),
        }
        numbers = [
            Alike(name=name, value=value, group="inter_node", is_checksum=True) for name, value in values.items()
        ]
        repair = "no rank has moved: load on all ranks the model and the state that belong together"
        where = f"{_WHERE}: step {self.step}"
        return (yield from consistency.check_alike(where, numbers, self._all_that_step, shards[0].device, repair))

    def _begin(self, having: Sequence[int]) -> None:
        """Form messages, which are the same on all ranks."""
        self._buckets, num_elements = [[]], 0
        for number in reversed(having):  # as backward makes them
            if num_elements >= self._cap:
                self._buckets.append([])
                num_elements = 0
            self._buckets[-1].append(number)
            num_elements += local(self._parameters[number]).numel()

    def _average(self, index: int, numbers: Sequence[int]) -> None:
        gradients = [local(self._parameters[number].grad) for number in numbers]  # type: ignore[arg-type]
        bucket = GradientBucket(
            values=torch.cat([gradient.reshape(-1).to(torch.float32) for gradient in gradients]),
            parameters=tuple(numbers),
            shapes=tuple(tuple(gradient.shape) for gradient in gradients),
        )
        if not bucket.values.numel():
            return
        context = replace(self._member.context(seed=self._seed, step=self.step), bucket=index)
        mean = self._transport.run(self.system.mean(bucket, shard_context(context, self._groups)))
        for gradient, part in zip(gradients, torch.split(mean, bucket.numels), strict=True):
            gradient.copy_(part.view(gradient.shape))
