"""The compressing systems of the field under one interface; `binsgdm.SYSTEMS` names them all.

The names here are what the author of a system needs: its base class, what a payload and the shapes of a bucket are.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from binsgdm.compressors.base import Payload, ProtocolSystem, Shapes, check_payload, numel_of
    from binsgdm.compressors.compressor import CheckedCompressor, CompressorSystem
    from binsgdm.kernels.keys import Key

__all__ = [
    "CheckedCompressor",
    "CompressorSystem",
    "Key",
    "Payload",
    "ProtocolSystem",
    "Shapes",
    "check_payload",
    "numel_of",
]

# Loaded on first use, since most of them need torch.
_HOMES = {
    "CheckedCompressor": "binsgdm.compressors.compressor",
    "CompressorSystem": "binsgdm.compressors.compressor",
    "Key": "binsgdm.kernels.keys",
    "Payload": "binsgdm.compressors.base",
    "ProtocolSystem": "binsgdm.compressors.base",
    "Shapes": "binsgdm.compressors.base",
    "check_payload": "binsgdm.compressors.base",
    "numel_of": "binsgdm.compressors.base",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'binsgdm.compressors' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
