"""What varies from iteration to iteration: factors on compute, pauses, and factors on collectives, drawn from a seed.

Every draw has a generator of its own, by seed, fault, kind and iteration (counter-based Philox; Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011): all strategies, executors and processes see the same draws.
A fault is known by what it says, not by its place among others: without one of them the others draw what they did.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from simnet.cluster.topology import Topology
from simnet.core.errors import SimnetError, blamed_on_package
from simnet.core.schema import tag_of
from simnet.engine.scenario import to_dict

if TYPE_CHECKING:
    from simnet.cluster.hardware import Fault
    from simnet.core.bounded_types import FloatArray

_DRAWN = ("draw_compute", "draw_pauses_s", "draw_collectives")
Drawn = Literal["draw_compute", "draw_pauses_s", "draw_collectives"]
_MOST = 1e9


class Varied(NamedTuple):
    """What one iteration meets.

    Attributes:
        compute: factor on the time of compute of each rank.
        pauses_s: how long each rank stands still before it begins; None if none does [s].
        collectives: factor on the time of each collective, numbered stream by stream; None if it does not vary.
    """

    compute: "FloatArray"
    pauses_s: "FloatArray | None" = None
    collectives: "FloatArray | None" = None


class Variation:
    """The draws of a run on a cluster."""

    def __init__(self, topology: Topology, seed: int) -> None:
        """Take a cluster with its faults, and a seed of 0 to 2^63 - 1."""
        self._topology = topology
        self._seed = seed
        self.constant = np.ones(topology.world_size)
        for rank, factor in topology.slowed_ranks().items():
            self.constant[rank] = factor
        self._varying = _keyed(fault for fault in topology.faults if fault.varies)

    def of(self, iteration: int, num_collectives: int) -> Varied:
        """Return what an iteration with so many collectives meets.

        Raises:
            SimnetError: a fault, which may be foreign code, draws something else than it should.
        """
        compute, pauses_s, collectives = self.constant, None, None
        ranks = self._topology.world_size
        for number, fault in self._varying:
            if (drawn := self._draw(fault, number, "draw_compute", iteration, ranks)) is not None:
                compute = compute * drawn
            if (drawn := self._draw(fault, number, "draw_pauses_s", iteration, ranks)) is not None:
                pauses_s = drawn if pauses_s is None else pauses_s + drawn
            if (drawn := self._draw(fault, number, "draw_collectives", iteration, num_collectives)) is not None:
                collectives = drawn if collectives is None else collectives * drawn
        return Varied(compute, pauses_s, collectives)

    def _draw(self, fault: "Fault", number: int, which: Drawn, iteration: int, size: int) -> "FloatArray | None":
        where = f"cluster.faults: {tag_of(fault)!r}: {which}"
        # A counter in place of a stream of numbers: iteration 7 draws the same whether or not the six before it were
        # drawn.
        key = np.array([self._seed, number], dtype=np.uint64)
        draws = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, _DRAWN.index(which), iteration]))
        with blamed_on_package(where):
            factors = getattr(fault, which)(draws, iteration, size)
            drawn = None if factors is None else np.asarray(factors, dtype=float)
        if drawn is None:
            return None
        least = 0.0 if which == "draw_pauses_s" else 1e-6
        # A fault of another package may draw anything; a wrong shape would be broadcast without a word.
        if drawn.shape != (size,) or not ((drawn >= least) & (drawn <= _MOST)).all():
            raise SimnetError(f"{where}: must be {size} numbers from {least:g} to {_MOST:g}; fix the fault")
        return drawn


def _keyed(faults: "Iterable[Fault]") -> "list[tuple[int, Fault]]":
    """Return faults, each with the number of 64 bits by which it draws.

    It is a hash of what a fault says but its amounts, and of how many before it say the same.
    """
    keyed, before = [], Counter[str]()
    for fault in faults:
        # Without amounts: a sweep over one compares the same accidents, larger or smaller, and its curve is smooth.
        said = repr(sorted((key, value) for key, value in to_dict(fault).items() if key not in fault.amounts))
        digest = hashlib.blake2b(f"{said}{before[said]}".encode(), digest_size=8).digest()
        before[said] += 1
        keyed.append((int.from_bytes(digest, "little"), fault))
    return keyed
