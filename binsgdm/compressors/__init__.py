"""The compressing systems of the field under one interface; `binsgdm.SYSTEMS` names them all.

The names here are what the author of a system needs: its base class, what a payload and the shapes of a bucket are.
"""

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
