"""From files to the parts of a calibration: which rows go into which fit."""

from dataclasses import dataclass

from simnet.calibrate import collectives, host, interference, iperf3, kernels, nccl_table
from simnet.calibrate.fit import Fitted
from simnet.calibrate.sources import Sources
from simnet.hardware import Cluster


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to fit.

    Attributes:
        cluster: of nominal bandwidths, where files tell none.
        bound: mean relative error from which on a fit is bad.
        draws: bootstrap fits for the intervals.
    """

    cluster: Cluster | None = None
    bound: float = 0.1
    draws: int = 200


def parts(known: Sources, unseen: Sources, placed: Sources, options: Options) -> list[Fitted]:
    """Return the fit of every kind of file that is there.

    Args:
        known: to fit.
        unseen: to predict.
        placed: collectives by as many ranks on the machine as will train, on NICs that are not shaped: they tell what
            cores take; links inside a node of `known` are then left out.
        options: how.

    Raises:
        SimnetError: files that do not suffice for a fit.
    """
    found = [iperf3.fitted(data, path, options.cluster) for data, path in known.iperf3]
    if known.logs:
        found.append(nccl_table.fitted(known.logs, unseen.logs, options.cluster, options.draws))
    in_place = collectives.timed(placed.measurements, options.cluster)
    rows = collectives.timed(known.measurements, options.cluster)
    rows = [row for row in rows if row.level == "inter_node" or not in_place]
    if rows:
        unseen_rows = collectives.timed(unseen.measurements, options.cluster)
        found.append(collectives.fitted(rows, unseen_rows, options.draws, only_wire=bool(in_place)))
    if in_place:
        found.append(host.fitted(in_place, options.draws))
    measured = [*known.measurements, *placed.measurements]
    if timed := kernels.timed(measured):
        found += kernels.fitted(timed, options.bound, options.draws)
    if pairs := interference.pairs(measured):
        found.append(interference.fitted(pairs, options.draws))
    return found
