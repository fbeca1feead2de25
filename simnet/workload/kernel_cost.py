"""Seconds of the kernels around communication: measured where the calibration has them, else by the bytes they move.

The bytes are what a fused kernel must read and write at least, per element; the time is then an estimate from below.
The strategies that run the kernels declare them (`simnet.strategies.kernel_table`).
"""

from collections.abc import Mapping

from msgspec import Struct

from simnet.hardware import Calibration, KernelTime
from simnet.system_options import SystemOptions, value_text


class KernelCost(Struct, frozen=True, kw_only=True):
    """A kernel as a strategy runs it.

    Attributes:
        name: in calibrations and measurements.
        bytes_per_element: read and written, with fp32 state; counted from the algorithm (docs/explanation/compute.md).
        is_estimable: False where bytes tell too little of the time, so that what it decides must be measured.
        is_streaming: it only streams memory, so `codec_efficiency` does not apply.
        updates: it moves the parameters, in place of the dense optimizer.
        stands_for: the kernel whose time it takes where it has none of its own.
    """

    name: str
    bytes_per_element: float
    is_estimable: bool = True
    is_streaming: bool = False
    updates: bool = False
    stands_for: str = ""

    def timed(self, calibration: Calibration) -> KernelTime | None:
        """Return its measured time, if there is one."""
        kernels = calibration.kernels
        return kernels.get(self.name) or (kernels.get(self.stands_for) if self.stands_for else None)

    def is_known(self, calibration: Calibration) -> bool:
        """Tell whether the calibration gives it a time; if not it is free, and the result says so."""
        return calibration.memory_bytes_per_s is not None or self.timed(calibration) is not None

    def is_estimated(self, calibration: Calibration) -> bool:
        """Tell whether it has a time that is worth the name, measured or by its bytes."""
        estimated = calibration.memory_bytes_per_s is not None and self.is_estimable
        return self.timed(calibration) is not None or estimated

    def seconds(self, calibration: Calibration, num_elements: float) -> float:
        """Return its time over `num_elements` [s]."""
        timed = self.timed(calibration)
        if timed is not None:
            return timed.seconds(num_elements)
        if calibration.memory_bytes_per_s is None or num_elements <= 0:
            return 0.0
        efficiency = 1.0 if self.is_streaming else calibration.codec_efficiency
        bytes_per_s = calibration.memory_bytes_per_s * efficiency
        return float(calibration.kernel_launch_s) + self.bytes_per_element * num_elements / bytes_per_s

    def other_options(self, calibration: Calibration, options: Mapping[str, object]) -> str:
        """Return how its timed options differ from these, "bits=4, not bits=8"; empty where none of these does."""
        timed = self.timed(calibration)
        timed_options = timed.options if timed is not None else SystemOptions()
        # An option that the strategy does not have, or leaves at None, contradicts nothing.
        differing = {key: value for key, value in timed_options.items() if options.get(key) not in (None, value)}
        return "; ".join(
            f"{key}={value_text(value)}, not {key}={value_text(options[key])}" for key, value in differing.items()
        )


OPTIMIZER_BYTES: dict[str, float] = {
    "adam": 28.0,  # read g, m, v, x; write m, v, x
    "sgd_momentum": 20.0,  # read g, m, x; write m, x
}
ADAMW = KernelCost(name="adamw", bytes_per_element=OPTIMIZER_BYTES["adam"], is_streaming=True, updates=True)
"""A fused AdamW, as "simnet measure kernels" times it."""


def optimizer_s(calibration: Calibration, optimizer: str, num_elements: float) -> float:
    """Return the time of a fused dense optimizer over all parameters [s]: measured, or by its bytes, or 0."""
    timed = ADAMW.timed(calibration) if optimizer == "adam" else None
    if timed is not None:
        return timed.seconds(num_elements)
    if calibration.memory_bytes_per_s is None:
        return 0.0
    return OPTIMIZER_BYTES[optimizer] * num_elements / calibration.memory_bytes_per_s
