"""`simnet init`: what it writes runs, and what it refuses."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from simnet.cli import init
from simnet.cli.main import cli
from simnet.core import files
from simnet.engine.scenario import load, load_experiment
from simnet.engine.simulation import check, simulate
from tests.helpers.cli import run

MODELS = {
    "bert_base": "A100-40GB",
    "llama_1b": "H100-80GB",
    "resnet50": "V100-16GB",
    "vgg16": "T4",
    "t5_large": "MI300X",
}
STRATEGIES = ("binsgdm", "hsdp", "power_sgd", "local_sgd", "all_reduce")
SIZES = ((2, 2), (3, 4))


def written(folder: Path, *flags: str) -> Path:
    path = folder / "mine.toml"
    result = run("init", str(path), "--yes", *flags)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.endswith(f"wrote {path}; try: simnet simulate {path}\n")
    return path


def test_every_default_is_taken_with_yes(tmp_path: Path) -> None:
    scenario = load(str(written(tmp_path)))
    assert (scenario.cluster.num_nodes, scenario.cluster.ranks_per_node) == (4, 8)
    assert simulate(scenario).speedup is not None


@pytest.mark.parametrize("gpu", files.names("gpus"))
def test_what_is_written_runs_for_every_gpu(tmp_path: Path, gpu: str) -> None:
    check(load(str(written(tmp_path, "--gpu", gpu, "--workload", "llama_1b"))))


@pytest.mark.parametrize(
    ("model", "strategy", "size"),
    [(model, STRATEGIES[(first + second) % 5], size) for first, model in enumerate(MODELS)
     for second, size in enumerate(SIZES)],
)  # fmt: skip
def test_what_is_written_is_simulated(tmp_path: Path, model: str, strategy: str, size: tuple[int, int]) -> None:
    flags = ("--workload", model, "--gpu", MODELS[model], "--strategy", strategy, "--batch", "4", "--nic", "100 Gbit/s")
    cluster = ("--nodes", str(size[0]), "--gpus", str(size[1]), "--nics", "2", "--accumulation", "8")
    path = written(tmp_path, *flags, *cluster)
    scenario = load(str(path), {"run.draws": 0})
    assert (scenario.cluster.num_nodes, scenario.cluster.ranks_per_node, scenario.cluster.nics_per_node) == (*size, 2)
    assert (scenario.workload.batch_per_rank, scenario.grad_accumulation) == (4, 8)
    result = simulate(scenario)
    assert result.result.strategy == strategy
    assert result.result.iteration_s > 0
    assert result.speedup is not None


def test_the_sweep_in_it_is_around_what_was_given(tmp_path: Path) -> None:
    swept = load_experiment(str(written(tmp_path, "--nodes", "3", "--nic", "40 Gbit/s")))
    assert [axis.key for axis in swept.axes] == ["cluster.num_nodes", "cluster.inter_node.bandwidth"]
    assert [axis.values for axis in swept.axes] == [
        (1, 2, 3, 6, 12),
        ("10 Gbit/s", "20 Gbit/s", "40 Gbit/s", "80 Gbit/s", "160 Gbit/s"),
    ]


def test_a_file_of_a_model_is_taken_from_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = files.locate("workloads", "bert_base").read_text(encoding="utf-8")
    (tmp_path / "my model.toml").write_text(model.replace("[[", "# mine\n[[", 1), encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    path = written(Path("elsewhere"), "--workload", "my model.toml")
    assert 'use = "../my model.toml"' in path.read_text(encoding="utf-8")
    assert load(str(path)).workload.gradient_bytes == load("bert_base_10gbit").workload.gradient_bytes


def test_what_no_option_says_is_asked_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "_is_watched", lambda: True)
    path = tmp_path / "asked.toml"
    answers = "H100-80GB\n16\n\n50 Gbit/s\nroce\n\n\nllama_1b\n2\n\nhsdp\n"
    result = CliRunner().invoke(cli, ["init", str(path)], input=answers)
    assert result.exit_code == 0, result.output
    scenario = load(str(path))
    assert (scenario.cluster.gpu, scenario.cluster.num_nodes, scenario.cluster.ranks_per_node) == ("H100-80GB", 16, 8)
    assert "one direction [450 GB/s]" in result.stderr
    assert scenario.calibration.name == "h100_infiniband"


def test_a_network_that_there_is_not_is_refused_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "_is_watched", lambda: True)
    result = CliRunner().invoke(cli, ["init", str(tmp_path / "asked.toml")], input="\n\n\n\nrocee\n")
    assert result.exit_code == 2
    assert result.stderr.endswith("--network: 'rocee': must be one of tcp, roce, infiniband; give one of them\n")


def test_an_answer_that_is_no_number_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "_is_watched", lambda: True)
    result = CliRunner().invoke(cli, ["init", str(tmp_path / "a.toml")], input="T4\nmany\n2" + "\n" * 12)
    assert result.exit_code == 0, result.output
    assert "'many' is not a valid integer" in result.output
    assert load(str(tmp_path / "a.toml")).cluster.num_nodes == 2


@pytest.mark.parametrize(("flags", "calibration", "latency_s"), [
    (("--gpu", "H100-80GB", "--nic", "400 Gbit/s"), "h100_infiniband", 4e-6),
    (("--gpu", "H200", "--nic", "100 Gbit/s", "--network", "roce"), "h100_infiniband", 4e-6),
    (("--gpu", "A100-80GB", "--nic", "200 Gbit/s"), "azure_nd_a100_v4", 4e-6),
    (("--gpu", "A100-80GB", "--nic", "100 Gbit/s"), "a100_tcp_estimate", 14e-6),
    (("--gpu", "A100-80GB", "--nic", "400 Gbit/s", "--network", "tcp"), "a100_tcp_estimate", 14e-6),
    (("--gpu", "V100-16GB", "--nic", "100 Gbit/s", "--network", "infiniband"), "azure_nd_a100_v4", 4e-6),
    (("--gpu", "V100-16GB", "--nic", "25 Gbit/s"), "v100_tcp_estimate", 14e-6),
])  # fmt: skip
def test_the_calibration_is_that_of_the_nearest_cluster(
    tmp_path: Path, flags: tuple[str, ...], calibration: str, latency_s: float
) -> None:
    scenario = load(str(written(tmp_path, *flags, "--nics", "8")))
    assert scenario.calibration.name == calibration
    assert scenario.cluster.inter_node.alpha_s == latency_s
    assert simulate(scenario).speedup is not None


def test_what_is_written_says_how_far_its_calibration_is_from_the_cluster(tmp_path: Path) -> None:
    flags = ("--yes", "--gpu", "H100-80GB", "--nic", "100 Gbit/s", "--network", "roce")
    notes = run("init", str(tmp_path / "mine.toml"), *flags).stderr
    assert "note: calibration 'h100_infiniband' is published, not measured on this cluster" in notes
    assert "note: NCCL's costs of calibration 'h100_infiniband' are those of another cluster" in notes
