"""What ranks send each other, as a protocol: what to send next, and what came back.

A protocol is a generator: it yields a `Message`, gets what the rank received, and returns the result, which is the same
on every rank. The caller chooses who sends the messages: `binsgdm.comm.transport` over torch.distributed, or
`run_in_lockstep` for all ranks in one process. So an algorithm and its one-process control are one piece of code.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from binsgdm.errors import BinsgdmError
from binsgdm.kernels.keys import Key, RandomStream

GroupName = Literal["world", "intra_node", "inter_node"]


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """A rank's position among all ranks in one step, and the key of its random draws.

    Attributes:
        ranks_per_node: ranks of each node; ranks are numbered node by node.
        seed, step: the same on all ranks.
        bucket: number of the bucket in the step, if elements are numbered from 0 in each bucket (so that two buckets
            do not share draws); 0 where elements are numbered over all buckets.
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

    def key(self, stream: RandomStream) -> Key:
        """Return the key of this rank's draws in one stream of this step."""
        return self.key_of(self.rank, stream)

    def key_of(self, rank: int, stream: RandomStream) -> Key:
        """Return the key of another rank's draws."""
        # Each bucket gets a block of streams of its own: streams of two buckets never meet.
        return Key(seed=self.seed, step=self.step, rank=rank, stream=stream + len(RandomStream) * self.bucket)

    @property
    def common_key(self) -> Key:
        """The key of what all ranks draw alike."""
        return self.key_of(0, RandomStream.COMMON)


@dataclass(frozen=True, kw_only=True)
class _GroupMessage:
    # Of nccl-tests, and of simnet's schedules: contract tests compare both sides by it.
    collective: ClassVar[str]
    group: GroupName
    sent: torch.Tensor


class AllToAll(_GroupMessage):
    """Send row k of `sent` to position k of the group; row k of the answer is what position k sent to this rank.

    The answer is only valid until the next `AllToAll`, which may write to the same memory.
    """

    collective = "all_to_all"


@dataclass(frozen=True, kw_only=True)
class AllGather(_GroupMessage):
    """Send `sent` to all ranks of the group; row k of the answer is what position k sent.

    Attributes:
        is_read_by_host: the host reads the answer before the next message. Over NCCL it waits for it where it learns of
            a rank that is gone; reading would block it for ever.
    """

    collective = "all_gather"
    is_read_by_host: bool = False


class SendRecv(_GroupMessage):
    """Send `sent` to the next position of the group; the answer is what the previous one sent, of the same shape."""

    collective = "send_recv"


@dataclass(frozen=True, kw_only=True)
class AllReduceSum(_GroupMessage):
    """Sum `sent` over the group; the answer is the sum, the same bits on every rank.

    `sent` is not changed, unless it `may_overwrite` it: then the sum may be in the same memory.

    Attributes:
        is_read_by_host: as of `AllGather`.
    """

    collective = "all_reduce"
    may_overwrite: bool = False
    is_read_by_host: bool = False


@dataclass(frozen=True, kw_only=True)
class AllReduceMax(_GroupMessage):
    """Take the element-wise maximum of `sent` (uint8) over all ranks that step together; the answer is the maximum.

    It is the finite check: flags of every rank, before a step counts. `sent` may be overwritten.
    """

    collective = "finite_check"
    group: GroupName = "world"


