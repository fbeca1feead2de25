"""Among whom a system's payloads travel.

gather: every rank gathers every rank's payload, decodes all and averages. Bytes and decoding grow with the ranks.

scatter_reduce: every rank owns a piece of the bucket, averages what all ranks send of it, and encodes it once more
(`binsgdm.compressors.scatter_reduce`).

hierarchical: the ranks of a node first average in full precision, each local rank one piece of the bucket; that piece
goes between nodes in the system's own exchange, among the ranks with the same local rank; its mean is gathered in the
node. So nothing is lost inside a node, and 1 / ranks_per_node of the bucket is encoded on each rank.
Source: as BinSGDM's and BAGUA's (Gan et al., "BAGUA: scaling up distributed learning with system relaxations", VLDB
2022) hierarchical forms.

hierarchical_scatter_reduce: hierarchical, with scatter_reduce between nodes.

Shape letters: K pieces of a bucket, one for each rank of a node, L elements of the longest.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

import torch

from binsgdm import kernels
from binsgdm.comm import AllGather, AllToAll, Message, Protocol, RankContext
from binsgdm.compressors.base import (
    MAX_RANKS,
    Averager,
    Cut,
    GradientBucket,
    System,
    Topology,
    check_choice,
    check_state,
    check_values,
    check_whole,
)
from binsgdm.compressors.error_feedback import CompressorSystem
from binsgdm.compressors.pieces import Pieces, pad
from binsgdm.compressors.scatter_reduce import ScatterReduce
from binsgdm.errors import BinsgdmError, shown

IntraNodeDtype = Literal["fp32", "bf16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Topologies that average in the node first, with what they do between nodes; None: the system's own.
BETWEEN_NODES: Mapping[str, Topology | None] = {"hierarchical": None, "hierarchical_scatter_reduce": "scatter_reduce"}


def averager(  # noqa: PLR0913
    system: type[System],
    options: Mapping[str, Any],
    *,
    rank: int,
    world_size: int,
    ranks_per_node: int,
    topology: Topology | None,
    intra_node_dtype: IntraNodeDtype | None,
) -> Averager:
    """Return one rank's end of a system in a topology; None is the default on such nodes.

    Raises:
        BinsgdmError: the system cannot have the topology, or an option is out of range.
    """
    topology = system.default_topology(ranks_per_node) if topology is None else topology
    system.check_topology(topology, options)
    if topology not in BETWEEN_NODES:
        if intra_node_dtype is not None:
            raise BinsgdmError(
                f"{system.name}: intra_node_dtype: {shown(intra_node_dtype)}: has no effect with topology "
                f"{topology!r}; drop one of them"
            )
        return _among_equals(system, topology, options, rank=rank, world_size=world_size)
    intra_node_dtype = "fp32" if intra_node_dtype is None else intra_node_dtype
    check_choice(f"{system.name}: intra_node_dtype", intra_node_dtype, get_args(IntraNodeDtype))
    if world_size % ranks_per_node:
        raise BinsgdmError(
            f"{system.name}: ranks_per_node: {shown(ranks_per_node)}: must divide the world size {world_size}; "
            "give the ranks of one node"
        )
    between = _among_equals(
        system,
        BETWEEN_NODES[topology] or system.topologies[0],
        options,
        rank=rank // ranks_per_node,
        world_size=world_size // ranks_per_node,
    )
    return Hierarchical(
        between, system.cut, intra_node_dtype, rank=rank, world_size=world_size, ranks_per_node=ranks_per_node
    )


def _among_equals(
    system: type[System], topology: str, options: Mapping[str, Any], *, rank: int, world_size: int
) -> Averager:
    """Return one rank's end in a topology that knows no nodes."""
    if topology != "scatter_reduce" or not issubclass(system, CompressorSystem):
        return system.averager(rank, world_size, options)
    return ScatterReduce(system(**options), rank=rank, world_size=world_size)


