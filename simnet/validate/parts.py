"""Shipped clusters and calibrations as structs, to be varied and fitted by a validation set."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from simnet import files
from simnet.hardware import Calibration, Cluster, LinkCalibration
from simnet.numeric import least_squares
from simnet.scenario import Draft

FIRST_GUESS = 0.25


def cluster(name: str, num_nodes: int | None = None) -> Cluster:
    """Return a shipped cluster, with another number of nodes if given."""
    found = Draft(data={"name": name, **files.read("clusters", name)}, origins={(): f"clusters/{name}.toml"})
    whole = found.converted(Cluster)
    return replace(whole, num_nodes=num_nodes) if num_nodes else whole


def calibration(name: str) -> Calibration:
    """Return a shipped calibration."""
    found = Draft(data={"name": name, **files.read("calibrations", name)}, origins={(): f"calibrations/{name}.toml"})
    return found.converted(Calibration)


def with_efficiency(calibration: Calibration, link: str, efficiency: float) -> Calibration:
    """Return a calibration with another efficiency of "intra_node" or "inter_node"."""
    old: LinkCalibration = getattr(calibration, link)
    return replace(calibration, **{link: replace(old, efficiency=efficiency)})


def fit_efficiency(
    calibration: Calibration, link: str, errors: Callable[[Calibration], Sequence[float]], first: float = FIRST_GUESS
) -> float:
    """Return the efficiency of a link with the least squared errors.

    Args:
        calibration: everything else.
        link: "intra_node" or "inter_node".
        errors: relative errors of the rows to fit under a calibration.
        first: guess at which this link limits the rows.
    """
    return 1 / least_squares(lambda inverse: errors(with_efficiency(calibration, link, 1 / inverse[0])), [1 / first])[0]
