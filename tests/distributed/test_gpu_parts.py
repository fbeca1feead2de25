"""What `simnet measure gpu` checks over all cards, here over two gloo ranks on a CPU."""

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).parent))

import gpu_parts

from binsgdm.systems.registry import SYSTEMS
from tests.helpers.launch import launch, meeting_point


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checks")
    with meeting_point() as where:
        launch(gpu_parts.work, where, str(folder), nprocs=gpu_parts.WORLD_SIZE)
    return json.loads((folder / "checks.json").read_text())


def test_two_ranks_pass_every_check(checks):
    assert [check for check in checks["good"] if not check["passed"]] == []
    names = [check["name"] for check in checks["good"]]
    assert len(set(names)) == len(names)
    assert sum(name.startswith("2 ranks over gloo: BinSGDM") for name in names) == 2 * 6 * 2
    assert sum(name.endswith("in DDP's hook") for name in names) == len(SYSTEMS)


def test_a_replica_that_differs_in_one_bit_another_mean_and_an_error_are_found(checks):
    assert [check["passed"] for check in checks["planted"]] == [False] * 3
    assert checks["planted"][0]["detail"] == "1 tensors differ"
    assert checks["planted"][2]["detail"].startswith("ZeroDivisionError")
