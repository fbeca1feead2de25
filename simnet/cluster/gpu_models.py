"""GPUs as their data sheets describe them, by the names that `cluster.gpu` has."""

from functools import lru_cache
from typing import Annotated

from msgspec import Meta, field

from simnet.cluster.hardware import NamedPart, full_gpu_name
from simnet.core import files, schema
from simnet.core.bounded_types import Precision
from simnet.core.errors import SimnetError, did_you_mean
from simnet.core.units import Bandwidth, Size

PeakFlops = Annotated[float, Meta(ge=1e9, le=1e18)]


class GpuModel(NamedPart, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the data sheet of a GPU promises.

    Attributes:
        memory_bytes: size of its memory.
        memory_bytes_per_s: bandwidth of its memory; at least 1 MB/s.
        peak_flops: FLOPs a second of matrix products by number format, dense: without sparsity. "fp32" is without
            tensor cores; a format that the GPU has not is left out.
    """

    memory_bytes: Size = field(name="memory")
    memory_bytes_per_s: Bandwidth = field(name="bandwidth")
    peak_flops: dict[Precision, PeakFlops]

    def __post_init__(self) -> None:
        if self.memory_bytes_per_s < 1e6:
            raise ValueError(f"bandwidth: {self.memory_bytes_per_s.text()!r}: must be at least 1 MB/s")

    def peak_in(self, precision: str) -> float:
        """Return its peak in a number format [FLOP/s]."""
        peak = self.peak_flops.get(precision)  # type: ignore[call-overload]
        if peak is None:
            known = ", ".join(self.peak_flops)
            raise SimnetError(f"{precision!r}: {self.name} has no peak in it: it has {known}; take one of them")
        return float(peak)


def find(name: str) -> GpuModel:
    """Return the GPU of a name."""
    gpu = known(full_gpu_name(name))
    if gpu is None:
        known_names = files.names("gpus")
        longer = [gpu_name for gpu_name in known_names if name and gpu_name.lower().startswith(name.lower())]
        hint = f" Did you mean {' or '.join(map(repr, longer))}?" if longer else did_you_mean(name, known_names)
        raise SimnetError(f"{name!r}: unknown GPU.{hint}")
    return gpu


@lru_cache(maxsize=64)
def known(name: str) -> GpuModel | None:
    """Return the GPU of a name; None if there is none."""
    if files.is_path(name) or name not in files.names("gpus"):
        return None
    path = files.locate("gpus", name)
    return schema.build(GpuModel, {"name": name, **files.read_file(path)}, files.label(path))
