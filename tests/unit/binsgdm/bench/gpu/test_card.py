"""The look at the card: what nvidia-smi leaves out, each obstacle in one sentence, and others who are seen."""

from collections.abc import Sequence
from typing import Any

import pytest

from binsgdm.bench.gpu import card
from binsgdm.errors import BinsgdmError
from tests.helpers.needs import needs

SMI: dict[str, Any] = {
    "name": "NVIDIA H200", "uuid": "GPU-aa", "driver": "580.95.05", "memory_used_mib": 0.0, "utilization_percent": 0.0,
    "max_sm_clock_mhz": 1980.0, "power_limit_w": 700.0, "persistence_mode": "Enabled", "mig_mode": "Disabled",
}  # fmt: skip
VERSIONS = {"torch": "2.11.0+cu130", "cuda": "13.0", "rocm": "", "triton": "3.6.0", "nccl": "2.28", "python": "3.12"}
CARD: dict[str, Any] = {
    "name": "NVIDIA H200", "compute_capability": "9.0", "memory_bytes": 150e9, "free_bytes": 149e9,
}  # fmt: skip


def probed(*cards: dict[str, Any], error: str = "", **versions: str) -> dict[str, Any]:
    return {"versions": VERSIONS | versions, "cards": list(cards), "error": error}


def refusal(found: dict[str, Any], *smi: dict[str, Any], has_device: bool = True, **environment: str) -> str:
    said = card.refusal(found, smi, environment, has_device=has_device)
    assert "\n" not in said
    return said


def test_a_card_that_works_is_not_refused():
    assert refusal(probed(CARD), SMI) == ""
    assert refusal(probed(CARD), has_device=False) == "", "nvidia-smi may be missing in a container"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (refusal(probed(), has_device=False), "no GPU: neither the driver nor torch sees one: run on a machine"),
        (refusal(probed(cuda="", torch="2.13.0+cpu"), has_device=False), "no GPU: neither"),
        (refusal(probed(cuda="", torch="2.13.0+cpu"), SMI), "torch 2.13.0+cpu is built without CUDA: install a build"),
        (
            refusal(probed(error="The NVIDIA driver on your system is too old"), SMI | {"driver": "535.104.05"}),
            "torch 2.11.0+cu130 needs a driver from 580 on for CUDA 13.0, and the driver here is 535.104.05: update",
        ),
        (
            refusal(probed(error="no CUDA-capable device is detected"), SMI),
            "torch 2.11.0+cu130 sees no GPU, though a driver is there (no CUDA-capable device is detected): look at",
        ),
        (
            refusal(probed(error="CUDA error: out of memory"), SMI),
            "others hold the card (CUDA error: out of memory): wait until they have ended, or measure what",
        ),
        (refusal(probed(), CUDA_VISIBLE_DEVICES=""), "CUDA_VISIBLE_DEVICES='' hides every card: unset it, or"),
        (
            refusal(probed(CARD | {"name": "K80", "compute_capability": "3.7"}, error="no kernel image"), SMI),
            "torch 2.11.0+cu130 cannot use K80 (compute capability 3.7): no kernel image, or measure what a CPU can",
        ),
    ],
)
def test_every_obstacle_is_one_sentence(said, expected):
    assert said.startswith(expected)


def test_an_idle_card_is_described_without_a_note():
    needs("torch")  # which Triton's limits stand behind
    look = card.judged(probed(CARD, CARD), [SMI, SMI], [])
    assert (look["notes"], look["is_shared"], look["card"]["num_cards"]) == ([], False, 2)
    assert (look["card"]["name"], look["card"]["power_limit_w"]) == ("NVIDIA H200", 700.0)
    assert (look["software"]["driver"], look["software"]["triton"]) == ("580.95.05", "3.6.0")


def test_others_on_the_card_are_named():
    needs("torch")  # which Triton's limits stand behind
    other = {"uuid": "GPU-aa", "pid": 1, "name": "/usr/bin/python3", "memory_mib": 20480.0}
    elsewhere = {"uuid": "GPU-zz", "pid": 2, "name": "x", "memory_mib": 1.0}
    look = card.judged(probed(CARD), [SMI], [other, elsewhere])
    assert look["is_shared"]
    assert look["other_processes"] == [other]
    assert look["notes"][0].startswith("others use the card (1 processes: python3; 20,480 MiB): ")


@pytest.mark.parametrize("use", [{"memory_used_mib": 30000.0}, {"memory_used_mib": None, "utilization_percent": 60.0}])
def test_a_busy_card_is_seen_where_the_driver_names_no_process(use):
    needs("torch")  # which Triton's limits stand behind
    look = card.judged(probed(CARD), [SMI | use], [])
    assert look["is_shared"]
    assert "others seem to use the card" in look["notes"][0]


def test_a_probe_that_fails_is_one_sentence(monkeypatch):
    monkeypatch.setattr(card.sys, "executable", "/bin/false")
    with pytest.raises(BinsgdmError, match=r"torch cannot look at the card \(exit code 1\)"):
        card.probe()


H200 = "NVIDIA H200, GPU-aa, 580.95.05, 143771, 0, 0, 1980, 1980, 3201, 31, 76.05, 700.00, Enabled, Disabled\n"
V100 = "Tesla V100, GPU-bb, 535.104, 16384, 900, [N/A], 135, 1530, 877, 40, [Not Supported], 300.00, Disabled, [N/A]\n"


def asked(gpus: str, apps: str = "") -> card.Ask:
    def ask(arguments: Sequence[str]) -> str:
        return gpus if arguments[0].startswith("--query-gpu=") else apps

    return ask


def test_every_field_is_read_and_what_is_not_there_is_none():
    first, second = card.cards(asked(H200 + V100))
    assert (first["name"], first["driver"], first["memory_total_mib"]) == ("NVIDIA H200", "580.95.05", 143771.0)
    assert (first["power_w"], first["mig_mode"]) == (76.05, "Disabled")
    assert (second["power_w"], second["utilization_percent"], second["mig_mode"]) == (None, None, "")


def test_processes_of_others_are_read_with_names_that_hold_spaces():
    apps = "GPU-aa, 4242, /usr/bin/python3 -m train, 20480\nGPU-aa, 4243, [Not Found], [N/A]\nGPU-bb, -, -, -\n"
    first, second = card.processes(asked("", apps))
    assert list(first.values()) == ["GPU-aa", 4242, "/usr/bin/python3 -m train", 20480]
    assert second["memory_mib"] is None


def test_nothing_is_found_where_nvidia_smi_is_missing_or_fails(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert card.ask_smi(["-L"]) == ""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'Failed to initialize NVML'\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert card.cards() == []
    assert card.readings() == {}
    failed = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    assert card.cards(asked(failed)) == []


def test_the_visible_cards_are_chosen_as_cuda_does():
    both = card.cards(asked(H200 + V100))

    def seen(chosen: str) -> list[object]:
        return [one["uuid"] for one in card.visible(both, {"CUDA_VISIBLE_DEVICES": chosen})]

    assert [one["uuid"] for one in card.visible(both, {})] == ["GPU-aa", "GPU-bb"]
    assert seen("1,0") == ["GPU-bb", "GPU-aa"]
    assert seen("GPU-b") == ["GPU-bb"]
    assert seen("") == seen("-1,0") == seen("MIG-cc") == []
