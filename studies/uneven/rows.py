"""What is predicted and run: three strategies, three bandwidths, five ways in which a cluster is not idle and equal."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simnet.cluster.hardware import Fault
from simnet.core.units import Bandwidth

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "lab_uneven"
NUM_NODES = 4
MODEL, BATCH, BUCKET_CAP_MB = "mlp_4m", 128, 8.0
CORES = 0.4
"""Part of a core that a rank has. All four take 1.6 of two cores: none can be slowed by what another one does."""
SLOW_RANK, SLOWDOWN = 2, 1.5
SLOW_NODE, SLOW_RATE = 1, 0.5
DEGRADED_NODE, DEGRADED_RATE, DEGRADED_AFTER = 2, 0.4, 0.65
"""The NIC that gets slower in mid-run, what is left of its rate, and after which part of the steps, as predicted."""
BUSY_NODE, BUSY_SHARE = 1, 0.4
"""The node beside whose training others send and receive, and which part of its NIC they take, in each direction."""
LINK_NODES, LINK_BYTES = 2, 2**22
LINK_BANDWIDTHS = tuple(map(Bandwidth.parse, ("100 Mbit/s", "450 Mbit/s")))
"""Of the links' calibration, on two nodes: none of those below."""
BANDWIDTHS = tuple(map(Bandwidth.parse, ("150 Mbit/s", "300 Mbit/s", "600 Mbit/s")))
OWN_STEPS = 50
"""Steps without messages that are timed before each launch of trainings, with each strategy."""
WARM_UP = 5
AIM_S, LEAST_STEPS, MOST_STEPS = 16.0, 40, 120
"""A training takes about so long by its prediction."""
FaultName = Literal["as it comes", "slow rank", "slow NIC", "degrading NIC", "background traffic"]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A strategy that trains.

    Attributes:
        title: for people.
        argument: of `simnet measure training --strategy`.
        strategy: of the simulator, as text.
    """

    title: str
    argument: str
    strategy: str


STRATEGIES = (
    Trained(title="DDP", argument="all_reduce", strategy="all_reduce:algorithm=ring,bucket_cap=8 MiB"),
    Trained(
        title="BinSGDM",
        argument="binsgdm:flat",
        strategy="binsgdm:topology=flat,overlap=false,finite_check=ring,bucket_cap=8 MiB",
    ),
    Trained(title="1-bit Adam", argument="one_bit_adam", strategy="one_bit_adam:finite_check=true"),
)


def faults(name: FaultName, degraded_from_s: float) -> tuple[Fault, ...]:
    """Return what is put into the lab, as the simulator has it.

    Args:
        name: which.
        degraded_from_s: when the NIC of "degrading NIC" gets slower, from the start of the run [s].
    """
    from simnet.cluster.faults import BackgroundTraffic, SlowLink, SlowRank
    from simnet.core.units import Duration

    found: dict[FaultName, tuple[Fault, ...]] = {
        "as it comes": (),
        "slow rank": (SlowRank(node=SLOW_RANK, compute_slowdown=SLOWDOWN),),
        "slow NIC": (SlowLink(place=SLOW_NODE, rate=SLOW_RATE),),
        "degrading NIC": (SlowLink(place=DEGRADED_NODE, rate=DEGRADED_RATE, from_s=Duration(degraded_from_s)),),
        "background traffic": (BackgroundTraffic(at_nodes=(BUSY_NODE,), share=BUSY_SHARE),),
    }
    return found[name]


def place(fault: FaultName, mbit_per_s: int) -> str:
    """Return how files name a fault at a bandwidth."""
    return f"{fault.replace(' ', '_')}_{mbit_per_s}mbit"


def trained_file(argument: str, fault: FaultName, mbit_per_s: int) -> str:
    """Return the name of the file of a training."""
    return f"trained_{stem(argument)}_{place(fault, mbit_per_s)}.json"


def own_file(argument: str, fault: FaultName, mbit_per_s: int) -> str:
    """Return the name of the file of the steps without messages before a training."""
    return f"own_{stem(argument)}_{place(fault, mbit_per_s)}.json"


def stem(argument: str) -> str:
    """Return how files name a strategy."""
    return argument.partition(":")[0]


FAULTS: tuple[FaultName, ...] = ("as it comes", "slow rank", "slow NIC", "degrading NIC", "background traffic")
