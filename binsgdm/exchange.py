"""The 1-bit all-reduce of one bucket, as a conversation: what to send next, and what came back.

A generator yields a `Message`, gets what was received, and returns what every rank goes on with. Who carries the
messages is up to the driver: `binsgdm.transport` over torch.distributed, or `run_together`, which is all ranks in one
process. So the algorithm, its one-process control and its message record are one piece of code.

Source: the hierarchical 1-bit all-reduce of "Birder: Communication-efficient 1-bit adaptive optimizer for practical
distributed DNN training", NeurIPS 2023. Differs: the paper states the intent (local part over the fast links, efficient
primitives between nodes); the steps here are this project's reading (docs/algorithm.md).
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from binsgdm.kernels import Kernels
from binsgdm.layout import BITS_PER_BYTE, Bucket
from binsgdm.random import Key, Stream

GroupName = Literal["world", "intra_node", "inter_node"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A rank among the ranks, and what its draws are made from.

    Attributes:
        ranks_per_node: ranks of each node; ranks are numbered node by node.
        seed, step: the same on all ranks.
        bucket: number of the bucket in the step, where elements are counted anew in each; its draws are its own.
    """

    rank: int
    world_size: int
    ranks_per_node: int
    seed: int
    step: int
    bucket: int = 0

    @property
    def local_rank(self) -> int:
        """Number inside the node."""
        return self.rank % self.ranks_per_node

    @property
    def node(self) -> int:
        """Number of the node."""
        return self.rank // self.ranks_per_node

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.world_size // self.ranks_per_node

    def key(self, stream: Stream) -> Key:
        """Return the key of this rank's draws in one stream of this step."""
        return self.key_of(self.rank, stream)

    def key_of(self, rank: int, stream: Stream) -> Key:
        """Return the key of another rank's draws."""
        return Key(seed=self.seed, step=self.step, rank=rank, stream=stream + len(Stream) * self.bucket)

    @property
    def common_key(self) -> Key:
        """The key of what all ranks draw alike."""
        return self.key_of(0, Stream.COMMON)


@dataclass(frozen=True, kw_only=True)
class AllToAll:
    """Send row k of `sent` to position k of the group; row k of what comes back is from position k.

    What comes back may lie in memory that the next `AllToAll` writes to.
    """

    group: GroupName
    sent: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class AllGather:
    """Send `sent` to all of the group; row k of what comes back is that of position k."""

    group: GroupName
    sent: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Shift:
    """Send `sent` to the next position of the group; what comes back is that of the previous one, of the same shape."""

    group: GroupName
    sent: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """Add up `sent` of all of the group, which stays as it is; the sum comes back, the same on all to the bit."""

    group: GroupName
    sent: torch.Tensor


Message = AllToAll | AllGather | Shift | AllReduce
Conversation = Generator[Message, torch.Tensor, torch.Tensor]


