"""GPUs by name: their peaks as data sheets have them, and what is refused."""

import pytest

from simnet.calibration.card_folder import card_label
from simnet.cluster import hardware
from simnet.cluster.faults.other_nodes import OtherNodes
from simnet.core import files, schema
from simnet.engine.scenario import load
from simnet.workload.workload import ComputeTime
from tests.helpers.refusals import refused

BUILT = {"name": "mine", "memory": "80 GB", "bandwidth": "2 TB/s", "peak_flops": {"fp32": 2e13}}

MULTIPROCESSORS = {
    "V100-32GB": (80, 1024, 1.53),
    "A100-80GB": (108, 2048, 1.41),
    "H100-80GB": (132, 4096, 1.83),
    "H100-PCIe": (114, 4096, 1.62),
    "H200": (132, 4096, 1.83),
    "L40S": (142, 1024, 2.49),
    "A10": (72, 1024, 1.695),
    "T4": (40, 1024, 1.59),
    "RTX-3090": (82, 512, 1.695),
    "RTX-4090": (128, 512, 2.52),
    "MI250X": (220, 1024, 1.7),
    "MI300X": (304, 2048, 2.1),
}
"""Multiprocessors, FLOPs of each in a cycle in fp16 (dense, fp32 accumulated), and boost clock in GHz."""


@pytest.mark.parametrize("name", MULTIPROCESSORS)
def test_peaks_are_those_of_the_multiprocessors_at_their_clock(name: str) -> None:
    processors, flops_per_cycle, clock_ghz = MULTIPROCESSORS[name]
    wanted = processors * flops_per_cycle * clock_ghz * 1e9
    assert hardware.find_gpu(name).peak_flops["fp16"] == pytest.approx(wanted, rel=0.005)
    whole, die = hardware.find_gpu("MI250X"), hardware.find_gpu("MI250X-die")
    assert die.memory_bytes * 2 == whole.memory_bytes
    assert die.memory_bytes_per_s * 2 == whole.memory_bytes_per_s
    assert {key: peak * 2 for key, peak in die.peak_flops.items()} == whole.peak_flops


@pytest.mark.parametrize("name", files.names("gpus"))
def test_peaks_grow_as_formats_shrink_and_have_a_source(name: str) -> None:
    gpu = hardware.find_gpu(name)
    peaks = [gpu.peak_flops[key] for key in ("fp32", "tf32", "fp16", "fp8") if key in gpu.peak_flops]
    assert peaks == sorted(peaks)
    assert gpu.peak_flops.get("bf16", peaks[-1]) in (gpu.peak_flops["fp16"], peaks[-1])
    assert 8e12 <= gpu.peak_flops["fp32"] < gpu.peak_flops["fp16"] <= 2.25e15, "dense, without sparsity"
    assert 3e11 <= gpu.memory_bytes_per_s <= 8e12
    assert "data sheet" in gpu.source or "white paper" in gpu.source
    assert f"{gpu.memory_bytes / 1e9:.0f} GB" in gpu.title


def test_shipped_clusters_calibrations_and_compute_rows_name_gpus_of_the_table() -> None:
    parts = [files.read(kind, name) for kind in ("clusters", "calibrations") for name in files.names(kind)]
    rows = [row for name in files.names("workloads") for row in files.read("workloads", name).get("compute", [])]
    named = {str(part["gpu"]) for part in [*parts, *rows] if part.get("gpu")}
    assert len(named) >= 4
    assert named <= set(files.names("gpus"))


def test_a_card_that_names_itself_is_in_the_table_and_an_unknown_one_is_told_its_nearest_name() -> None:
    of_themselves = (
        "NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 PCIe", "Tesla T4", "NVIDIA B200",
    )  # fmt: skip
    assert all(hardware.known_gpu(card_label(name)) is not None for name in of_themselves)
    for name, near in (("H100-80GBs", "'H100-80GB'"), ("a100-", "'A100-40GB' or 'A100-80GB' or 'A100-PCIe-80GB'")):
        with refused(start=f"'{name}': unknown GPU. Did you mean {near}?"):
            hardware.find_gpu(name)
    assert (hardware.known_gpu(""), hardware.known_gpu("../gpus/H200.toml")) == (None, None)


@pytest.mark.parametrize(("word", "card"), [("H100", "H100-80GB"), ("a100", "A100-80GB"), ("V100", "V100-32GB")])
def test_the_bare_name_of_a_gpu_is_its_usual_card_everywhere(word: str, card: str) -> None:
    assert hardware.find_gpu(word).name == card
    scenario = load("bert_base_10gbit", {"cluster.gpu": word, "calibration.gpu": word})
    row = ComputeTime(gpu=word, precision="fp16", batch=1, samples_per_s=1.0, optimizer="adam", source="x")
    assert {scenario.cluster.gpu, scenario.calibration.gpu, row.gpu} == {card}
    assert OtherNodes(at_nodes=(1,), gpu=word).gpu == card


def test_a_format_that_a_gpu_has_not_is_refused_with_those_that_it_has() -> None:
    for name, precision in (("V100-32GB", "bf16"), ("T4", "bf16"), ("T4", "tf32"), ("A100-80GB", "fp8")):
        with refused("take one of them", start=f"'{precision}': {name} has no peak in it: it has fp32, "):
            hardware.find_gpu(name).peak_in(precision)


def test_a_wrong_data_sheet_is_refused() -> None:
    assert schema.build(hardware.GpuModel, BUILT, "mine").peak_in("fp32") == 2e13
    for change, said in (
        ({"bandwidth": "1 kB/s"}, "bandwidth: ... must be at least 1 MB/s"),
        ({"peak_flops": {"fp32": 0.0}}, "peak_flops.fp32: 0.0: must be a number"),
        ({"peak_flops": {"int8": 1e12}}, "peak_flops"),
        ({"memory": 80}, "memory: 80: write a number and a unit"),
    ):
        with refused(*said.split(" ... ")):
            schema.build(hardware.GpuModel, {**BUILT, **change}, "mine")
