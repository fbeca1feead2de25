"""What a rank would receive if all ranks sent what it sends, for work that needs no other rank."""

from collections.abc import Callable

import torch

from binsgdm.comm.messages import AllGather, AllReduceSum, Message, Protocol, RankContext, group_members


def fake_received(message: Message, context: RankContext) -> torch.Tensor:
    """Return what a rank receives if all ranks send what it sends."""
    size = len(group_members(message.group, context.rank, context.world_size, context.ranks_per_node))
    if isinstance(message, AllGather):
        return message.sent.expand(size, *message.sent.shape).clone()
    if isinstance(message, AllReduceSum):
        return message.sent.mul_(size) if message.may_overwrite else message.sent * size
    return message.sent.clone()


def run_as_if_alike(
    protocol: Protocol,
    context: RankContext,
    answer_to: Callable[[Message, RankContext], torch.Tensor] = fake_received,
) -> torch.Tensor:
    """Run a rank's protocol as if all ranks sent what it sends, and return its result."""
    answer: torch.Tensor | None = None
    while True:
        try:
            answer = answer_to(protocol.send(answer), context)  # type: ignore[arg-type]
        except StopIteration as stop:
            result: torch.Tensor = stop.value
            return result
