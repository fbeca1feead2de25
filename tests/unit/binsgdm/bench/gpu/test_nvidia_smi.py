"""What nvidia-smi prints, with all that it leaves out on some cards."""

from collections.abc import Sequence

from binsgdm.bench.gpu import nvidia_smi

H200 = "NVIDIA H200, GPU-aa, 580.95.05, 143771, 0, 0, 1980, 1980, 3201, 31, 76.05, 700.00, Enabled, Disabled\n"
V100 = "Tesla V100, GPU-bb, 535.104, 16384, 900, [N/A], 135, 1530, 877, 40, [Not Supported], 300.00, Disabled, [N/A]\n"


def asked(gpus: str, apps: str = "") -> nvidia_smi.Ask:
    def ask(arguments: Sequence[str]) -> str:
        return gpus if arguments[0].startswith("--query-gpu=") else apps

    return ask


def test_every_field_is_read_and_what_is_not_there_is_none():
    first, second = nvidia_smi.cards(asked(H200 + V100))
    assert (first["name"], first["driver"], first["memory_total_mib"]) == ("NVIDIA H200", "580.95.05", 143771.0)
    assert (first["power_w"], first["mig_mode"]) == (76.05, "Disabled")
    assert (second["power_w"], second["utilization_percent"], second["mig_mode"]) == (None, None, "")


def test_processes_of_others_are_read_with_names_that_hold_spaces():
    apps = "GPU-aa, 4242, /usr/bin/python3 -m train, 20480\nGPU-aa, 4243, [Not Found], [N/A]\nGPU-bb, -, -, -\n"
    first, second = nvidia_smi.processes(asked("", apps))
    assert (first.uuid, first.pid, first.name, first.memory_mib) == ("GPU-aa", 4242, "/usr/bin/python3 -m train", 20480)
    assert second.memory_mib is None


def test_nothing_is_found_where_nvidia_smi_is_missing_or_fails(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia_smi.ask(["-L"]) == ""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'Failed to initialize NVML'\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert nvidia_smi.cards() == []
    assert nvidia_smi.readings() == {}
    failed = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    assert nvidia_smi.cards(asked(failed)) == []


def test_the_visible_cards_are_chosen_as_cuda_does():
    both = nvidia_smi.cards(asked(H200 + V100))

    def seen(chosen: str) -> list[object]:
        return [card["uuid"] for card in nvidia_smi.visible(both, {"CUDA_VISIBLE_DEVICES": chosen})]

    assert [card["uuid"] for card in nvidia_smi.visible(both, {})] == ["GPU-aa", "GPU-bb"]
    assert seen("1,0") == ["GPU-bb", "GPU-aa"]
    assert seen("GPU-b") == ["GPU-bb"]
    assert seen("") == seen("-1,0") == seen("MIG-cc") == []
