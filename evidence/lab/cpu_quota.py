"""Hold each rank of a lab to a part of a core, by control groups of the kernel that are the lab's own."""

from collections.abc import Sequence
from pathlib import Path

from evidence.lab.owner import Owner
from simnet.core.errors import SimnetError

PERIOD_S = 5e-3
"""Time in which a rank has its part of a core. A rank that waited finds the whole part of a period unused, so that the
period must be short beside a step; much shorter ones than the kernel's tick of 4 ms give ranks less than their part."""
LEAST_CORES = 0.02
LEAST_QUOTA_US = 1000
"""Of the kernel: a smaller part of a core has a longer period."""
_VERSION_1 = Path("/sys/fs/cgroup/cpu")
_VERSION_2 = Path("/sys/fs/cgroup")


class CpuQuotas:
    """The control groups of a lab's ranks, one each; they end with the lab.

    Example: `quotas = CpuQuotas(prefix, [0.4, 0.4]); quotas.set_cores(1, 0.2); quotas.remove()`.
    """

    def __init__(self, prefix: str, cores: Sequence[float]) -> None:
        """Make a group for each rank.

        Args:
            prefix: start of the names of the lab's namespaces, which name its owner.
            cores: part of a core that each rank has; more than 1 for several cores.

        Raises:
            SimnetError: a part is not above 0, or the kernel has no groups that limit CPU time.
        """
        self._is_second = not _VERSION_1.is_dir()
        root = _VERSION_2 if self._is_second else _VERSION_1
        self._folders = [root / f"{prefix}-rank{rank}" for rank in range(len(cores))]
        try:
            for folder in self._folders:
                _make(folder)
            for rank, part in enumerate(cores):
                self.set_cores(rank, part)
        except BaseException:
            self.remove()
            raise

    def set_cores(self, rank: int, cores: float) -> None:
        """Set the part of a core that a rank has from now on."""
        if not cores >= LEAST_CORES:
            raise SimnetError(f"lab: cores of rank {rank}: {cores:g}: must be at least {LEAST_CORES:g}")
        quota_us = max(LEAST_QUOTA_US, round(PERIOD_S * 1e6 * cores))
        period_us = round(quota_us / cores)
        try:
            if self._is_second:
                (self._folders[rank] / "cpu.max").write_text(f"{quota_us} {period_us}", encoding="ascii")
                return
            (self._folders[rank] / "cpu.cfs_period_us").write_text(str(period_us), encoding="ascii")
            (self._folders[rank] / "cpu.cfs_quota_us").write_text(str(quota_us), encoding="ascii")
        except OSError as error:
            raise _refused(error) from error

    def entries(self) -> list[str]:
        """Return the file of each rank into which it writes its process id to be held."""
        return [str(folder / "cgroup.procs") for folder in self._folders]

    def remove(self) -> None:
        """Remove the groups, whose processes must have ended."""
        for folder in self._folders:
            _remove(folder)


def remove_groups_of(owner: Owner) -> None:
    """Remove the groups that a lab has left whose owner has ended."""
    for root in (_VERSION_1, _VERSION_2):
        for folder in root.glob(f"{owner.prefix}-rank*"):
            _remove(folder)


def _make(folder: Path) -> None:
    try:
        folder.mkdir()
    except OSError as error:
        raise _refused(error) from error


def _refused(error: OSError) -> SimnetError:
    rule = "needs the cpu controller of control groups; run as root, where the kernel has it"
    return SimnetError(f"lab: cores per rank: cannot be limited ({error.strerror}): {rule}")


def _remove(folder: Path) -> None:
    # A group that is busy for a moment is taken by the next `remove_abandoned`.
    try:
        folder.rmdir()
    except OSError:
        return
