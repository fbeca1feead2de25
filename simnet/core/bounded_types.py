"""Bounded numbers and closed choices that several nouns of a scenario share."""

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    FloatArray = NDArray[np.float64]
    IntArray = NDArray[np.intp]
    BoolArray = NDArray[np.bool_]

Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Elements = Annotated[int, Meta(ge=1, le=10**13)]
Shape = Annotated[tuple[Count, ...], Meta(max_length=8)]
Factor = Annotated[float, Meta(ge=1.0, le=1000.0)]
Fraction = Annotated[float, Meta(ge=1e-6, le=1.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
MAX_SPREAD = 1000.0
Spread = Annotated[float, Meta(gt=0.0, le=MAX_SPREAD)]
Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
"""Number formats in which GPUs multiply matrices."""
Dtype = Literal["fp32", "fp16", "bf16"]
Intervals = dict[str, tuple[Spread, Spread]]
"""90 % intervals as factors on a value, by its dotted key."""
Kind = Literal["measured", "published", "derived", "estimate", "ideal"]

BYTES_PER_ELEMENT: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
MAX_RANKS = 1_000_000
