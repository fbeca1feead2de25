"""Shipped clusters and calibrations as structs, to be varied by a validation set."""

from msgspec.structs import replace

from simnet import library
from simnet.scenario import Draft
from simnet.spec import Calibration, Cluster, LinkCalibration


def cluster(name: str, num_nodes: int | None = None) -> Cluster:
    """Return a shipped cluster, with another number of nodes if given."""
    found = Draft(data={"name": name, **library.read("clusters", name)}, origins={(): f"clusters/{name}.toml"})
    whole = found.converted(Cluster)
    return replace(whole, num_nodes=num_nodes) if num_nodes else whole


def calibration(name: str) -> Calibration:
    """Return a shipped calibration."""
    found = Draft(data={"name": name, **library.read("calibrations", name)}, origins={(): f"calibrations/{name}.toml"})
    return found.converted(Calibration)


def with_efficiency(calibration: Calibration, link: str, efficiency: float) -> Calibration:
    """Return a calibration with another efficiency of "intra_node" or "inter_node"."""
    old: LinkCalibration = getattr(calibration, link)
    return replace(calibration, **{link: replace(old, efficiency=efficiency)})
