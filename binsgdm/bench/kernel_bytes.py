"""The bytes that each measured kernel must move at least, with fp32 gradients and parameters; and which are slow."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

# Per element of all vectors together, from the number of vectors.
_OF_VECTORS: dict[str, Callable[[int], float]] = {
    "merge": lambda vectors: (1 + 1 / vectors) / 8,  # read one bit; write one for all
    "merge_shaped_": lambda vectors: (1 + (1 + 32) / vectors) / 8,  # and read and write a residual of 16 bits for all
    "server_mean": lambda vectors: (1 + 1 / vectors) / 8,
    "mean_": lambda vectors: 4 + 4 / vectors,
}
_PARTS = ("encode", "merge", "decode")
# Bytes of encode, merge and decode; 0: there is no such kernel, or bytes tell too little of its time.
_OF_SYSTEMS: dict[str, tuple[float, float, float]] = {
    "one_bit_sgd": (20.125, 0, 8.125),
    "sign_sgd": (4.125, 0.25, 4.125),
    "ef_sign_sgd": (20.125, 0, 8.125),
    "terngrad": (8.2, 0, 8.2),
    "qsgd": (8.5, 0, 8.5),
    "qsgd_inf": (8.5, 0, 8.5),
    "nuqsgd": (8.5, 0, 8.5),
    "byte_grad": (9.0, 0, 9.0),
    "marsit": (20.125, 0.375, 4.125),
    "power_sgd": (12.0, 0, 12.0),
    "grad_zip": (0, 0, 12.0),
    "atomo": (0, 0, 8.0),
    "top_k": (0, 0, 16.0),
    "ms_top_k": (136.0, 0, 16.0),
    "random_k": (0, 0, 4.0),
}
# Systems whose payloads of pieces are decoded, added up and encoded again, with the part of a piece that is decoded.
_MERGED = dict.fromkeys(("one_bit_sgd", "ef_sign_sgd", "terngrad", "qsgd", "qsgd_inf", "nuqsgd", "byte_grad"), 1.0) | {
    "ms_top_k": 0.01
}
_OTHERS: dict[str, float] = {
    "copy": 8.0,
    "gather": 8.0,
    "adamw": 28.0,  # read g, m, v, x; write m, v, x
    "cast_fp32_bf16": 6.0,
    "cast_bf16_fp32": 6.0,
    "update_": 24.0,
    "update_quantize_pack_": 20.125,
    "quantize_pack": 4.125,
    "update_shape_pack_": 24.125,  # also read and write a residual of 2 bytes
    "shape_pack_": 8.125,
    "unpack_apply_": 8.125,
    "momentum": 12.0,
    "compress": 20.125,
    "server_residual": 12.125,
    "decompress": 4.125,
    "adam_update": 16.0,
}
_FIXED = _OTHERS | {
    f"{system}_{part}": moved
    for system, parts in _OF_SYSTEMS.items()
    for part, moved in zip(_PARTS, parts, strict=True)
    if moved
}
NAMES = frozenset(_FIXED) | frozenset(_OF_VECTORS) | {f"{system}_merge" for system in _MERGED}


def bytes_per_element(name: str, num_vectors: int = 1) -> float | None:
    """Return the bytes per element of all vectors; None for a kernel whose bytes tell too little of its time.

    The same as those of simnet's kernels, in which every vector writes its own; a test compares the two.

    Example:
        >>> bytes_per_element("copy"), bytes_per_element("mean_", 8), bytes_per_element("top_k_encode")
        (8.0, 4.5, None)
    """
    if name in _OF_VECTORS:
        return _OF_VECTORS[name](num_vectors)
    if (system := name.removesuffix("_merge")) in _MERGED and name != system:
        encode, _, decode = _OF_SYSTEMS[system]
        return decode * _MERGED[system] + encode / num_vectors
    return _FIXED.get(name)


TARGET, TARGET_NUMEL = 1.3, 2**22
"""From so many elements on, a kernel is meant to take at most so many times its bytes over the bandwidth of a copy."""
# Kernels of 1-bit Adam in their order, the project's own as those of BinSGDM, whatever they are made with.
OF_ONE_BIT_ADAM = ("momentum", "compress", "server_mean", "server_residual", "decompress", "adam_update")


def slow_notes(series: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the bandwidth of a copy, and each kernel that misses the target, at the size where it does worst.

    The project's own kernels come first, the worst of them before the others; then what plain torch does in systems.
    """
    kernels = [row for row in series if row["kind"] == "kernel"]
    copies = [
        _FIXED["copy"] * row["labels"]["num_elements"] / median(row["values"])
        for row in kernels
        if row["name"] == "copy"
    ]
    if not copies:
        return
    bandwidth = max(copies)
    yield f"copy: {bandwidth / 1e9:,.0f} GB/s read and written, the fastest size"
    ratios: dict[tuple[str, str, int], list[tuple[float, int, float]]] = {}  # with all elements, and the median
    for row in kernels:
        name, labels, vectors = row["name"], row["labels"], row["labels"].get("num_vectors", 1)
        moved, numel = bytes_per_element(name, vectors), labels["num_elements"] * vectors
        if moved is not None and labels["dtype"] in {"float32", "uint8"} and numel >= TARGET_NUMEL:
            seconds = median(row["values"])
            measured = (seconds * bandwidth / (moved * numel), numel, seconds)
            ratios.setdefault((name, labels["kernels"], vectors), []).append(measured)
    worst = {key: max(measured) for key, measured in ratios.items() if max(measured)[0] > TARGET}
    if ratios and not worst:
        yield f"no kernel takes more than {TARGET} times its bytes / bandwidth from {TARGET_NUMEL:,} elements on"

    def place(key: tuple[str, str, int]) -> tuple[bool, float]:
        name, made_with, _ = key
        return made_with == "torch" and name not in OF_ONE_BIT_ADAM, -worst[key][0]

    for name, made_with, vectors in sorted(worst, key=place):
        ratio, numel, seconds = worst[name, made_with, vectors]
        in_vectors = f" in {vectors} vectors" if vectors > 1 else ""
        yield (
            f"{name} ({made_with}): {ratio:.2f} times its bytes / bandwidth at {numel:,} elements{in_vectors}: "
            f"{seconds * 1e6:,.1f} us"
        )
