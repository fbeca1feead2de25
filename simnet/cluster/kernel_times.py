"""CPU and GPU time as measured: a timed kernel, and what collectives need of a rank's cores."""

import math

from msgspec import Struct, field

from simnet.core.bounded_types import Count
from simnet.core.system_options import SystemOptions
from simnet.core.units import Duration


class KernelTime(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A timed kernel: `launch + time_per_element * elements`, which replaces the estimate by bytes moved.

    Attributes:
        launch_s: time of a call over no elements.
        s_per_element: while the data fit into the cache.
        cached_elements: elements up to which `time_per_element` holds.
        beyond_s_per_element: from twice `cached_elements` on, of all elements; interpolated over the logarithm of the
            size in between.
        s_per_result: of each element of the result, beside `time_per_element`, of kernels that merge vectors into
            something of their own, such as `merge_shaped`.
        options: of the system that was timed; a result with other options says so.
        source: where the numbers come from.
    """

    launch_s: Duration = field(name="launch", default=Duration(0))
    s_per_element: Duration = field(name="time_per_element")
    cached_elements: Count | None = None
    beyond_s_per_element: Duration | None = field(name="time_per_element_beyond", default=None)
    s_per_result: Duration | None = field(name="time_per_result", default=None)
    options: SystemOptions = field(default_factory=SystemOptions)
    source: str = ""

    def __post_init__(self) -> None:
        if (self.cached_elements is None) != (self.beyond_s_per_element is None):
            raise ValueError("cached_elements: needs time_per_element_beyond; give both, or none")

    def seconds(self, num_elements: float, num_results: float = 0.0) -> float:
        """Return the time over `num_elements` of all vectors, which are combined to so many [s]."""
        per_element = float(self.s_per_element)
        # Beyond the cache every element takes longer, not only those that no longer fit: the rate changes for all.
        if self.cached_elements is not None and self.beyond_s_per_element is not None:
            part = fraction_beyond_cache(num_elements, self.cached_elements)
            per_element += part * (self.beyond_s_per_element - per_element)
        return float(self.launch_s) + per_element * num_elements + (self.s_per_result or 0.0) * num_results


def fraction_beyond_cache(num_elements: float, cached_elements: float) -> float:
    """Return from 0 to 1 how far a size is beyond a cache: 1 at twice the elements that it holds."""
    return min(math.log2(num_elements / cached_elements), 1.0) if num_elements > cached_elements else 0.0


class HostCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CPU time that a collective needs of each rank while the wire works, as where ranks share cores.

    The collective takes at least `launch + round * rounds + message * sends + time_per_byte * bytes sent` of a rank:
    the gaps g and G of LogGP (Alexandrov et al., SPAA 1995), with the time that a rank takes to wake up.

    Attributes:
        launch_s: CPU time of one collective.
        round_s: CPU time of one round of sends.
        message_s: CPU time of one send.
        s_per_byte: CPU time of one byte sent.
        source: where the numbers come from.
    """

    launch_s: Duration = field(name="launch", default=Duration(0))
    round_s: Duration = field(name="round", default=Duration(0))
    message_s: Duration = field(name="message", default=Duration(0))
    s_per_byte: Duration = field(name="time_per_byte", default=Duration(0))
    source: str = ""
