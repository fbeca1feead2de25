"""The two-sided error-feedback 1-bit average of 1-bit Adam, as a protocol.

Every rank cuts its vector into one chunk a rank, sends each as one scale and one bit an element to the rank that owns
it, and keeps what that lost (the worker residual). The owner averages what it got, sends the average on in the same
form to all ranks, and keeps what that lost (the server residual). A chunk's scale travels in front of its bits, so that
there are two collectives and no more.

Shape letters: N elements with padding, a multiple of 8 x world size; W chunks of N / W elements, one a rank.

Source: Tang, Gan, Awan, Rajbhandari, Li, Lian, Liu, Zhang and He, "1-bit Adam: communication efficient large-scale
training with Adam's convergence speed", ICML 2021, the compression stage.
Differs: the scale is the mean absolute value of the elements, of each chunk: ||v - C(v)||^2 = (1 - delta) ||v||^2 with
delta = ||v||_1^2 / (n ||v||_2^2) >= 1 / n, so that C contracts whatever v is. The paper keeps the magnitude, and
DeepSpeed takes ||v||_2 / sqrt(n) of the whole vector, which does not contract where ||v||_1 < sqrt(n) ||v||_2 / 2; it
sends the scales in collectives of their own (four in all), one vector a parameter where parameters are fp32, and counts
padding in the scale. Elements that all ranks know to be 0 can be left out here (`valid`); DeepSpeed needs a mask made
by hand. The hierarchical variant is this project's own.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

import torch

from binsgdm.comm import AllGather, AllToAll, GroupName, Message, Protocol, RankContext
from binsgdm.comm.flat_buckets import BITS_PER_BYTE
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.bits import pack_signs, unpack_signs
from binsgdm.kernels.functional import divided
from binsgdm.kernels.profiler_stages import staged

Topology = Literal["flat", "hierarchical"]
SCALE_BYTES = 4  # one fp32 in front of the bits of a chunk


@dataclass(frozen=True, kw_only=True)
class MomentumResiduals:
    """What a rank's compressions lost so far, fp32; changed in place by every exchange.

    Attributes:
        worker: of what this rank sent: (N,) if flat, (N / ranks per node,) if hierarchical.
        server: of the average of the chunk that it owns: (N / world size,).
    """

    worker: torch.Tensor
    server: torch.Tensor

    @classmethod
    def zeros(
        cls, numel: int, context: RankContext, topology: Topology, device: torch.device | str = "cpu"
    ) -> "MomentumResiduals":
        """Return those of a rank before its first exchange of `numel` elements, padding included."""
        return cls(
            worker=torch.zeros(_worker_numel(numel, context, topology), device=device),
            server=torch.zeros(numel // context.world_size, device=device),
        )


def padded_numel(numel: int, world_size: int) -> int:
    """Return the elements with padding: whole bytes for every rank, at least one.

    Example:
        >>> padded_numel(33, 4), padded_numel(0, 4)
        (64, 32)
    """
    unit = BITS_PER_BYTE * world_size
    return max(1, -(-numel // unit)) * unit


def row_bytes(numel: int) -> int:
    """Return the bytes of a chunk of `numel` elements on the wire."""
    return SCALE_BYTES + numel // BITS_PER_BYTE


def encode(chunks: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """Return each chunk as a scale and its signs.

    Args:
        chunks: fp32, n a multiple of 8. The sign of 0 is +1. A value that is not finite makes its chunk's scale so, and
            with it the whole chunk, once decoded, on every rank alike.
        valid: which elements count for the scale; the others must be 0.

    Returns:
        uint8: an fp32 scale, the mean absolute value of the valid elements (0 if there is none), then packed signs.

    Shape:
        chunks, valid: (W, n); returned: (W, 4 + n / 8).
    """
    counts = valid.sum(dim=1).clamp_(min=1)
    # fp64: an fp32 sum of millions of magnitudes loses the small ones, and every element of the chunk gets this scale.
    norms = torch.linalg.vector_norm(chunks, ord=1, dim=1, dtype=torch.float64)
    scales = (norms / counts).to(torch.float32).view(-1, 1)
    signs = pack_signs((chunks >= 0).view(-1)).view(chunks.shape[0], -1)
    # The scale's bytes in front of the bits: one message a chunk, in place of a second collective for the scales.
    return torch.cat([scales.view(torch.uint8), signs], dim=1)


@staged("decode")
def decode(rows: torch.Tensor) -> torch.Tensor:
    """Return what `encode` made: every element plus or minus its chunk's scale.

    Shape:
        rows: (W, 4 + n / 8) uint8; returned: (W, n) fp32.
    """
    if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] < SCALE_BYTES:
        raise BinsgdmError(
            f"one_bit_momentum: rows of {rows.dtype} and shape {tuple(rows.shape)}: must be uint8, a row a chunk, each "
            f"of {SCALE_BYTES} bytes or more; encode with the same version"
        )
    scales = rows[:, :SCALE_BYTES].reshape(-1).clone().view(torch.float32).view(-1, 1)
    packed = rows[:, SCALE_BYTES:].reshape(-1)
    return unpack_signs(packed, packed.numel() * BITS_PER_BYTE).view(rows.shape[0], -1) * scales


def one_bit_momentum(
    values: torch.Tensor, residuals: MomentumResiduals, context: RankContext, valid: torch.Tensor | None = None
) -> Protocol:
    """Average over all ranks with one bit an element each way; mean of (values + worker) + server is preserved.

    Args:
        values: this rank's, fp32; not changed.
        residuals: of this rank, flat; changed in place.
        context: this rank.
        valid: elements that take part, the same on all ranks; default all. The others come back as 0, weigh on no
            scale and keep their residuals.

    Returns:
        The average that every rank applies, the same to the bit on all; plus or minus its scale in each chunk.

    Shape:
        values, valid, returned: (N,).

    Raises:
        BinsgdmError: values or residuals of another dtype or size, or not padded.
    """
    valid = _checked(values, residuals, context, valid, "flat")
    rows = yield from _averaged(values, residuals, "world", context.rank, valid)
    return decode(rows).view(-1).masked_fill_(~valid, 0.0)


def hierarchical_one_bit_momentum(
    values: torch.Tensor, residuals: MomentumResiduals, context: RankContext, valid: torch.Tensor | None = None
) -> Protocol:
    """Average in the node in fp32, between nodes with one bit an element; then gather the bits in the node.

    Each local rank has one slice of the node's mean and exchanges it with the same local rank of the other nodes, so
    that the residuals of a node exist once, spread over its ranks.

    Args:
        values: as in `one_bit_momentum`.
        residuals: of this rank, hierarchical; changed in place.
        context: as in `one_bit_momentum`.
        valid: as in `one_bit_momentum`.

    Returns:
        As `one_bit_momentum`.

    Shape:
        values, valid, returned: (N,).
    """
    valid = _checked(values, residuals, context, valid, "hierarchical")
    received = yield AllToAll(group="intra_node", sent=values.view(context.ranks_per_node, -1))
    mean = received[0].clone()
    for row in received[1:]:
        mean += row
    divided(mean, context.ranks_per_node, out=mean)
    valid_in_slice = valid.view(context.ranks_per_node, -1)[context.local_rank]
    rows = yield from _averaged(mean, residuals, "inter_node", context.node, valid_in_slice)
    whole = yield AllGather(group="intra_node", sent=rows)
    return decode(whole.reshape(context.world_size, -1)).view(-1).masked_fill_(~valid, 0.0)


def sent_bytes(numel: int, context: RankContext, topology: Topology) -> dict[GroupName, int]:
    """Return the bytes of the tensors that a rank gives to the collectives of one exchange, by group."""
    row = row_bytes(numel // context.world_size)
    if topology == "flat":
        return {"world": (context.world_size + 1) * row}
    between = (context.num_nodes + 1) * row
    return {"intra_node": numel * 4 + context.num_nodes * row, "inter_node": between}


def _averaged(
    values: torch.Tensor, residuals: MomentumResiduals, group: GroupName, position: int, valid: torch.Tensor
) -> Generator[Message, torch.Tensor, torch.Tensor]:
    """Return the encoded average, one row a chunk, and renew both residuals."""
    size = values.numel() // residuals.server.numel()
    own = valid.view(size, -1)[position]
    # Worker side: rank k gets chunk k of all ranks, so each rank averages a part of the vector, as in a reduce-scatter.
    received = yield AllToAll(group=group, sent=encode_and_keep(values, residuals.worker, valid, size))
    decoded = decode(received)
    mean = divided(decoded.sum(dim=0), decoded.shape[0]).masked_fill_(~own, 0.0)
    # Server side: the mean is quantized again for the way back. What this loses belongs to the chunk, so its owner
    # keeps it.
    row = encode_and_keep(mean, residuals.server, own, 1)
    rows = yield AllGather(group=group, sent=row.view(-1))
    return rows


@staged("encode")
def encode_and_keep(values: torch.Tensor, residual: torch.Tensor, valid: torch.Tensor, chunks: int) -> torch.Tensor:
    """Return the sum of values and residual, encoded in `chunks` chunks; put what encoding loses into the residual."""
    # Error feedback: what an exchange loses is added to the next one, so over many steps nothing is lost.
    compensated = (values + residual).masked_fill_(~valid, 0.0)
    rows = encode(compensated.view(chunks, -1), valid.view(chunks, -1))
    torch.where(valid, compensated - decode(rows).view(-1), residual, out=residual)
    return rows


def _worker_numel(numel: int, context: RankContext, topology: Topology) -> int:
    return numel if topology == "flat" else numel // context.ranks_per_node


def _checked(
    values: torch.Tensor,
    residuals: MomentumResiduals,
    context: RankContext,
    valid: torch.Tensor | None,
    topology: Topology,
) -> torch.Tensor:
    """Return which elements are valid, or refuse what does not fit together."""
    if (
        values.dim() != 1
        or values.dtype != torch.float32
        or values.numel() != padded_numel(values.numel(), context.world_size)
    ):
        raise BinsgdmError(
            f"one_bit_momentum: {values.dtype} of shape {tuple(values.shape)}: must be flat float32, a multiple of "
            f"{BITS_PER_BYTE * context.world_size} elements; pad it to padded_numel"
        )
    wanted = _worker_numel(values.numel(), context, topology), values.numel() // context.world_size
    found = residuals.worker.numel(), residuals.server.numel()
    if found != wanted:
        raise BinsgdmError(
            f"one_bit_momentum: residuals of {found} elements: must be {wanted} for rank {context.rank} of "
            f"{context.world_size}, {topology}; begin with MomentumResiduals.zeros"
        )
    if valid is None:
        return torch.ones_like(values, dtype=torch.bool)
    if valid.dtype != torch.bool or valid.shape != values.shape:
        raise BinsgdmError(
            f"one_bit_momentum: valid of {valid.dtype} and shape {tuple(valid.shape)}: must be bool of shape "
            f"{tuple(values.shape)}; leave it out if all elements take part"
        )
    return valid
