"""From files to the parts of a calibration: which rows go into which fit."""

from dataclasses import dataclass

from simnet.calibrate import collective_fit, host_fit, interference_fit, iperf3, kernel_fit, nccl_calibration
from simnet.calibrate.fitted_part import FittedPart
from simnet.calibrate.sources import Sources
from simnet.hardware import Cluster


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How to fit.

    Attributes:
        cluster: of nominal bandwidths, where files tell none.
        bound: mean relative error from which on a fit is bad.
        draws: bootstrap fits for the intervals.
    """

    cluster: Cluster | None = None
    bound: float = 0.1
    draws: int = 200


def fit_parts(train: Sources, held_out: Sources, in_place: Sources, options: FitOptions) -> list[FittedPart]:
    """Return the fit of every kind of file that is there.

    Args:
        train: to fit.
        held_out: to predict.
        in_place: collectives by as many ranks on the machine as will train, on NICs that are not shaped: they tell what
            cores take; links inside a node of `train` are then left out.
        options: how.

    Raises:
        SimnetError: files that do not suffice for a fit.
    """
    found = [iperf3.fit_goodput(data, path, options.cluster) for data, path in train.iperf3]
    if train.logs:
        found.append(nccl_calibration.fit_logs(train.logs, held_out.logs, options.cluster, options.draws))
    in_place_rows = collective_fit.select_collectives(in_place.measurements, options.cluster)
    rows = collective_fit.select_collectives(train.measurements, options.cluster)
    rows = [row for row in rows if row.level == "inter_node" or not in_place_rows]
    if rows:
        held_out_rows = collective_fit.select_collectives(held_out.measurements, options.cluster)
        found.append(
            collective_fit.fit_collectives(rows, held_out_rows, options.draws, only_bandwidths=bool(in_place_rows))
        )
    if in_place_rows:
        found.append(host_fit.fit_host(in_place_rows, options.draws))
    measured = [*train.measurements, *in_place.measurements]
    if kernels := kernel_fit.select_kernels(measured):
        found += kernel_fit.fit_kernels(kernels, options.bound, options.draws)
    if pairs := interference_fit.select_pairs(measured):
        found.append(interference_fit.fit_slowdown(pairs, options.draws))
    return found
