"""What a rank of sharded training holds: its shards, and parts of the model that are whole for a while.

As `torch.distributed.fsdp.fully_shard` of PyTorch 2.13 does it: the root stays whole from its first use to the end of
backward; of the blocks two are, that which computes and that which is gathered meanwhile. Gradients of a block are
whole until they are copied into the message that scatters them, which is freed when the next block is done.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from simnet.core.bounded_types import BYTES_PER_ELEMENT
from simnet.strategies.sharded import ShardedStrategy
from simnet.workload.blocks import ModelParts
from simnet.workload.gpu_memory import ModelMemory, RankMemory
from simnet.workload.training_step import Step


def sharded_memory(strategy: ShardedStrategy, model: ModelMemory, step: Step, num_shards: int) -> RankMemory:
    """Return what a rank holds of a model that so many ranks share.

    Raises:
        SimnetError: the workload does not say how its model is made.
    """
    parts = strategy.parts(step)
    share = sum(part.padded_elements(num_shards) for part in parts.parts) / num_shards / step.num_elements
    keeps_whole = strategy.reduce_every == "step" and step.micro_batches > 1
    return RankMemory(
        parameters=model.parameters * share,
        optimizer=None if model.optimizer is None else model.optimizer * share,
        gradients=model.gradients * (1.0 if keeps_whole else share),
        gathered=tuple(_gathered(strategy, parts, step, num_shards)) if num_shards > 1 else (),
        update=model.update * share,
    )


def _gathered(strategy: ShardedStrategy, parts: ModelParts, step: Step, num_shards: int) -> Iterator[float]:
    """Yield what is whole when the gradient of each tensor is ready [B]."""
    gather, reduce = (
        BYTES_PER_ELEMENT[dtype] if dtype else step.bytes_per_element
        for dtype in (strategy.gather_dtype, strategy.reduce_dtype)
    )
    elements = [part.padded_elements(num_shards) for part in parts.parts]
    blocks = [number for number in range(len(elements)) if number != parts.root]
    following = dict(pairwise(blocks))
    root_elements = 0.0 if parts.root is None else elements[parts.root]
    made: dict[int, float] = defaultdict(float)
    begun: list[int] = []
    for owner, tensor in zip(parts.owners, step.tensors, strict=True):
        if owner != parts.root and owner not in made:
            begun.append(owner)
        made[owner] += tensor.num_elements
        current = begun[-1] if begun else None
        upcoming = following.get(current) if current is not None else next(iter(blocks), None)
        whole = [one for one in (current, upcoming) if one is not None] if strategy.reshard_after_forward else blocks
        gathered = (root_elements + sum(elements[one] for one in whole)) * gather
        held = {one for one in (owner, parts.root, current) if one is not None}
        unreduced = sum(made[one] for one in held) * step.bytes_per_element
        sent = elements[begun[-2]] * reduce if len(begun) > 1 else 0.0
        yield gathered + unreduced + sent
