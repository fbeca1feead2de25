"""Check that all ranks hold the same: parameters, bit for bit, and settings."""

import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from binsgdm.comm.failure import in_a_sentence, meet
from binsgdm.comm.groups import backend_of, is_nccl, ranks_in_order
from binsgdm.comm.models import check_group, check_module, group_of, replicated_in
from binsgdm.errors import BinsgdmError

_MODULUS = 65521  # the largest prime below 2^16, as in Adler-32
# Elements widened to 64 bits at a time.
_CHUNK = 1 << 22


def check_replicas(model: torch.nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Compare checksums of every parameter between ranks; all of them must call it. Buffers are not compared.

    It moves 16 bytes a parameter, so it is cheap enough for every few hundred steps.

    Args:
        model: whose parameters must be equal.
        group: the ranks that hold the same; default the `process_group` of a DistributedDataParallel model, else all.
            Where parameters are sharded (FSDP2), the ranks that hold the same shard, one a node.

    Raises:
        BinsgdmError: on every rank, with the first parameter that differs and the ranks that differ from the first; or
            a rank is gone.
    """
    if dist.is_available() and dist.is_initialized():
        repair = "look for a rank-dependent change outside the optimizer"
        check_module("check_replicas", model)
        models = replicated_in(model)
        check_group("check_replicas", group, models)
        if group is None and any(hasattr(parameter, "to_local") for parameter in model.parameters()):
            raise BinsgdmError(
                "check_replicas: sharded parameters (DTensor): ranks of a node hold different shards; give "
                "group=mesh.get_group(0), the ranks that hold the same"
            )
        chosen = group_of(models, group)
        with in_a_sentence("check_replicas"):
            check_same_tensors("check_replicas", list(model.named_parameters()), repair, chosen)


def check_same_tensors(
    where: str, named: Sequence[tuple[str, torch.Tensor]], repair: str, group: dist.ProcessGroup | None = None
) -> None:
    """Compare checksums of some tensors between all ranks of a group (default all); every one of them must call it.

    Raises:
        BinsgdmError: on every rank, beginning with `where`, if any differs.
    """
    ranks = ranks_in_order(group)
    if len(ranks) == 1:
        return
    kinds = {name: (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named}
    # One number for all kinds first: ranks that have other tensors would wait for more bytes than come.
    kind = int.from_bytes(hashlib.sha256(repr(kinds).encode()).digest()[:8], "little", signed=True)
    device = named[0][1].device if named else torch.device("cpu")
    if is_nccl(group, device) or not backend_of(group, device):
        meet(where, group)
    found = _of_all(torch.tensor([kind], device=device), group)
    if any(one != found[0] for one in found):
        check_same_settings(where, {f"shape and dtype of {name}": kind for name, kind in kinds.items()}, None, group)
    if not named:
        return
    by_rank = _of_all(torch.stack([_checksum(parameter.detach()) for _, parameter in named]), group)
    for index, (name, _) in enumerate(named):
        other = [rank for rank, sums in zip(ranks, by_rank, strict=True) if sums[index] != by_rank[0][index]]
        if other:
            raise BinsgdmError(
                f"{where}: {name}: ranks {other} differ from rank {ranks[0]}: parameters must be equal to the bit; "
                f"{repair}"
            )


def checksum_of(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return one int64 number (1) over the bits of all elements of some tensors, on their device; at least one."""
    sums = torch.stack([_checksum(one.detach()) for one in tensors]).view(-1)
    weights = torch.arange(1, 2 * sums.numel(), 2, device=sums.device)  # odd: none loses a bit
    return (sums * weights).sum().view(1)


def _of_all(mine: torch.Tensor, group: dist.ProcessGroup | None) -> list[Any]:
    """Return what every rank has, as lists."""
    if not backend_of(group, mine.device):  # parameters on the CPU, and NCCL alone
        mine = mine.to("cuda")
    theirs = [torch.empty_like(mine) for _ in ranks_in_order(group)]
    dist.all_gather(theirs, mine, group=group)
    found: list[Any] = torch.stack(theirs).tolist()  # all at once: from a GPU every read is a wait
    return found


def _checksum(values: torch.Tensor) -> torch.Tensor:
    """Return two int64 checksums over the bits of all elements, the same on all devices of a kind."""
    widths = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
    if hasattr(values, "to_local"):  # a DTensor
        values = values.to_local()
    # Of the bits, not the values: NaN equals NaN, and 0 differs from -0.
    bits = values.reshape(-1).contiguous().view(widths[values.element_size()])
    if bits.is_cpu:
        # zlib reads about a GB/s, many times what the sums below do, which a GPU is fast at.
        data = bits.numpy().data
        return torch.tensor([zlib.crc32(data), zlib.adler32(data)], dtype=torch.int64, device="cpu")
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
        BinsgdmError: on every rank, if any refused (`refused` itself on such a rank) or differs from the first.
    """
    # A rank with an error takes part as well and sends the reason: if it raised here, the others would wait for it.
    all_of_them: list[Any] = [None] * dist.get_world_size(group)
    if "gloo" not in backend_of(group, torch.device("cpu")):  # objects travel over NCCL, which would wait for ever
        meet(where, group)
    # Those of a rank that refuses are not compared, and may be anything.
    mine = (dict(settings), None) if refused is None else ({}, str(refused))
    # Without set_device all ranks of a node have the first GPU as the current one, which NCCL refuses.
    with torch.cuda.device(device if device is not None and device.type == "cuda" else -1):
        dist.all_gather_object(all_of_them, mine, group=group)
    if refused is not None:
        raise refused
    ranks = ranks_in_order(group)
    for rank, (_, reason) in zip(ranks, all_of_them, strict=True):
        if reason is not None:
            raise BinsgdmError(f"{where}: rank {rank} refused: {reason}")
    _compare_settings(where, ranks, [theirs for theirs, _ in all_of_them])


def _compare_settings(where: str, ranks: Sequence[int], all_of_them: Sequence[Mapping[str, Any]]) -> None:
    first = all_of_them[0]
    for rank, theirs in zip(ranks, all_of_them, strict=True):
        for name in dict.fromkeys([*first, *theirs]):
            if first.get(name) != theirs.get(name):
                raise BinsgdmError(
                    f"{where}: {name} of rank {rank}: {theirs.get(name)!r}: must equal rank {ranks[0]}'s "
                    f"{first.get(name)!r}"
                )


def comparable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ranks have alike as `check_same_settings` takes it: checksums in the place of tensors by name."""
    return {name: checksums(value) if name == "factors" else value for name, value in values.items()}


def checksums(tensors: Mapping[Any, torch.Tensor]) -> list[tuple[str, tuple[int, ...], list[int]]]:
    """Return names, shapes and checksums of some tensors, for `check_same_settings`."""
    if not tensors:
        return []
    sums = torch.stack([_checksum(one) for one in tensors.values()]).tolist()  # one read from the GPU, not one each
    return [(str(name), tuple(one.shape), found) for (name, one), found in zip(tensors.items(), sums, strict=True)]
