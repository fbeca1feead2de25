"""Check that all ranks hold the same parameters, bit for bit."""

import torch
import torch.distributed as dist

from binsgdm.errors import BinsgdmError

_MODULUS = 65521
"""The largest prime below 2^16, as in Adler-32."""


def check_replicas(model: torch.nn.Module) -> None:
    """Compare checksums of every parameter between all ranks; every rank must call it. Buffers are not compared.

    It moves 16 bytes a parameter, so it is cheap enough for every few hundred steps.

    Raises:
        BinsgdmError: on every rank, with the first parameter that differs and the ranks that differ from rank 0.
    """
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    named = list(model.named_parameters())
    if not named:
        return
    mine = torch.stack([_checksum(parameter.detach()) for _, parameter in named])
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, mine)
    for place, (name, _) in enumerate(named):
        other = [rank for rank, sums in enumerate(theirs) if not torch.equal(sums[place], theirs[0][place])]
        if other:
            raise BinsgdmError(
                f"check_replicas: {name}: ranks {other} differ from rank 0: parameters must be equal to the bit; look "
                "for a rank-dependent change outside the optimizer"
            )


def _checksum(values: torch.Tensor) -> torch.Tensor:
    """Return two sums over the bits of all elements, the second weighted by position."""
    widths = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = values.reshape(-1).contiguous().view(widths[values.element_size()]).to(torch.int64)
    weights = torch.arange(1, bits.numel() + 1, device=bits.device) % _MODULUS
    return torch.stack([bits.sum(), (bits * weights).sum()])
