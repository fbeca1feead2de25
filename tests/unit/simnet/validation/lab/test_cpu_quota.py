"""Parts of cores as the kernel's control groups take them, on folders that stand for its own."""

from pathlib import Path

import pytest

from simnet.core.errors import SimnetError
from simnet.validation.lab import cpu_quota
from simnet.validation.lab.cpu_quota import CpuQuotas


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cpu_quota, "_VERSION_1", tmp_path)
    return tmp_path


def test_the_second_version_has_both_numbers_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_quota, "_VERSION_1", tmp_path / "none")
    monkeypatch.setattr(cpu_quota, "_VERSION_2", tmp_path)
    CpuQuotas("lab", [0.5])
    quota_us, period_us = map(int, (tmp_path / "lab-rank0" / "cpu.max").read_text().split())
    assert quota_us / period_us == pytest.approx(0.5)


@pytest.mark.parametrize("cores", [0.0, -1.0, float("nan"), 0.001])
def test_a_part_that_is_too_small_is_refused_and_no_group_is_left(cores: float, groups: Path) -> None:
    with pytest.raises(SimnetError, match=r"^lab: cores of rank 1: .*: must be at least 0.02$"):
        CpuQuotas("lab", [0.4, cores])
    # A folder of the kernel's is removed with its files; these are plain ones.
    assert not (groups / "lab-rank1").exists()


def test_a_kernel_without_such_groups_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_quota, "_VERSION_1", tmp_path / "none")
    monkeypatch.setattr(cpu_quota, "_VERSION_2", tmp_path / "none")
    with pytest.raises(SimnetError, match=r"^lab: cores per rank: cannot be limited .*: needs the cpu controller"):
        CpuQuotas("lab", [0.4])


def test_each_rank_writes_itself_into_its_group(groups: Path) -> None:
    assert CpuQuotas("lab", [1, 1]).entries() == [str(groups / f"lab-rank{rank}" / "cgroup.procs") for rank in (0, 1)]
