"""What `simnet measure gpu` checks over all cards, here over two gloo ranks on a CPU."""

import json
import sys
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")

sys.path.insert(0, str(Path(__file__).parent))

import gpu_parts

from binsgdm.compressors.registry import SYSTEMS
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


def test_a_replica_that_differs_in_one_bit_another_control_and_an_error_are_found(checks):
    assert [check["name"] for check in checks["planted"] if check["passed"]] == []
    details = {check["name"]: check["detail"] for check in checks["planted"]}
    assert details.pop("an error").startswith("ZeroDivisionError")
    assert len(details) == 9
    assert [name for name, detail in details.items() if not detail.endswith("tensors differ")] == []
    assert details["a bit of rank 1"] == "1 tensors differ"


def test_all_ranks_stop_together_where_rank_0_has_no_time(checks):
    made, notes = checks["short"]
    assert len(made) == 1
    assert len(notes) == 1
    assert "no time was left for" in notes[0]


def test_what_a_script_calls_is_compared(checks):
    whole = " ".join(check["name"] for check in checks["good"])
    for name in ("attach with DDP", "attach_fsdp", "compress_replicas, ef_sign_sgd", "LocalSGD bf16", "DiLoCo one_bit"):
        assert f"2 ranks over gloo: {name}" in whole
