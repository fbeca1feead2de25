"""Activation checkpointing of a model's repeated blocks."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from binsgdm.errors import BinsgdmError

MIN_BLOCKS = 2


def repeated_blocks(module: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that stand in a list or sequence with others of their class, in order."""
    found: list[nn.Module] = []
    for child in module.children():
        members = list(child) if isinstance(child, (nn.ModuleList, nn.Sequential)) else []
        alike = len(members) >= MIN_BLOCKS and len({type(one) for one in members}) == 1
        is_block = alike and any(True for _ in members[0].children())
        found += members if is_block else repeated_blocks(child)
    return found


def checkpoint_blocks(module: nn.Module, keep: Callable[[Tensor], object]) -> int:
    """Let each repeated block keep its inputs alone, and run again in backward; return how many there are.

    Args:
        module: changed in place.
        keep: is told of every input, which autograd does not save.

    Raises:
        BinsgdmError: no block is repeated.
    """
    blocks = repeated_blocks(module)
    if not blocks:
        raise BinsgdmError(
            "--checkpoint: the model has no list of modules of one class: call torch.utils.checkpoint in its forward"
        )
    for block in blocks:
        block.forward = _again(block.forward, keep)
    return len(blocks)


def _again(forward: Callable[..., Any], keep: Callable[[Tensor], object]) -> Callable[..., Any]:
    def checkpointed(*args: Any, **keywords: Any) -> Any:
        for one in tree_leaves((args, keywords)):
            if isinstance(one, Tensor):
                keep(one)
        return checkpoint(forward, *args, use_reentrant=False, **keywords)

    return checkpointed
