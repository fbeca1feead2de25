"""Fit every part of a calibration that the files allow: which rows go into which fit."""

from collections.abc import Sequence
from dataclasses import dataclass

from simnet.calibration import calibration_file, kernels, merged_calibration, nccl, network, step_fit, step_part
from simnet.calibration.fit import FittedPart
from simnet.calibration.merged_calibration import Base
from simnet.calibration.sources import Sources
from simnet.calibration.step_model import Trained
from simnet.cluster.hardware import Cluster
from simnet.core.errors import SimnetError


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How to fit.

    Attributes:
        cluster: gives the nominal bandwidths that the files do not.
        bound: largest mean relative error that is accepted.
        draws: bootstrap resamples for the intervals.
        base: gives what the files do not measure; neutral values without one.
        trained: what step times trained; needed for tables of step times.
        refits_compute: fit compute to step times of one node also where the workload has times of its own.
        allowed: what NCCL might take where the logs were measured.
    """

    cluster: Cluster | None = None
    bound: float = 0.15
    draws: int = 200
    base: Base | None = None
    trained: Trained | None = None
    refits_compute: bool = False
    allowed: nccl.Allowed = nccl.ANY


def fit_parts(train: Sources, held_out: Sources, in_place: Sources, options: FitOptions) -> list[FittedPart]:
    """Fit links, host costs, kernels and the slowdown of backward, each from the files that measure it.

    Args:
        train: files to fit.
        held_out: files to predict.
        in_place: collectives on NICs without a limit, with as many ranks on a machine as in training. They measure the
            CPU time of sends, which then also stands for the links inside a node.
        options: how to fit.
    """
    parts = [fit(options.cluster) for fit in train.alone]
    if train.logs:
        is_all = not (train.alone or train.files or train.tables or train.traces)
        parts += nccl.fit_logs(train.logs, held_out.logs, options.cluster, is_needed=is_all, allowed=options.allowed)
    in_place_rows = network.select_collectives(in_place.measurements, options.cluster)
    rows = network.select_collectives(train.measurements, options.cluster)
    rows += network.select_sends(nccl.sort(train.logs).sends, options.cluster)
    rows = [row for row in rows if row.level == network.INTER_NODE or not in_place_rows]
    if rows:
        held_out_rows = network.select_collectives(held_out.measurements, options.cluster)
        parts.append(network.fit_collectives(rows, held_out_rows, options.draws, only_bandwidths=bool(in_place_rows)))
    if in_place_rows:
        parts.append(network.fit_host(in_place_rows, options.draws))
    measured = [*train.measurements, *in_place.measurements]
    if timed := kernels.select_kernels(measured):
        parts += kernels.fit_kernels(timed, options.bound, options.draws)
    if launch := kernels.fit_launch(measured):
        parts.append(launch)
    if pairs := kernels.select_pairs(measured):
        parts.append(kernels.fit_slowdown(pairs, options.draws))
    if train.tables:
        parts.append(_fit_tables(train, held_out, parts, options))
    return parts


def _fit_tables(train: Sources, held_out: Sources, parts: Sequence[FittedPart], options: FitOptions) -> FittedPart:
    """Fit step times on top of what the other files give."""
    if options.trained is None:
        raise SimnetError(
            f"{train.tables[0].path}: step times: say what was trained with --experiment, or with --trained and "
            "--cluster"
        )
    measured = calibration_file.merge(parts, {})
    table = merged_calibration.lay_over(measured, options.base.table) if options.base else measured
    known = [link for link in step_fit.LINKS if f"{link}.efficiency" in merged_calibration.replaced_keys(measured)]
    return step_part.fit_tables(
        train.tables, held_out.tables, options.trained, table, known, refits_compute=options.refits_compute
    )