Message = AllToAll | AllGather | SendRecv | AllReduceSum | AllReduceMax
Protocol = Generator[Message, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Member:
    """The rank that an optimizer is, and the driver of its messages.

    Attributes:
        rank: its position among the ranks that exchange.
        ranks_per_node: ranks of each node; ranks are numbered node by node.
        run: takes a protocol to its end; None for a rank alone, or where another driver runs all ranks.
        ranks: the global ranks that exchange, in the order of positions, where they are not the positions themselves.
        stands_for_all: other ranks are only thought to be there, each with what this one has.
    """

    rank: int = 0
    world_size: int = 1
    ranks_per_node: int = 1
    run: Callable[[Protocol], torch.Tensor] | None = None
    ranks: tuple[int, ...] = ()
    stands_for_all: bool = False

    def named(self, position: int) -> int:
        """Return the global rank at a position, as sentences name ranks."""
        return self.ranks[position] if self.ranks else position

    def run_protocol(self, protocol: Protocol) -> torch.Tensor:
        """Run a protocol and return its result."""
        if self.run is not None:
            return self.run(protocol)
        if self.world_size > 1:
            raise BinsgdmError(
                "step: no driver for the messages of several ranks; run step_protocol() of all ranks in lockstep"
            )
        return run_with(
            protocol, lambda message: message.sent if isinstance(message, AllReduceMax) else _answer(0, [message], 1)
        )

    def context(self, *, seed: int, step: int) -> RankContext:
        """Return this rank's context in a step."""
        return RankContext(
            rank=self.rank, world_size=self.world_size, ranks_per_node=self.ranks_per_node, seed=seed, step=step
        )


def refusal(error: BinsgdmError) -> Protocol:
    """Refuse as a protocol before its first message, so that its driver tells the other ranks why."""
    raise error
    yield  # makes it a generator, of nothing


def without_messages(result: torch.Tensor) -> Protocol:
    """Return this as a protocol that sends nothing."""
    return result
    yield  # makes it a generator, of nothing


def fake_received(message: Message, context: RankContext) -> torch.Tensor:
    """Return what a rank receives if all ranks send what it sends, for work that needs no other rank."""
    size = len(group_members(message.group, context.rank, context.world_size, context.ranks_per_node))
    if isinstance(message, AllGather):
        return message.sent.expand(size, *message.sent.shape).clone()
    if isinstance(message, AllReduceSum):
        return message.sent.mul_(size) if message.may_overwrite else message.sent * size
    return message.sent.clone()


def run_with(protocol: Protocol, answer_to: Callable[[Message], torch.Tensor]) -> torch.Tensor:
    """Run a rank's protocol, whose messages a function answers, and return its result."""
    answer: torch.Tensor | None = None
    while True:
        try:
            message = protocol.send(answer)  # type: ignore[arg-type]
        except StopIteration as stop:
            result: torch.Tensor = stop.value
            return result
        answer = answer_to(message)


def run_as_if_alike(protocol: Protocol, context: RankContext) -> torch.Tensor:
    """Run a rank's protocol as if all ranks sent what it sends, and return its result."""
    return run_with(protocol, lambda message: fake_received(message, context))


def run_in_lockstep(
    protocols: Sequence[Protocol],
    ranks_per_node: int,
    on_sent: Callable[[int, Message], object] | None = None,
) -> list[torch.Tensor]:
    """Run the protocols of all ranks in one process, message by message.

    Args:
        protocols: one a rank, in the order of ranks; all of the same algorithm.
        ranks_per_node: ranks of each node.
        on_sent: called with the rank and every message that it sends.

    Returns:
        What each rank's protocol returns.
    """
    answers: list[torch.Tensor | None] = [None] * len(protocols)
    results: list[torch.Tensor] = []
    while not results:
        messages: list[Message] = []
        for rank, (protocol, answer) in enumerate(zip(protocols, answers, strict=True)):
            try:
                # send(None) starts a generator: every protocol runs up to its first message.
                messages.append(protocol.send(answer))  # type: ignore[arg-type]
            except StopIteration as stop:
                results.append(stop.value)
                continue
            if on_sent is not None:
                on_sent(rank, messages[-1])
        # Real collectives would hang here: some ranks finished while others wait, or ranks call different collectives.
        if (messages and results) or len({(type(message), message.group) for message in messages}) > 1:
            raise AssertionError("ranks are out of step")
        answers = [_answer(rank, messages, ranks_per_node) for rank in range(len(messages))]
    return results


def _answer(rank: int, messages: Sequence[Message], ranks_per_node: int) -> torch.Tensor:
    """Return what `rank` receives."""
    members = group_members(messages[rank].group, rank, len(messages), ranks_per_node)
    position = members.index(rank)
    return _ANSWERS[type(messages[rank])]([messages[other].sent for other in members], position)


def _sum(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum, in the order of positions: fp32 sums depend on their order."""
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total


# What each position of a group receives, from what all positions sent.
_ANSWERS: dict[type, Callable[[Sequence[torch.Tensor], int], torch.Tensor]] = {
    AllToAll: lambda sent, position: torch.stack([tensor[position] for tensor in sent]),
    AllGather: lambda sent, _: torch.stack(list(sent)),
    SendRecv: lambda sent, position: sent[position - 1].clone(),
    AllReduceSum: lambda sent, _: _sum(sent),
    AllReduceMax: lambda sent, _: torch.stack(list(sent)).amax(dim=0),
}


def group_members(group: GroupName, rank: int, world_size: int, ranks_per_node: int) -> list[int]:
    """Return the ranks of the group that `rank` is in, in order of position."""
    if group == "world":
        return list(range(world_size))
    if group == "intra_node":
        first = rank - rank % ranks_per_node
        return list(range(first, first + ranks_per_node))
    return list(range(rank % ranks_per_node, world_size, ranks_per_node))
