"""Check that all ranks hold the same: parameters, bit for bit, and settings."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from binsgdm.errors import BinsgdmError
from binsgdm.exchange.groups import backend_of, is_nccl
from binsgdm.exchange.roll_call import meet

_MODULUS = 65521  # the largest prime below 2^16, as in Adler-32
_CHUNK = 1 << 22  # elements widened to 64 bits at a time, to bound the memory


def check_replicas(model: torch.nn.Module) -> None:
    """Compare checksums of every parameter between all ranks; every rank must call it. Buffers are not compared.

    It moves 16 bytes a parameter, so it is cheap enough for every few hundred steps.

    Raises:
        BinsgdmError: on every rank, with the first parameter that differs and the ranks that differ from rank 0.
    """
    if dist.is_available() and dist.is_initialized():
        repair = "look for a rank-dependent change outside the optimizer"
        check_same_tensors("check_replicas", list(model.named_parameters()), repair)


def check_same_tensors(where: str, named: Sequence[tuple[str, torch.Tensor]], repair: str) -> None:
    """Compare checksums of some tensors between all ranks; every rank must call it.

    Raises:
        BinsgdmError: on every rank, beginning with `where`, if any differs.
    """
    if dist.get_world_size() == 1 or not named:
        return
    mine = torch.stack([_checksum(parameter.detach()) for _, parameter in named])
    if not backend_of(None, mine.device):  # parameters on the CPU, and NCCL alone
        mine = mine.to("cuda")
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    if is_nccl(None, mine.device):
        meet(where)
    dist.all_gather(theirs, mine)
    by_rank = torch.stack(theirs).tolist()  # all at once: from a GPU every read is a wait
    for index, (name, _) in enumerate(named):
        other = [rank for rank, sums in enumerate(by_rank) if sums[index] != by_rank[0][index]]
        if other:
            raise BinsgdmError(
                f"{where}: {name}: ranks {other} differ from rank 0: parameters must be equal to the bit; {repair}"
            )


def _checksum(values: torch.Tensor) -> torch.Tensor:
    """Return two int64 sums over the bits of all elements, the second weighted by position."""
    widths = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
    # Of the bits, not the values: NaN equals NaN, and 0 differs from -0.
    bits = values.reshape(-1).contiguous().view(widths[values.element_size()])
    sums = torch.zeros(2, dtype=torch.int64, device=bits.device)
    for first in range(0, bits.numel(), _CHUNK):
        some = bits[first : first + _CHUNK].to(torch.int64)
        # A plain sum does not see two exchanged elements; the weighted one does. int64 sums wrap, alike on all ranks.
        weights = torch.arange(first + 1, first + 1 + some.numel(), device=bits.device) % _MODULUS
        sums += torch.stack([some.sum(), (some * weights).sum()])
    return sums


def check_same_settings(
    where: str,
    settings: Mapping[str, Any],
    refused: BinsgdmError | None = None,
    group: dist.ProcessGroup | None = None,
    device: torch.device | None = None,
) -> None:
    """Check that all ranks were given the same; every rank must call it.

    Args:
        where: begins the message.
        settings: by name; of values that can be pickled and compared.
        refused: why this rank cannot go on anyway; it calls nevertheless, so that no other waits for it.
        group: of all ranks; default that of torch.distributed.
        device: of the tensors that will be exchanged: over NCCL the settings travel through this GPU, too; default the
            current one.

    Raises:
        BinsgdmError: on every rank, if any refused (`refused` itself on such a rank) or differs from rank 0.
    """
    # A rank with an error takes part as well and sends the reason: if it raised here, the others would wait for it.
    all_of_them: list[Any] = [None] * dist.get_world_size(group)
    if "gloo" not in backend_of(group, torch.device("cpu")):  # objects travel over NCCL, which would wait for ever
        meet(where, group)
    # Without set_device all ranks of a node have the first GPU as the current one, which NCCL refuses.
    with torch.cuda.device(device if device is not None and device.type == "cuda" else -1):
        dist.all_gather_object(all_of_them, (dict(settings), None if refused is None else str(refused)), group=group)
    if refused is not None:
        raise refused
    for rank, (_, reason) in enumerate(all_of_them):
        if reason is not None:
            raise BinsgdmError(f"{where}: rank {rank} refused: {reason}")
    _compare_settings(where, [theirs for theirs, _ in all_of_them])


def _compare_settings(where: str, all_of_them: Sequence[Mapping[str, Any]]) -> None:
    first = all_of_them[0]
    for rank, theirs in enumerate(all_of_them):
        for name in dict.fromkeys([*first, *theirs]):
            if first.get(name) != theirs.get(name):
                raise BinsgdmError(
                    f"{where}: {name} of rank {rank}: {theirs.get(name)!r}: must equal rank 0's {first.get(name)!r}"
                )


def checksums(tensors: Mapping[Any, torch.Tensor]) -> list[tuple[str, tuple[int, ...], list[int]]]:
    """Return names, shapes and checksums of some tensors, for `check_same_settings`."""
    if not tensors:
        return []
    sums = torch.stack([_checksum(one) for one in tensors.values()]).tolist()  # one read from the GPU, not one each
    return [(str(name), tuple(one.shape), found) for (name, one), found in zip(tensors.items(), sums, strict=True)]
