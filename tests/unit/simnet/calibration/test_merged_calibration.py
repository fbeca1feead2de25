"""A fit laid over a calibration: what was measured replaces, all else stays, and both say whose they are."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from simnet.calibration import merged_calibration
from simnet.core.files import data_path
from tests.helpers.cli import assert_refused, run
from tests.helpers.golden import IPERF3

LOGS = [str(data_path("published", "nccl-tests", f"a100_azure_nd_v4_{gpus}gpus.log")) for gpus in (4, 8)]
ON_16 = str(data_path("published", "nccl-tests", "a100_azure_nd_v4_16gpus.log"))
BASE = "a100_tcp_estimate"


def test_a_fit_replaces_what_it_measured_with_its_intervals_and_nothing_else() -> None:
    given: dict[str, Any] = {
        "title": "t",
        "kind": "estimate",
        "memory_bandwidth": "1 GB/s",
        "inter_node": {"latency": "1 us", "efficiency": 0.5, "source": "s"},
        "kernels": {
            "merge": {"launch": "1 us", "time_per_element": "1 ns", "cached_elements": 9},
            "quantize": {"time_per_element": "2 ns"},
        },
        "nccl": {"start": "1 us"},
        "libraries": {
            "mpi": {"carries": ["one_bit_adam", "qsgd"], "efficiency": 0.5}, "gloo": {"carries": ["top_k"]}
        },
        "by_nodes": [
            {"nodes": 2, "efficiency": 0.5, "latency": "2 us", "intervals": {"latency": [1, 2], "efficiency": [1, 2]}},
            {"nodes": 4, "efficiency": 0.4, "intervals": {}},
        ],
        "intervals": {
            "memory_bandwidth": [0.5, 1.0],
            "inter_node.efficiency": [0.5, 2.0],
            "inter_node.latency": [0.5, 2.0],
            "kernels.merge.launch": [0.1, 9.0],
            "kernels.quantize.time_per_element": [0.5, 2.0],
            "nccl.start": [0.5, 2.0],
        },
    }  # fmt: skip
    measured: dict[str, Any] = {
        "title": "mine",
        "inter_node": {"efficiency": 0.9, "measured_on": "10 Gbit/s"},
        "kernels": {"merge": {"time_per_element": "3 ns"}},
        "libraries": {"qsgd": {"carries": ["qsgd", "top_k"], "efficiency": 0.7}},
        "intervals": {"inter_node.efficiency": [0.99, 1.01]},
    }
    found = merged_calibration.lay_over(measured, given)
    assert found["title"] == "mine"
    assert found["inter_node"] == {"latency": "1 us", "efficiency": 0.9, "source": "s", "measured_on": "10 Gbit/s"}
    assert found["kernels"] == {"merge": {"time_per_element": "3 ns"}, "quantize": {"time_per_element": "2 ns"}}
    assert found["by_nodes"] == [{"nodes": 2, "latency": "2 us", "intervals": {"latency": [1, 2]}}]
    assert "nccl" not in found, "it was fitted to other links"
    assert found["libraries"] == {
        "mpi": {"carries": ["one_bit_adam"], "efficiency": 0.5},
        "qsgd": {"carries": ["qsgd", "top_k"], "efficiency": 0.7},
    }  # fmt: skip
    assert found["intervals"] == {
        "memory_bandwidth": [0.5, 1.0],
        "inter_node.latency": [0.5, 2.0],
        "kernels.quantize.time_per_element": [0.5, 2.0],
        "inter_node.efficiency": [0.99, 1.01],
    }


def test_logs_over_an_estimate_keep_its_kernels_with_their_width(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    done = run("calibrate", *LOGS, ON_16, "--cluster", "azure_nd_a100_v4", "--base", BASE, "--draws", "20", "-o", path)
    assert done.exit_code == 0, done.output
    whole, base = (tomllib.loads(one.read_text()) for one in (path, data_path("calibrations", f"{BASE}.toml")))
    assert whole["kind"] == "estimate"
    assert whole["gpu"] == base["gpu"], "of the kernels"
    for key in ("codec_efficiency", "memory_bandwidth", "kernel_launch"):
        assert whole[key] == base[key]
        assert whole["intervals"][key] == base["intervals"][key]
    assert whole["inter_node"]["measured_on"] == "200 Gbit/s"
    assert f"from {BASE} (estimate) with its intervals" in whole["source"]
    assert "kernels are those of A100-80GB" in " ".join(done.stdout.split())
    told = run("simulate", "bert_base_10gbit", "--set", f"calibration={path}", "--draws", "60", "--format", "json")
    assert told.exit_code == 0, told.output
    result = json.loads(told.stdout)
    low, high = result["intervals"]["speedup"]
    assert result["result"]["breakdown"]["encode_s"] > 0
    assert high / low > 1.1, "1.004 from the logs alone"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((*LOGS, "--base", "a100"), "'a100': unknown calibration"),
        ((*LOGS, "--base", "none.toml"), "'none.toml': no such file"),
        ((*LOGS, "--base", "mine.toml", "-o", "mine.toml"), "mine.toml: is an input"),
        ((str(IPERF3), "--base", "odd.toml"), "odd.toml: inter_node.efficiency: 2"),
    ],
)
def test_a_base_that_cannot_be_is_refused(
    args: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text('kind = "estimate"')
    Path("odd.toml").write_text("[inter_node]\nefficiency = 2")
    assert_refused(run("calibrate", *args, "--draws", "20"), message)
    assert Path("mine.toml").read_text() == 'kind = "estimate"'
