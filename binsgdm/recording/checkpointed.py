"""Activation checkpointing of a model's repeated blocks."""

from functools import partial

from torch import nn
from torch.utils.checkpoint import checkpoint

from binsgdm.errors import BinsgdmError

MIN_BLOCKS = 2


def repeated_blocks(module: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that stand in a list or sequence with others of their class, in order."""
    members = list(module) if isinstance(module, (nn.ModuleList, nn.Sequential)) else []
    are_alike = len(members) >= MIN_BLOCKS and len({type(one) for one in members}) == 1
    if are_alike and any(True for _ in members[0].children()):
        return members
    return [block for child in module.children() for block in repeated_blocks(child)]


def checkpoint_blocks(module: nn.Module) -> int:
    """Let each repeated block keep its inputs alone, and run again in backward; return how many there are.

    Args:
        module: changed in place.

    Raises:
        BinsgdmError: no block is repeated.
    """
    blocks = repeated_blocks(module)
    if not blocks:
        raise BinsgdmError(
            "--checkpoint: the model has no list of modules of one class: call torch.utils.checkpoint in its forward"
        )
    for block in blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return len(blocks)
