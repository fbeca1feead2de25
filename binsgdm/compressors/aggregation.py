"""Aggregations: from the payload of each rank to the mean on all ranks, by an all-gather or by an all-reduce."""

from collections.abc import Callable, Generator

import torch

from binsgdm.comm import AllGather, AllReduceSum, Message, Protocol, RankContext
from binsgdm.compressors.base import Compressor, Payload, Shapes
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.functional import divided
from binsgdm.kernels.profiler_stages import stage
from binsgdm.kernels.random import Key, RandomStream

# From this rank's payload (and its decompressed values, if they are known) to the mean of all ranks' decompressed
# values.
Aggregation = Callable[[Compressor, Payload, Shapes, RankContext, torch.Tensor | None], Protocol]
LENGTH_DTYPE = torch.int64


def key_of(compressor: Compressor, context: RankContext) -> Key:
    """Return the key that a rank compresses with."""
    return context.common_key if compressor.uses_common_key else context.key(RandomStream.LOCAL)


def gather_payloads(
    compressor: Compressor,
    payload: Payload,
    shapes: Shapes,
    context: RankContext,
    delivered: torch.Tensor | None = None,
) -> Protocol:
    """Gather every rank's payload, decompress all, and average them in the order of ranks.

    Payloads whose length depends on the values are preceded by a gather of lengths, and padded to the longest. This
    rank's own payload is not decompressed again if its values are known already (`delivered`, which is not changed).
    """
    # Compressed values of different ranks cannot be added before decoding, so every rank receives and decodes all
    # payloads: bytes and decoding grow with the number of ranks, unlike those of an all-reduce.
    sent = as_bytes(payload)
    lengths = [sent.numel()] * context.world_size
    depends_on_values = compressor.num_bytes(shapes) is None
    if depends_on_values:
        lengths = yield from _gather_lengths(sent)
        sent = torch.nn.functional.pad(sent, (0, max(lengths) - sent.numel()))
    # The host reads what it needs to decode a payload of unknown length.
    received = yield AllGather(group="world", sent=sent, is_read_by_host=depends_on_values)
    total: torch.Tensor | None = None
    # All ranks add up in the same order, so all get the same bits, which an fp32 sum in another order would not give.
    for rank, (row, length) in enumerate(zip(received, lengths, strict=True)):
        key = context.common_key if compressor.uses_common_key else context.key_of(rank, RandomStream.LOCAL)
        if rank == context.rank and delivered is not None:
            # A copy where the sum starts: error feedback still needs the values.
            values = delivered.clone() if total is None else delivered
        else:
            with stage("decode"):
                values = compressor.decompress(from_bytes(row[:length], payload), shapes, key)
        total = values if total is None else total.add_(values)
    if total is None:
        raise AssertionError("no rank sent a payload")
    return divided(total, context.world_size, out=total)


def all_reduce_payloads(
    compressor: Compressor,
    payload: Payload,
    shapes: Shapes,
    context: RankContext,
    _delivered: torch.Tensor | None = None,
) -> Protocol:
    """Average payloads of fp32 values that stand for the same indices on all ranks, and decompress the mean.

    As many bytes leave a rank as in a ring all-reduce of one payload, however many ranks there are.

    Raises:
        BinsgdmError: a payload that is not one fp32 tensor, or not drawn alike on all ranks.
    """
    if [tensor.dtype for tensor in payload.tensors] != [torch.float32] or not compressor.uses_common_key:
        raise BinsgdmError(
            f"{compressor.name}: its payloads cannot be added up: must be one fp32 tensor of values at indices common "
            "to all ranks; use gather_payloads"
        )
    mean = yield from all_reduce_mean(payload.tensors[0], context)
    with stage("decode"):
        return compressor.decompress(Payload(tensors=(mean,)), shapes, context.common_key)


def all_reduce_mean(values: torch.Tensor, context: RankContext) -> Protocol:
    """Average flat fp32 values of all ranks by the backend's own all-reduce, which gives all ranks the same bits.

    The order of the sum is the backend's: another backend, or all ranks in one process, may round otherwise.
    """
    total = yield AllReduceSum(group="world", sent=values)
    return divided(total, context.world_size)


def as_bytes(payload: Payload) -> torch.Tensor:
    """Return all tensors of a payload as one flat uint8 tensor."""
    return torch.cat([tensor.contiguous().view(torch.uint8).reshape(-1) for tensor in payload.tensors])


def from_bytes(data: torch.Tensor, like: Payload) -> Payload:
    """Return a payload from the bytes of another rank's, with the same tensors; the last one takes what is left."""
    tensors, offset = [], 0
    for number, tensor in enumerate(like.tensors):
        # The lengths of all tensors but the last follow from the shapes; only the last one may depend on the values.
        is_last = number == len(like.tensors) - 1
        length = data.numel() - offset if is_last else tensor.numel() * tensor.element_size()
        tensors.append(data[offset : offset + length].clone().view(tensor.dtype))
        offset += length
    return Payload(tensors=tuple(tensors))


def _gather_lengths(sent: torch.Tensor) -> Generator[Message, torch.Tensor, list[int]]:
    length = torch.full((1,), sent.numel(), dtype=LENGTH_DTYPE, device=sent.device)
    lengths = yield AllGather(group="world", sent=length, is_read_by_host=True)
    return [int(one) for one in lengths.reshape(-1).tolist()]
