"""Prove from the files that the predicted measurements were not used to calibrate.

A file is named by a hash of its content, so a copy under another name is still recognized. A network setting is named
by nodes, ranks per node and NIC bandwidth: a second measurement of a fitted setting would be no independent test.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simnet.calibration import provenance
from simnet.calibration.measurement_file import MeasurementFile
from simnet.cluster.hardware import FittedTo
from simnet.core.errors import SimnetError
from simnet.engine.scenario import Scenario

OVER_THE_NETWORK = {"collective", "training"}
"""Kinds of series that depend on the network; the others may be fitted in the setting that is predicted."""


@dataclass(frozen=True, kw_only=True)
class Disjointness:
    """The predicted files and the fitted ones, which have nothing in common.

    Attributes:
        num_predicted: predicted files.
        num_fitted: files that calibration and workload were fitted to.
        network_settings: settings at which the network was fitted, such as "2 x 1 ranks at 0.1 Gbit/s".
    """

    num_predicted: int
    num_fitted: int
    network_settings: tuple[str, ...]

    @property
    def is_proven(self) -> bool:
        """Whether calibration or workload name the files that they were fitted to."""
        return self.num_fitted > 0


def check(scenario: Scenario, files: Sequence[tuple[Path, MeasurementFile]]) -> Disjointness:
    """Check that calibration and workload of a scenario were fitted to none of these files or their settings."""
    digests = {fitted.digest: fitted.file for fitted in _fitted(scenario)}
    over_network = _fitted_over_network(scenario)
    for path, whole in files:
        # By content, since a copy may have any name.
        if name := digests.get(provenance.digest(whole)):
            raise SimnetError(f"{path}: was fitted by the calibration or the workload (as {name}): predict another")
        for setup in whole.setups:
            setting = setup.num_nodes, setup.ranks_per_node, setup.nic_bytes_per_s
            if name := file_fitted_at(scenario, *setting):
                raise SimnetError(
                    f"{path}: {_setting(*setting)}: the network was fitted at this setting ({name}): predict others"
                )
    settings = dict.fromkeys(
        _setting(fitted.num_nodes, fitted.ranks_per_node, fitted.nic_bytes_per_s) for fitted in over_network
    )
    return Disjointness(num_predicted=len(files), num_fitted=len(digests), network_settings=tuple(settings))


def file_fitted_at(
    scenario: Scenario, num_nodes: int, ranks_per_node: int, nic_bytes_per_s: float | None
) -> str | None:
    """Return the file by which the network was fitted at a setting; None if it was not."""
    for fitted in _fitted_over_network(scenario):
        is_same = (fitted.num_nodes, fitted.ranks_per_node) == (num_nodes, ranks_per_node)
        rates = fitted.nic_bytes_per_s, nic_bytes_per_s
        # A calibration file holds a bandwidth as text with few digits.
        if is_same and rates[0] and rates[1] and math.isclose(rates[0], rates[1], rel_tol=1e-3):
            return fitted.file
    return None


def _fitted(scenario: Scenario) -> tuple[FittedTo, ...]:
    return (*scenario.calibration.fitted_to, *scenario.workload.fitted_to)


def _fitted_over_network(scenario: Scenario) -> list[FittedTo]:
    return [
        fitted
        for fitted in _fitted(scenario)
        if OVER_THE_NETWORK & set(fitted.measured) and fitted.nic_bytes_per_s is not None
    ]


def _setting(num_nodes: int, ranks_per_node: int, nic_bytes_per_s: float | None) -> str:
    rate = f"{nic_bytes_per_s * 8 / 1e9:g} Gbit/s" if nic_bytes_per_s else "an unknown NIC"
    return f"{num_nodes} x {ranks_per_node} ranks at {rate}"
