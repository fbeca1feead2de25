"""Fit every part of a calibration that the files allow: which rows go into which fit."""

from dataclasses import dataclass

from simnet.calibrate import collective_fit, host_fit, interference_fit, iperf3, kernel_fit, nccl_calibration
from simnet.calibrate.fitted_part import FittedPart
from simnet.calibrate.sources import Sources
from simnet.hardware import Cluster


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How to fit.

    Attributes:
        cluster: gives the nominal bandwidths that the files do not.
        bound: largest mean relative error that is accepted.
        draws: bootstrap resamples for the intervals.
    """

    cluster: Cluster | None = None
    bound: float = 0.1
    draws: int = 200


def fit_parts(train: Sources, held_out: Sources, in_place: Sources, options: FitOptions) -> list[FittedPart]:
    """Fit links, host costs, kernels and the slowdown of backward, each from the files that measure it.

    Args:
        train: files to fit.
        held_out: files to predict.
        in_place: collectives on NICs without a limit, with as many ranks on a machine as in training. They measure the
            CPU time of sends, which then also stands for the links inside a node.
        options: how to fit.

    Raises:
        SimnetError: the files do not suffice for a fit.
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
    if launch := kernel_fit.fit_launch(measured):
        found.append(launch)
    if pairs := interference_fit.select_pairs(measured):
        found.append(interference_fit.fit_slowdown(pairs, options.draws))
    return found
