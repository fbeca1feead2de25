"""Seconds of the kernels around communication: measured where the calibration has them, else by the bytes they move.

The bytes are what a fused kernel must read and write at least, per element; the time is then an estimate from below.
"""

from collections.abc import Mapping

from simnet.errors import SimnetError, nearest
from simnet.hardware import Calibration, KernelTime
from simnet.options import Options, value_text

COMPRESSING_BYTES: dict[str, tuple[float, float, float]] = {
    # encode: g, and the residual where there is one, read once for what they share (norm, mean, threshold) and once for
    # the codes; the residual written. Decode, per element of each payload: the code, and the sum read and written.
    "one_bit_sgd": (20.125, 0.0, 8.125),
    "sign_sgd": (4.125, 0.25, 4.125),
    "ef_sign_sgd": (20.125, 0.0, 8.125),
    "terngrad": (8.2, 0.0, 8.2),
    "qsgd": (8.5, 0.0, 8.5),
    "qsgd_inf": (8.5, 0.0, 8.5),
    "nuqsgd": (8.5, 0.0, 8.5),
    "marsit": (20.125, 0.375, 4.125),
    "power_sgd": (12.0, 4.0, 12.0),  # M Q reads g and residual, writes M; M^T P reads M; P Q^T twice, residual written
    "grad_zip": (12.0, 0.0, 12.0),
    "atomo": (4.0, 0.0, 8.0),  # as if the decomposition were one read: far from what it takes
    "top_k": (20.0, 0.0, 16.0),  # decode: of what was kept
    "ms_top_k": (136.0, 0.0, 16.0),  # 31 counts read all
    "random_k": (12.0, 0.0, 4.0),
}
"""Bytes moved per element before the first message, between messages and after the last, with the default options."""

BYTES_MOVED: dict[str, float] = {
    "cast": 6.0,  # fp32 <-> fp16 or bf16: read 4, write 2 (or the reverse)
    "binsgdm_update": 24.0,  # read g, m, b; write m, b and u = m / b
    "binsgdm_update_quantize": 20.125,  # read g, m, b; write m, b and one bit
    "gather_gradients": 8.0,  # read g, write it into the bucket
    "mean": 4.5,  # per element received: read 4, write 4 for each node's worth (here 8 ranks)
    "quantize": 4.125,  # read u, write one bit
    "merge": 0.25,  # per sign received: read one bit, write at most one bit
    "binsgdm_apply": 8.125,  # read one bit and x, write x
    "momentum": 12.0,  # read g, m; write m
    "compress": 20.125,  # read m and the residual twice (scale, then sign); write the residual and one bit
    "server_residual": 12.125,  # read the mean and the residual; write the residual and one bit
    "decompress": 4.125,  # read one bit, write the momentum
    "adam_update": 16.0,  # read m, v, x; write x
    **{f"{name}_encode": moved for name, (moved, _, _) in COMPRESSING_BYTES.items()},
    **{f"{name}_merge": moved for name, (_, moved, _) in COMPRESSING_BYTES.items() if moved},
    **{f"{name}_decode": moved for name, (_, _, moved) in COMPRESSING_BYTES.items()},
}
"""Bytes read and written per element, fp32 state. Source: counted from the algorithms (docs/model.md)."""

STANDS_FOR = {"server_mean": "merge"}
"""Kernels that, where they have no time of their own, take that of another: 1-bit Adam's mean of all ranks' signs, for
which fused code needs what `merge` does."""

OPTIMIZER_BYTES: dict[str, float] = {
    "adam": 28.0,  # read g, m, v, x; write m, v, x
    "sgd_momentum": 20.0,  # read g, m, x; write m, x
}


UNESTIMATED = frozenset({"atomo_encode", "top_k_encode", "random_k_encode", "power_sgd_merge", "grad_zip_encode"})
"""Kernels whose bytes tell too little of their times, so that what these decide must be measured: a decomposition into
singular values; a selection of the k largest (Random-k: of numbers drawn for all elements); making columns orthogonal,
one after the other, on which PowerSGD spends most (pytorch/pytorch#65813)."""

STREAMING = frozenset({"cast"})
"""Kernels that only stream memory, to which `codec_efficiency` does not apply."""


def check(calibration: Calibration) -> None:
    """Refuse times of kernels that no strategy has.

    Raises:
        SimnetError: an unknown name.
    """
    known = [*BYTES_MOVED, *STANDS_FOR]
    for name in calibration.kernels:
        if name not in known:
            raise SimnetError(
                f"calibration {calibration.name!r}: kernels: {name!r}: unknown kernel.{nearest(name, known)}"
            )


def knows(calibration: Calibration, name: str) -> bool:
    """Tell whether the calibration gives a kernel a time; if not it is free, and the result says so."""
    return calibration.memory_bytes_per_s is not None or _timed(calibration, name) is not None


def _timed(calibration: Calibration, name: str) -> KernelTime | None:
    return calibration.kernels.get(name) or calibration.kernels.get(STANDS_FOR.get(name, name))


def other_options(calibration: Calibration, name: str, options: Mapping[str, object]) -> str:
    """Return how a kernel's timed options differ from these, "bits=4, not bits=8"; empty where none of these does."""
    timed = _timed(calibration, name)
    there = timed.options if timed is not None else Options()
    wrong = {key: value for key, value in there.items() if options.get(key) not in (None, value)}
    return "; ".join(f"{key}={value_text(value)}, not {key}={value_text(options[key])}" for key, value in wrong.items())


def is_estimated(calibration: Calibration, name: str) -> bool:
    """Tell whether a kernel has a time that is worth the name, measured or by its bytes."""
    return is_timed(calibration, name) or (calibration.memory_bytes_per_s is not None and name not in UNESTIMATED)


def is_timed(calibration: Calibration, name: str) -> bool:
    """Tell whether a kernel has a measured time, its own or that of one that it `STANDS_FOR`."""
    return _timed(calibration, name) is not None


def kernel_s(calibration: Calibration, name: str, num_elements: float) -> float:
    """Return the time of one kernel over `num_elements` [s]."""
    timed = _timed(calibration, name)
    if timed is not None:
        return timed.seconds(num_elements)
    if calibration.memory_bytes_per_s is None or num_elements <= 0:
        return 0.0
    efficiency = 1.0 if name in STREAMING else calibration.codec_efficiency
    bytes_per_s = calibration.memory_bytes_per_s * efficiency
    return float(calibration.kernel_launch_s) + BYTES_MOVED[STANDS_FOR.get(name, name)] * num_elements / bytes_per_s


def optimizer_s(calibration: Calibration, optimizer: str, num_elements: float) -> float:
    """Return the time of a fused dense optimizer over all parameters [s], 0 without a memory bandwidth."""
    if calibration.memory_bytes_per_s is None:
        return 0.0
    return OPTIMIZER_BYTES[optimizer] * num_elements / calibration.memory_bytes_per_s
