"""What is recorded, predicted and run: four ways of training, three bandwidths, and what is calibrated on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simnet.core.units import Bandwidth

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "train_own_ways.py"
GOLDEN = ROOT / "tests" / "golden" / "lab_recorded"
NUM_NODES, RANKS_PER_NODE = 4, 2
WORLD_SIZE = NUM_NODES * RANKS_PER_NODE
BANDWIDTHS = tuple(map(Bandwidth.parse, ("100 Mbit/s", "250 Mbit/s", "1 Gbit/s")))
"""Of each node's NIC: predicted and run."""
LINK_BANDWIDTHS = tuple(map(Bandwidth.parse, ("60 Mbit/s", "600 Mbit/s")))
"""Of the links' calibration, on two nodes: none of those above."""
GLOO_BANDWIDTH = Bandwidth.parse("150 Mbit/s")
"""At which single collectives are counted and timed."""
LINK_NODES, LINK_BYTES = 2, 2**22
STARTS = 2
"""Launches of the recordings, of all ranks at once; the mean of all is taken."""
WARM_UP, STEPS = 3, 8
"""Of a recording, in periods of the script."""
MODEL = ("--width", "640", "--blocks", "4")
OPTIONS = {"algorithm": "ring", "broadcast": "tree", "reduce_scatter_as": "all_reduce"}
"""Of the strategy, for what gloo does in torch 2.13; found by counting bytes, and in its source."""
AIM_S, LEAST_PERIODS, MOST_PERIODS = 20.0, 10, 40
"""A run takes about so long by its prediction; the first periods warm up and do not count."""
RUN_WARM_UP = 3


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way of training.

    Attributes:
        name: of the script's.
        title: for people.
        batch: samples of a rank, chosen so that messages take 30 to 80 % of most steps.
        period: steps after which it does the same again.
    """

    name: str
    title: str
    batch: int
    period: int = 1

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of the script."""
        return (self.name, *MODEL, "--batch", str(self.batch))


@dataclass(frozen=True, kw_only=True)
class LabStudy:
    """Ways of training that are predicted, and only then run in the lab.

    Attributes:
        script: that trains in each way.
        ways: of training.
        predict: from the folder of what was measured, returns a row for each way at each bandwidth, with the keys
            "way", "mbit_per_s", "predicted_s" and "own_s".
    """

    script: Path
    ways: tuple[Way, ...]
    predict: Callable[[Path, Sequence[Bandwidth]], list[dict[str, Any]]]


WAYS = (
    Way(name="int8", title="DDP, own hook of 8 bits", batch=160),
    Way(name="hybrid", title="FSDP2, hybrid shards", batch=160),
    Way(name="local", title="local SGD, 4 inner steps", batch=48, period=4),
    Way(name="zero", title="DDP with ZeRO-1", batch=640),
)