class Hierarchical(Averager):
    """An end that averages in the node before another end exchanges between nodes.

    Args:
        between: of this node among the nodes, for this local rank's piece.
        cut: along what matrices are cut into pieces.
        dtype: of what travels inside the node: values and their mean.
        rank: this rank.
        world_size: all ranks.
        ranks_per_node: ranks of each node.

    Attributes:
        between: with its state.
    """

    common_group = "inter_node"

    def __init__(  # noqa: PLR0913
        self, between: Averager, cut: Cut, dtype: IntraNodeDtype, *, rank: int, world_size: int, ranks_per_node: int
    ) -> None:
        self.between = between
        self._cut = cut
        self._dtype = _DTYPES[dtype]
        self._identity = {"rank": rank, "world_size": world_size, "ranks_per_node": ranks_per_node}

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Average in the node, then between nodes; see `binsgdm.compressors.base.Averager`."""
        self._check(context)
        check_values("hierarchical", bucket.values, bucket.shapes)
        local, count = context.local_rank, context.ranks_per_node
        if count == 1:  # nothing is sent inside a node, nor rounded for it
            return (yield from among_nodes(self.between.mean(bucket, node_context(context))))
        pieces = Pieces(bucket.shapes, count, self._cut)
        rows = pieces.padded(bucket.values)
        # Every piece tells of a value that is not finite: residuals are kept or dropped for the bucket as a whole.
        rows[:, 0] = torch.where(bucket.values.isfinite().all(), rows[:, 0], torch.nan)
        mean = yield from self._mean_in_node(rows, pieces.numels[local])
        # A rank without elements: so are those of the other nodes that it would exchange with.
        if mean.numel():
            piece = GradientBucket(values=mean, parameters=bucket.parameters, shapes=pieces.shapes(local))
            mean = yield from among_nodes(self.between.mean(piece, node_context(context)))
        gathered = yield AllGather(group="intra_node", sent=pad(mean, pieces.numels[0]).to(self._dtype))
        return pieces.join(list(gathered.to(torch.float32)))

    def _mean_in_node(self, rows: torch.Tensor, numel: int) -> Protocol:
        """Return the node's mean of this local rank's piece.

        Shape:
            rows: (K, L), overwritten; returned: (numel,).
        """
        # An all-to-all and a local mean in place of a reduce-scatter: the order of the sum is then that of the ranks on
        # every backend, and a one-process control gives the same bits.
        received = yield AllToAll(group="intra_node", sent=rows.to(self._dtype))
        parts = received if received.dtype == torch.float32 else rows.copy_(received)
        kernels.select(device=rows.device).mean_(parts, rows[0])
        return rows[0, :numel].clone()

    def _check(self, context: RankContext) -> None:
        given = {name: getattr(context, name) for name in self._identity}
        if given != self._identity:
            raise BinsgdmError(f"hierarchical: {given}: must be {self._identity}; make one system per rank")

    def common_values(self) -> dict[str, Any]:
        """Return what the ranks with this local rank have alike."""
        return self.between.common_values()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy for a checkpoint; every rank saves its own, since pieces differ. Empty if there is none."""
        state = self.between.state_dict()
        return self._identity | {"between_nodes": state} if state else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned on the same rank of the same layout.

        The state of another rank or layout is that of another piece, and not taken: it starts anew, with a warning.
        """
        if isinstance(state, Mapping) and not state:
            self.between.load_state_dict({})
            return
        check_state("hierarchical", state, {*self._identity, "between_nodes"})
        for name in self._identity:
            check_whole(f"hierarchical: {name} of the state", state[name], low=0, high=MAX_RANKS)
        saved = {name: state[name] for name in self._identity}
        if saved != self._identity:
            warnings.warn(
                f"hierarchical: the state of {saved} on {self._identity}: state starts anew; to continue it, load each "
                "rank's own state with as many ranks and nodes",
                stacklevel=2,
            )
            return
        self.between.load_state_dict(state["between_nodes"])


def node_context(context: RankContext) -> RankContext:
    """Return the context of a node among the nodes, for one local rank's piece."""
    return RankContext(
        rank=context.node,
        world_size=context.num_nodes,
        ranks_per_node=1,
        seed=context.seed,
        step=context.step,
        # Local ranks number their pieces' elements from 0 each: as buckets of their own, they share no draws.
        bucket=context.bucket * context.ranks_per_node + context.local_rank,
    )


def among_nodes(protocol: Protocol) -> Protocol:
    """Run a protocol of all ranks among the ranks with this local rank."""
    answer: torch.Tensor | None = None
    while True:
        try:
            message: Message = protocol.send(answer)  # type: ignore[arg-type]
        except StopIteration as stop:
            result: torch.Tensor = stop.value
            return result
        answer = yield replace(message, group="inter_node")
