"""Parts of cores as the kernel's control groups take them, on folders that stand for its own."""

from pathlib import Path

import pytest

from evidence.lab import cpu_quota
from evidence.lab.cpu_quota import CpuQuotas
from tests.helpers.refusals import refused


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cpu_quota, "_VERSION_1", tmp_path)
    return tmp_path


def test_the_second_version_has_both_numbers_in_one_file_and_a_kernel_without_either_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_quota, "_VERSION_1", tmp_path / "none")
    monkeypatch.setattr(cpu_quota, "_VERSION_2", tmp_path / "none")
    with refused(": needs the cpu controller", start="lab: cores per rank: cannot be limited "):
        CpuQuotas("lab", [0.4])
    monkeypatch.setattr(cpu_quota, "_VERSION_2", tmp_path)
    CpuQuotas("lab", [0.5])
    quota_us, period_us = map(int, (tmp_path / "lab-rank0" / "cpu.max").read_text().split())
    assert quota_us / period_us == pytest.approx(0.5)


def test_a_part_that_is_too_small_is_refused_and_no_group_is_left(groups: Path) -> None:
    for number, cores in enumerate((0.0, -1.0, float("nan"), 0.001)):
        with refused(": must be at least 0.02", start="lab: cores of rank 1: "):
            CpuQuotas(f"lab{number}", [0.4, cores])
        # A folder of the kernel's is removed with its files; these are plain ones.
        assert not (groups / f"lab{number}-rank1").exists()
    assert CpuQuotas("lab", [1, 1]).entries() == [str(groups / f"lab-rank{rank}" / "cgroup.procs") for rank in (0, 1)]