def hierarchical(
    u: torch.Tensor, bucket: Bucket, place: Place, kernels: Kernels, *, bf16: bool = False
) -> Conversation:
    """Average u in the node, exchange one bit an element between nodes, gather in the node.

    Args:
        u: this rank's updates in [-1, 1], fp32, one bucket with padding; overwritten.
        bucket: where it lies in the flat order.
        place: this rank.
        kernels: which implementation.
        bf16: send u inside the node as bf16 instead of fp32.

    Returns:
        The packed signs of the whole bucket, the same on every rank.

    Shape:
        u: (numel,); returned: (numel / 8,) uint8.
    """
    mean = yield from _mean_in_node(u, place, kernels, bf16=bf16)
    signs = torch.empty(mean.numel() // BITS_PER_BYTE, dtype=torch.uint8, device=u.device)
    kernels.quantize_pack(mean, key=place.key(Stream.LOCAL), start=slice_start(bucket, place), out=signs)
    return (yield from _between_nodes(signs, bucket, place, kernels))


def hierarchical_gradients(  # noqa: PLR0913
    gradients: torch.Tensor,
    bucket: Bucket,
    place: Place,
    kernels: Kernels,
    *,
    quantize: Callable[[torch.Tensor], torch.Tensor],
    bf16: bool = False,
) -> Conversation:
    """Do the same with gradients instead of updates: the node has one pair of averages, of its mean gradient.

    Args:
        gradients: this rank's, fp32, one bucket with padding; overwritten.
        bucket: as in `hierarchical`.
        place: as in `hierarchical`.
        kernels: as in `hierarchical`.
        quantize: updates the averages of this rank's slice with its mean gradient, and returns the packed signs.
        bf16: as in `hierarchical`.

    Shape:
        gradients: (numel,); quantize: (numel / ranks per node,) to as many / 8 uint8; returned: (numel / 8,) uint8.
    """
    mean = yield from _mean_in_node(gradients, place, kernels, bf16=bf16)
    return (yield from _between_nodes(quantize(mean), bucket, place, kernels))


def hierarchical_one_bit(signs: torch.Tensor, bucket: Bucket, place: Place, kernels: Kernels) -> Conversation:
    """Do the same with one bit an element inside the node too.

    Args:
        signs: this rank's packed signs of u, drawn in the stream `Stream.INSIDE`.
        bucket: as in `hierarchical`.
        place: as in `hierarchical`.
        kernels: as in `hierarchical`.
    """
    received = yield AllToAll(group="intra_node", sent=signs.view(place.ranks_per_node, -1))
    merged = _merge(received, slice_start(bucket, place), place.key(Stream.LOCAL), kernels)
    return (yield from _between_nodes(merged, bucket, place, kernels))


def flat(signs: torch.Tensor, bucket: Bucket, place: Place, kernels: Kernels) -> Conversation:
    """Exchange one bit an element among all ranks.

    Args:
        signs: this rank's packed signs of u, drawn in the stream `Stream.LOCAL`.
        bucket: as in `hierarchical`.
        place: as in `hierarchical`.
        kernels: as in `hierarchical`.
    """
    received = yield AllToAll(group="world", sent=signs.view(place.world_size, -1))
    piece_start = bucket.start + place.rank * (bucket.numel // place.world_size)
    piece = _merge(received, piece_start, place.key(Stream.MERGE), kernels)
    return (yield AllGather(group="world", sent=piece)).reshape(-1)


def _mean_in_node(
    values: torch.Tensor, place: Place, kernels: Kernels, *, bf16: bool
) -> Generator[Message, torch.Tensor, torch.Tensor]:
    """Return the mean over the node of this local rank's slice, summed in the order of ranks.

    It takes the place of what has been sent: fresh memory is slow (docs/adr/0005-cpu-kernels.md), most of all in a
    thread of its own.
    """
    rows = values.view(place.ranks_per_node, -1)
    received = yield AllToAll(group="intra_node", sent=rows.to(torch.bfloat16) if bf16 else rows)
    kernels.mean_(rows.copy_(received) if bf16 else received, rows[0])
    return rows[0]


def slice_start(bucket: Bucket, place: Place) -> int:
    """Return the first element of this local rank's slice in the flat order."""
    return bucket.start + place.local_rank * (bucket.numel // place.ranks_per_node)


def _between_nodes(signs: torch.Tensor, bucket: Bucket, place: Place, kernels: Kernels) -> Conversation:
    """Average the signs of this slice between nodes, one bit an element; then gather all slices in the node."""
    received = yield AllToAll(group="inter_node", sent=signs.view(place.num_nodes, -1))
    piece_numel = bucket.numel // place.world_size
    piece_start = slice_start(bucket, place) + place.node * piece_numel
    piece = _merge(received, piece_start, place.key(Stream.MERGE), kernels)
    whole_slice = yield AllGather(group="inter_node", sent=piece)
    whole_bucket = yield AllGather(group="intra_node", sent=whole_slice.reshape(-1))
    return whole_bucket.reshape(-1)


def _merge(packed: torch.Tensor, start: int, key: Key, kernels: Kernels) -> torch.Tensor:
    """Return the packed signs, drawn anew, of the mean of the rows of `packed`."""
    out = torch.empty(packed.shape[1], dtype=torch.uint8, device=packed.device)
    kernels.merge(packed, numel=packed.shape[1] * BITS_PER_BYTE, key=key, start=start, out=out)
    return out


def run_together(
    conversations: Sequence[Conversation],
    ranks_per_node: int,
    on_sent: Callable[[int, Message], object] | None = None,
) -> list[torch.Tensor]:
    """Run the conversations of all ranks in one process, message by message.

    Args:
        conversations: one a rank, in the order of ranks; all of the same algorithm.
        ranks_per_node: ranks of each node.
        on_sent: called with the rank and every message that it sends.

    Returns:
        What each rank's conversation returns.
    """
    answers: list[torch.Tensor | None] = [None] * len(conversations)
    results: list[torch.Tensor] = []
    while not results:
        messages: list[Message] = []
        for rank, (conversation, answer) in enumerate(zip(conversations, answers, strict=True)):
            try:
                messages.append(conversation.send(answer))  # type: ignore[arg-type]
            except StopIteration as stop:
                results.append(stop.value)
                continue
            if on_sent is not None:
                on_sent(rank, messages[-1])
        if (messages and results) or len({(type(message), message.group) for message in messages}) > 1:
            raise AssertionError("ranks are out of step")
        answers = [_answer(rank, messages, ranks_per_node) for rank in range(len(messages))]
    return results


def _answer(rank: int, messages: Sequence[Message], ranks_per_node: int) -> torch.Tensor:
    """Return what `rank` receives."""
    members = group_members(messages[rank].group, rank, len(messages), ranks_per_node)
    position = members.index(rank)
    if isinstance(messages[rank], Shift):
        return messages[members[position - 1]].sent.clone()
    if isinstance(messages[rank], AllReduce):
        return _sum([messages[other].sent for other in members])
    if isinstance(messages[rank], AllGather):
        return torch.stack([messages[other].sent for other in members])
    return torch.stack([messages[other].sent[position] for other in members])


def _sum(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum in the order of positions."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total


def group_members(group: GroupName, rank: int, world_size: int, ranks_per_node: int) -> list[int]:
    """Return the ranks of the group that `rank` is in, in order of position."""
    if group == "world":
        return list(range(world_size))
    if group == "intra_node":
        first = rank - rank % ranks_per_node
        return list(range(first, first + ranks_per_node))
    return list(range(rank % ranks_per_node, world_size, ranks_per_node))
