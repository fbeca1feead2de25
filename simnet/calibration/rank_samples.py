"""The times of every rank in every step of a run, in one form whatever they were read from."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simnet.calibration.fit import Floats
from simnet.calibration.measurement_file import MeasurementFile
from simnet.core.errors import SimnetError

SIGNIFICANCE = 0.1
"""Of all ranks together: the intervals of their medians all hold with a probability of 90 % at least."""
STEP, COMPUTE = "rank_step", "rank_compute"
"""Series of `simnet measure training`."""
_AGAIN = "measure one --model with one --strategy at a time"


@dataclass(frozen=True, kw_only=True)
class MetCollective:
    """One collective of one step, as its ranks met there.

    Attributes:
        ranks: that took part.
        last: the one that came last.
        waits_s: how long each of them waited for that one, in their order [s].
    """

    ranks: tuple[int, ...]
    last: int
    waits_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class RankSamples:
    """The times of all ranks of a run; a row is a rank, a column a step.

    Attributes:
        where: the files, as messages call them.
        ranks_per_node: ranks of each node.
        compute_s: what a rank computed in a step [s].
        own_s: the same with the time in which a rank stood still, but not for others [s].
        collectives: at which ranks met; none where they waited for nobody.
        notes: sentences for people.
    """

    where: str
    ranks_per_node: int
    compute_s: Floats
    own_s: Floats
    collectives: tuple[MetCollective, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def num_ranks(self) -> int:
        """Ranks of all nodes."""
        return len(self.compute_s)

    @property
    def num_steps(self) -> int:
        """Steps of each rank."""
        return len(self.compute_s[0])


def met(ranks: tuple[int, ...], waits_s: Floats, last: int | None = None) -> MetCollective:
    """Return a collective by how long each of its ranks was in it beyond the one that came last.

    Args:
        ranks: that took part.
        waits_s: of each of them.
        last: place of the one that came last, if it is not the one that waited least.
    """
    at = int(waits_s.argmin()) if last is None else last
    return MetCollective(ranks=ranks, last=ranks[at], waits_s=tuple(waits_s.tolist()))


def check_enough(samples: RankSamples) -> None:
    """Refuse one rank alone, and so few steps that no median has an interval."""
    if samples.num_ranks < 2:
        raise SimnetError(
            f"{samples.where}: one rank only: a slow rank shows in comparison with others; give the files of all ranks"
        )
    # From here on the shortest and the longest time are an interval, and those of all ranks hold together.
    least = math.ceil(math.log2(2 * samples.num_ranks / SIGNIFICANCE))
    if samples.num_steps < least:
        raise SimnetError(
            f"{samples.where}: {samples.num_steps} steps of {samples.num_ranks} ranks: must be at least {least}, since "
            "fewer have no interval of the median; measure more steps"
        )


def of_training(files: Sequence[tuple[Path, MeasurementFile]]) -> RankSamples:
    """Return the steps of one training of `simnet measure`, those of several files one after the other.

    Raises:
        SimnetError: a file has no times of single ranks, lacks some, or the files hold several trainings.
    """
    trainings = [_training(path, whole) for path, whole in files]
    for (path, _), training in zip(files, trainings, strict=True):
        if training != trainings[0]:
            raise SimnetError(f"{path}: another training than {files[0][0]}: must be the same setting; {_AGAIN}")
    steps, computes = (np.hstack([_times(path, whole, name) for path, whole in files]) for name in (STEP, COMPUTE))
    if steps.shape != computes.shape:
        raise SimnetError(f"{files[0][0]}: {STEP} and {COMPUTE} differ in their number: must be as many; measure again")
    kind, *_, ranks_per_node = trainings[0]
    ranks, in_collectives_s = tuple(range(len(steps))), steps - computes
    return RankSamples(
        where=", ".join(str(path) for path, _ in files),
        ranks_per_node=ranks_per_node,
        compute_s=computes,
        own_s=computes,
        # The collectives of a step as one: the rank that was in them for the shortest time came last. Without
        # messages a step is its compute, and nobody waits.
        collectives=tuple(met(ranks, step_s - step_s.min()) for step_s in in_collectives_s.T)
        if kind == "training"
        else (),
    )


def _training(path: Path, whole: MeasurementFile) -> tuple[str, str, str, int, int]:
    """Return kind and labels of the training whose ranks a file holds, its device, nodes and ranks of each."""
    trainings = {}
    for series in whole.series:
        if "rank" in series.labels:
            # Series that differ in the rank alone are those of one training.
            labels = {key: value for key, value in series.labels.items() if key != "rank"}
            trainings[series.kind, json.dumps(labels, sort_keys=True), series.setup] = labels
    if not trainings:
        raise SimnetError(
            f"{path}: holds no times of single ranks: give a file of simnet measure training with several ranks, which "
            "this version has written"
        )
    if len(trainings) > 1:
        names = " and ".join(
            f"{labels_of['model']} with {labels_of['strategy']}" for labels_of in list(trainings.values())[:2]
        )
        raise SimnetError(f"{path}: {len(trainings)} trainings, such as {names}: must be one; {_AGAIN}")
    ((kind, labels_text, number),) = trainings
    setup = whole.setups[number]
    return kind, labels_text, setup.device, setup.num_nodes, setup.ranks_per_node


def _times(path: Path, whole: MeasurementFile, name: str) -> Floats:
    """Return the times of every rank, a row a rank."""
    of_name = [series for series in whole.series if series.name == name]
    by_rank = {series.count("rank"): series.values for series in of_name}
    world_size = whole.setups[of_name[0].setup].world_size if of_name else 0
    missing = sorted(set(range(world_size)) - set(by_rank))
    if missing or len(of_name) > world_size or not of_name:
        what = f"rank {missing[0]} is missing" if missing else f"{len(of_name)} series of {world_size} ranks"
        raise SimnetError(f"{path}: {name}: {what}: must be one of every rank; measure again")
    for rank, values in sorted(by_rank.items()):
        if len(values) != len(by_rank[0]):
            raise SimnetError(
                f"{path}: {name}: rank {rank} has {len(values)} steps, rank 0 has {len(by_rank[0])}: must be as many; "
                "measure again"
            )
    return np.array([by_rank[rank] for rank in range(world_size)])
