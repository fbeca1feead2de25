"""Seconds of the kernels around communication: measured where the calibration has them, else by the bytes they move.

The bytes are what a fused kernel must read and write at least, per element; the time is then an estimate from below.
"""

from simnet.errors import SimnetError, nearest
from simnet.spec import Calibration

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
}
"""Bytes read and written per element, fp32 state. Source: counted from the algorithms (docs/model.md)."""

OPTIMIZER_BYTES: dict[str, float] = {
    "adam": 28.0,  # read g, m, v, x; write m, v, x
    "sgd_momentum": 20.0,  # read g, m, x; write m, x
}


STREAMING = frozenset({"cast"})
"""Kernels that only stream memory, to which `codec_efficiency` does not apply."""


def check(calibration: Calibration) -> None:
    """Refuse times of kernels that no strategy has.

    Raises:
        SimnetError: an unknown name.
    """
    for name in calibration.kernels:
        if name not in BYTES_MOVED:
            raise SimnetError(
                f"calibration {calibration.name!r}: kernels: {name!r}: unknown kernel.{nearest(name, BYTES_MOVED)}"
            )


def knows(calibration: Calibration, name: str) -> bool:
    """Tell whether the calibration gives a kernel a time; if not it is free, and the result says so."""
    return calibration.memory_bytes_per_s is not None or name in calibration.kernels


def kernel_s(calibration: Calibration, name: str, num_elements: float) -> float:
    """Return the time of one kernel over `num_elements` [s]."""
    timed = calibration.kernels.get(name)
    if timed is not None:
        return timed.seconds(num_elements)
    if calibration.memory_bytes_per_s is None or num_elements <= 0:
        return 0.0
    efficiency = 1.0 if name in STREAMING else calibration.codec_efficiency
    bytes_per_s = calibration.memory_bytes_per_s * efficiency
    return float(calibration.kernel_launch_s) + BYTES_MOVED[name] * num_elements / bytes_per_s


def optimizer_s(calibration: Calibration, optimizer: str, num_elements: float) -> float:
    """Return the time of a fused dense optimizer over all parameters [s], 0 without a memory bandwidth."""
    if calibration.memory_bytes_per_s is None:
        return 0.0
    return OPTIMIZER_BYTES[optimizer] * num_elements / calibration.memory_bytes_per_s
