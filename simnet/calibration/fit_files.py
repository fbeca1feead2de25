"""Fit every part of a calibration that the files allow: which rows go into which fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simnet.calibration import (
    calibration_file,
    collective_fit,
    host_fit,
    interference_fit,
    iperf3,
    kernel_fit,
    merged_calibration,
    nccl_calibration,
    step_fit,
    step_part,
)
from simnet.calibration.fitted_part import FittedPart, counted
from simnet.calibration.merged_calibration import Base
from simnet.calibration.nccl_log import NcclLog
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
    """

    cluster: Cluster | None = None
    bound: float = 0.1
    draws: int = 200
    base: Base | None = None
    trained: Trained | None = None


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
        found += _fit_logs(train.logs, held_out.logs, options, is_needed=not _has_others(train))
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
    if train.tables:
        found.append(_fit_tables(train, held_out, found, options))
    return found


def _has_others(train: Sources) -> bool:
    """Tell whether files other than logs may give something."""
    return bool(train.iperf3 or train.files or train.tables or train.traces)


def _fit_logs(
    logs: Sequence[NcclLog], held_out: Sequence[NcclLog], options: FitOptions, *, is_needed: bool
) -> list[FittedPart]:
    """Fit the logs that help; those that do not are named in a note.

    Raises:
        SimnetError: no log helps, and nothing else is there to fit.
    """
    useful = [log for log in logs if not _flaw(log)]
    useless = [f"{log.name}: {_flaw(log)}" for log in [*logs, *held_out] if _flaw(log)]
    if not useful and is_needed:
        raise SimnetError(f"{'; '.join(useless)}: no log is left; give one of all_reduce_perf on several GPUs")
    notes = [f"{one}: skipped" for one in useless]
    notes += [_rows_text(log) for log in useful]
    if not useful:
        return [FittedPart(table={}, notes=tuple(notes))]
    kept = [log for log in held_out if not _flaw(log)]
    notes += [_rows_text(log) for log in kept if log.num_torn]
    fitted = nccl_calibration.fit_logs(useful, kept, options.cluster, options.draws)
    return [replace(fitted, notes=(*notes, *fitted.notes))]


def _rows_text(log: NcclLog) -> str:
    torn = f"; {counted(log.num_torn, 'torn line')} skipped" if log.num_torn else ""
    return f"{log.name}: {counted(len(log.rows), 'row')} of {log.layout_text}{torn}"


def _flaw(log: NcclLog) -> str:
    """Return why a log tells nothing of links; empty if it does."""
    if log.world_size == 1:
        return "one GPU sends nothing"
    return "" if log.collective == "all_reduce" else f"{log.collective}: only logs of all_reduce can be fitted"


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
    others = step_part.OtherFiles(table=table, links=known)
    return step_part.fit_tables(train.tables, held_out.tables, options.trained, others)
