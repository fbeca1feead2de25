"""The times of every rank in measurement files of `simnet measure training`, with messages or without."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from simnet.calibration.fitted_part import Floats
from simnet.calibration.measurement_file import MeasurementFile, Series
from simnet.calibration.rank_samples import MetCollective, RankSamples, met
from simnet.core.errors import SimnetError

STEP, COMPUTE = "rank_step", "rank_compute"
_AGAIN = "measure one --model with one --strategy at a time"
Training = tuple[str, str, str, int, int]
"""Kind and labels of a training, its device, its nodes and the ranks of each."""


def samples_of(files: Sequence[tuple[Path, MeasurementFile]]) -> RankSamples:
    """Return the steps of one training, those of several files one after the other.

    Raises:
        SimnetError: a file has no times of single ranks, lacks some, or the files hold several trainings.
    """
    found = [(path, whole, _training(path, whole)) for path, whole in files]
    kind, *_, ranks_per_node = found[0][2]
    for path, _, training in found[1:]:
        if training != found[0][2]:
            raise SimnetError(f"{path}: another training than {found[0][0]}: must be the same setting; {_AGAIN}")
    steps, computes = (np.hstack([_times(path, whole, name) for path, whole, _ in found]) for name in (STEP, COMPUTE))
    if steps.shape != computes.shape:
        raise SimnetError(f"{files[0][0]}: {STEP} and {COMPUTE} differ in their number: must be as many; measure again")
    return RankSamples(
        where=", ".join(str(path) for path, _ in files),
        ranks_per_node=ranks_per_node,
        compute_s=computes,
        own_s=computes,
        # Without messages a step is its compute, and nobody waits.
        collectives=_waits(steps - computes) if kind == "training" else (),
    )


def _training(path: Path, whole: MeasurementFile) -> Training:
    """Return the training whose ranks a file holds one by one.

    Raises:
        SimnetError: there is none, or there are several.
    """
    found = {_key(one): one for one in whole.series if "rank" in one.labels}
    if not found:
        raise SimnetError(
            f"{path}: holds no times of single ranks: give a file of simnet measure training with several ranks, which "
            "this version has written"
        )
    if len(found) > 1:
        names = " and ".join(f"{one.labels['model']} with {one.labels['strategy']}" for one in list(found.values())[:2])
        raise SimnetError(f"{path}: {len(found)} trainings, such as {names}: must be one; {_AGAIN}")
    one = next(iter(found.values()))
    setup = whole.setups[one.setup]
    return one.kind, _labels(one.labels), setup.device, setup.num_nodes, setup.ranks_per_node


def _key(one: Series) -> tuple[str, str, int]:
    return one.kind, _labels(one.labels), one.setup


def _labels(labels: Mapping[str, object]) -> str:
    """Return labels as one text, that of the rank left out."""
    return json.dumps({key: value for key, value in labels.items() if key != "rank"}, sort_keys=True)


def _times(path: Path, whole: MeasurementFile, name: str) -> Floats:
    """Return the times of every rank, a row a rank.

    Raises:
        SimnetError: a rank is missing, comes twice, or has another number of steps.
    """
    mine = [one for one in whole.series if one.name == name]
    by_rank = {one.count("rank"): one.values for one in mine}
    world_size = whole.setups[mine[0].setup].world_size if mine else 0
    missing = sorted(set(range(world_size)) - set(by_rank))
    if missing or len(mine) > world_size or not mine:
        what = f"rank {missing[0]} is missing" if missing else f"{len(mine)} series of {world_size} ranks"
        raise SimnetError(f"{path}: {name}: {what}: must be one of every rank; measure again")
    for rank, values in sorted(by_rank.items()):
        if len(values) != len(by_rank[0]):
            raise SimnetError(
                f"{path}: {name}: rank {rank} has {len(values)} steps, rank 0 has {len(by_rank[0])}: must be as many; "
                "measure again"
            )
    return np.array([by_rank[rank] for rank in range(world_size)])


def _waits(in_collectives_s: Floats) -> tuple[MetCollective, ...]:
    """Return the collectives of each step as one: the rank that was in them for the shortest time came last."""
    ranks = tuple(range(len(in_collectives_s)))
    return tuple(met(ranks, column - column.min()) for column in in_collectives_s.T)
