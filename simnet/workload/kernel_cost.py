"""Seconds of the kernels around communication: measured where the calibration has them, else by the bytes they move.

The bytes are what a fused kernel must read and write at least, per element; the time is then an estimate from below.
The strategies that run the kernels declare them (`simnet.strategies`).
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from msgspec import Struct

from simnet.cluster.hardware import Calibration
from simnet.cluster.kernel_times import KernelTime
from simnet.core.system_options import SystemOptions, value_text

TimedAs = Callable[[SystemOptions], SystemOptions]


class StandIn(NamedTuple):
    """The kernel whose time another takes that has none of its own.

    Attributes:
        kernel: is timed.
        per: for as many elements, or for as many bytes.
        result: where it is timed, too, each element of the result takes its time, and the first kernel is taken for
            what each element of a vector moves alone.
    """

    kernel: "KernelCost"
    per: Literal["element", "byte"]
    result: "KernelCost | None" = None


class KernelCost(Struct, frozen=True, kw_only=True):
    """A kernel as a strategy runs it.

    Attributes:
        name: in calibrations and measurements.
        bytes_per_element: read and written, with fp32 state; counted from the algorithm.
        bytes_per_result: the same for each element of the result, of a kernel that combines several vectors to one;
            what it does for each element of a vector is in `bytes_per_element`.
        is_estimable: False where bytes tell too little of the time, so that what it decides must be measured.
        is_streaming: it only streams memory, so `codec_efficiency` does not apply.
        updates: it moves the parameters, in place of the dense optimizer.
        stand_in: gives it a time where it has none of its own.
    """

    name: str
    bytes_per_element: float
    bytes_per_result: float = 0.0
    is_estimable: bool = True
    is_streaming: bool = False
    updates: bool = False
    stand_in: StandIn | None = None

    def timed(self, calibration: Calibration) -> KernelTime | None:
        """Return its measured time, or that of its stand-in, if there is one."""
        return calibration.kernels.get(self.name) or self._stand_in_time(calibration)

    def is_known(self, calibration: Calibration) -> bool:
        """Tell whether the calibration gives it a time; if not it is free, and the result says so."""
        return calibration.memory_bytes_per_s is not None or self.timed(calibration) is not None

    def is_estimated(self, calibration: Calibration) -> bool:
        """Tell whether it has a time that is worth the name, measured or by its bytes."""
        estimated = calibration.memory_bytes_per_s is not None and self.is_estimable
        return self.timed(calibration) is not None or estimated

    def stand_in_text(self, calibration: Calibration) -> str:
        """Return whose time it takes, for people; empty where its own, or that of a kernel that moves as much."""
        stand_in = self.stand_in
        if stand_in is None or self.name in calibration.kernels or self._stand_in_time(calibration) is None:
            return ""
        if stand_in.kernel.bytes_of_each() == self.bytes_of_each():
            return ""
        taken = f"what {stand_in.kernel.name} takes for as many {stand_in.per}s"
        if stand_in.result is not None and stand_in.result.name in calibration.kernels:
            taken = f"what {stand_in.kernel.name} takes for each vector and {stand_in.result.name} for the result"
        return f"kernel {self.name} was not timed: it takes {taken}"

    def bytes_of_each(self, num_vectors: float = 1) -> float:
        """Return the bytes of each element of all vectors together, where so many are combined to one."""
        return self.bytes_per_element + self.bytes_per_result / num_vectors

    def seconds(self, calibration: Calibration, num_elements: float, num_vectors: float = 1) -> float:
        """Return its time over `num_elements` of all vectors together [s]."""
        calibrated, each = calibration.kernels.get(self.name), self.bytes_of_each(num_vectors)
        if calibrated is not None:
            return calibrated.seconds(num_elements, num_elements / num_vectors)
        if (stand_in_s := self._stand_in_s(calibration, num_elements, num_vectors)) is not None:
            return stand_in_s
        if calibration.memory_bytes_per_s is None or num_elements <= 0:
            return 0.0
        efficiency = 1.0 if self.is_streaming else calibration.codec_efficiency
        bytes_per_s = calibration.memory_bytes_per_s * efficiency
        return float(calibration.kernel_launch_s) + each * num_elements / bytes_per_s

    def _stand_in_s(self, calibration: Calibration, num_elements: float, num_vectors: float) -> float | None:
        stand_in, timed = self.stand_in, self._stand_in_time(calibration)
        if stand_in is None or timed is None:
            return None
        if stand_in.per == "element":
            return timed.seconds(num_elements)
        by_result = calibration.kernels.get(stand_in.result.name) if stand_in.result is not None else None
        if by_result is None:
            return timed.seconds(num_elements * self.bytes_of_each(num_vectors) / stand_in.kernel.bytes_of_each())
        of_vectors_s = timed.seconds(num_elements * self.bytes_per_element / stand_in.kernel.bytes_of_each())
        return of_vectors_s + by_result.seconds(num_elements / num_vectors)

    def _stand_in_time(self, calibration: Calibration) -> KernelTime | None:
        return calibration.kernels.get(self.stand_in.kernel.name) if self.stand_in is not None else None

    def other_options(
        self, calibration: Calibration, options: Mapping[str, object], timed_as: TimedAs = SystemOptions
    ) -> str:
        """Return how the options that were timed differ from a strategy's, "bits=4, not bits=8"; "" where none does.

        `timed_as` makes of timed options what can be compared with these.
        """
        timed = self.timed(calibration)
        timed_options = timed_as(timed.options) if timed is not None and timed.options else SystemOptions()
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
