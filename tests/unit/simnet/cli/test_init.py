"""`simnet init`: what it writes runs, and what it refuses."""

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from simnet.cli import init
from simnet.cli.main import cli
from tests.helpers.cli import run


def test_a_network_that_there_is_not_is_refused_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "_is_watched", lambda: True)
    result = CliRunner().invoke(cli, ["init", str(tmp_path / "asked.toml")], input="\n\n\n\nrocee\n")
    assert result.exit_code == 2
    assert result.stderr.endswith("--network: 'rocee': must be one of tcp, roce, infiniband; give one of them\n")


def test_the_bare_name_of_a_gpu_is_said_to_be_its_usual_card(tmp_path: Path) -> None:
    made = run("init", str(tmp_path / "mine.toml"), "--yes", "--gpu", "H100")
    assert made.stderr.startswith("note: 'H100' is taken as H100-80GB; others: simnet show gpus\n")
    assert 'gpu = "H100-80GB"' in (tmp_path / "mine.toml").read_text()


def test_what_is_written_says_how_far_its_calibration_is_from_the_cluster(tmp_path: Path) -> None:
    flags = ("--yes", "--gpu", "H100-80GB", "--nic", "100 Gbit/s", "--network", "roce")
    notes = run("init", str(tmp_path / "mine.toml"), *flags).stderr
    assert "note: calibration 'h100_infiniband' is published, not measured on this cluster" in notes
    assert "note: NCCL's costs of calibration 'h100_infiniband' are those of another cluster" in notes


def test_a_first_file_names_a_strategy_only_if_asked_and_never_flat_ddp_as_the_baseline(tmp_path: Path) -> None:
    for name, flags in (("open.toml", ()), ("asked.toml", ("--strategy", "fsdp"))):
        made = run("init", str(tmp_path / name), "--yes", *flags)
        assert made.exit_code == 0
        assert "is taken as" not in made.stderr, "a GPU that nobody named"
    left_open, asked = (tomllib.loads((tmp_path / name).read_text()) for name in ("open.toml", "asked.toml"))
    assert left_open.keys() & {"strategy", "baseline"} == set()
    assert asked.keys() - left_open.keys() == {"strategy"}
    assert asked["strategy"] == "fsdp"
