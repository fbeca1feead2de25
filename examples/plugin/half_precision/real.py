"""The real one, for DDP's communication hook: compress_gradients(model, "half_precision")."""

from dataclasses import dataclass

import torch

from binsgdm.compressors import CompressorSystem, Key, Payload, Shapes, check_payload, numel_of

BYTES_PER_ELEMENT = 2


@dataclass(frozen=True, kw_only=True)
class HalfPrecision(CompressorSystem):
    """Gradients in fp16, clipped to what it holds, with error feedback."""

    largest: float = 65504.0

    name = "half_precision"
    title = "Half precision"
    source = "Micikevicius et al., ICLR 2018"
    wire_format = "gradients in fp16"
    is_unbiased = False
    has_feedback = True

    def compress(self, values: torch.Tensor, shapes: Shapes, key: Key) -> Payload:  # noqa: ARG002
        """Return the codes of one rank."""
        return Payload(tensors=(values.clamp(-self.largest, self.largest).half(),))

    def decompress(self, payload: Payload, shapes: Shapes, key: Key) -> torch.Tensor:  # noqa: ARG002
        """Return what a rank's codes stand for."""
        check_payload(self.name, payload, ((torch.float16, numel_of(shapes)),))
        return payload.tensors[0].float()

    def num_bytes(self, shapes: Shapes) -> int:
        """Return the bytes that travel from one rank."""
        return BYTES_PER_ELEMENT * numel_of(shapes)
