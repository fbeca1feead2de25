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


def test_a_driver_that_does_not_know_a_field_is_asked_for_the_oldest():
    def ask(arguments: Sequence[str]) -> str:
        return "" if "mig.mode" in arguments[0] else "Tesla V100, GPU-bb, 440.33, 16384, 900\n"

    (card,) = nvidia_smi.cards(ask)
    assert (card["driver"], card["memory_used_mib"], card["mig_mode"], card["power_w"]) == ("440.33", 900.0, "", None)


def test_processes_of_others_are_read_with_names_that_hold_spaces():
    apps = "GPU-aa, 4242, /usr/bin/python3 -m train, 20480\nGPU-aa, 4243, [Not Found], [N/A]\nGPU-bb, -, -, -\n"
    first, second = nvidia_smi.processes(asked("", apps))
    assert (first.uuid, first.pid, first.name, first.memory_mib) == ("GPU-aa", 4242, "/usr/bin/python3 -m train", 20480)
    assert second.memory_mib is None


def test_odd_answers_are_no_numbers_and_no_controls_of_a_terminal():
    apps = "GPU-aa, 1, /bin/\x1b[31mred, nan\nGPU-aa, \u00b2, x, 1\n"
    (process,) = nvidia_smi.processes(asked("", apps))
    assert (process.name, process.memory_mib) == ("/bin/?[31mred", None)


def test_an_answer_in_no_encoding_is_read_all_the_same(monkeypatch, tmp_path):
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\nprintf 'GPU-aa, 1, \\377, 5\\n'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert [process.pid for process in nvidia_smi.processes()] == [1]


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


def test_readings_are_of_the_first_visible_card(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    found = nvidia_smi.readings(asked(H200 + V100))
    assert set(found) == set(nvidia_smi.READINGS)
    assert (found["temperature_celsius"], found["sm_clock_mhz"]) == (40.0, 135.0)
