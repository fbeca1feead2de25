"""Prove from the files that what is predicted was not calibrated on."""

import math
from collections.abc import Sequence
from pathlib import Path

from simnet.calibrate import provenance
from simnet.calibrate.measurement_file import MeasurementFile, Setup
from simnet.errors import SimnetError
from simnet.hardware import FittedTo
from simnet.scenario import Scenario

OVER_THE_NETWORK = {"collective", "training"}
"""Kinds whose times depend on the network; others may be measured where is trained."""


def check(scenario: Scenario, files: Sequence[tuple[Path, MeasurementFile]]) -> str:
    """Return in a sentence why no file and no setting of these was fitted by calibration and workload.

    Files are told by a hash of what they say, settings by nodes, ranks on each and NIC.

    Args:
        scenario: with its calibration and workload.
        files: of training, to be predicted.

    Raises:
        SimnetError: one was fitted.
    """
    fitted = [*scenario.calibration.fitted_to, *scenario.workload.fitted_to]
    digests = {one.digest: one.file for one in fitted}
    over_network = [one for one in fitted if OVER_THE_NETWORK & set(one.measured) and one.nic_bytes_per_s is not None]
    for path, whole in files:
        if name := digests.get(provenance.digest(whole)):
            raise SimnetError(f"{path}: was fitted by the calibration or the workload (as {name}): predict another")
        for setup in whole.setups:
            for one in over_network:
                if _is_same(one, setup):
                    raise SimnetError(
                        f"{path}: {_place(setup.num_nodes, setup.ranks_per_node, setup.nic_bytes_per_s)} is a setting "
                        f"whose network was fitted ({one.file}): predict others"
                    )
    if not fitted:
        return "not proven to be unseen: calibration and workload name no measurements (simnet calibrate writes them)"
    places = dict.fromkeys(_place(one.num_nodes, one.ranks_per_node, one.nic_bytes_per_s) for one in over_network)
    network = f"; the network was fitted on {', '.join(places)}" if places else ""
    return f"unseen: none of {_files(len(files))} is among the {_files(len(digests))} that were fitted{network}"


def _is_same(one: FittedTo, setup: Setup) -> bool:
    return (
        (one.num_nodes, one.ranks_per_node) == (setup.num_nodes, setup.ranks_per_node)
        and one.nic_bytes_per_s is not None
        and setup.nic_bytes_per_s is not None
        and math.isclose(one.nic_bytes_per_s, setup.nic_bytes_per_s, rel_tol=1e-3)
    )


def _place(num_nodes: int, ranks_per_node: int, nic_bytes_per_s: float | None) -> str:
    rate = f"{nic_bytes_per_s * 8 / 1e9:g} Gbit/s" if nic_bytes_per_s else "an unknown NIC"
    return f"{num_nodes} x {ranks_per_node} ranks at {rate}"


def _files(number: int) -> str:
    return f"{number} file{'s' * (number != 1)}"
