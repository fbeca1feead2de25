"""`simnet measure gpu` as a whole, on a CPU."""

import json

import pytest
from click.testing import CliRunner, Result

from binsgdm.bench.gpu import card, run
from simnet.calibration.measurement_file import read
from simnet.cli.main import cli
from tests.helpers.needs import needs

needs("torch")


def gpu(*args: object) -> Result:
    return CliRunner().invoke(cli, ["measure", "gpu", *map(str, args)], prog_name="simnet")


def test_one_part_is_measured_into_a_folder(tmp_path):
    folder = tmp_path / "made" / "on the way" / "gpu"
    done = gpu("-o", folder, "--device", "cpu", "--quick", "--only", "interference")
    assert done.exit_code == 0, done.output
    assert {series.kind for series in read(folder / "interference.json").series} == {"interference"}
    written = json.loads((folder / "card.json").read_text())
    assert (written["device"], written["quick"], written["parts"]["interference"]["status"]) == ("cpu", True, "done")
    assert "[1/1] interference done in" in done.stderr
    assert "nothing here is a measurement of a GPU" in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["-o", "file"], "file: is no folder: name a folder with -o"),
        (["-o", "gpu", "--force", "--only", "kernels"], "--force --only: one measures all parts again"),
        (["-o", "gpu", "--budget", "nan"], "--budget nan: must be a number of seconds from 1 on"),
        (["-o", "", "--device", "cpu"], "'': is empty: name a folder"),
        (["-o", "gpu"], "--device cuda: no GPU: neither the driver nor torch sees one"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(args, said, tmp_path, monkeypatch):
    found = {"versions": {"torch": "2.11", "cuda": "13.0", "rocm": ""}, "cards": [], "error": ""}
    monkeypatch.setattr(card, "probe", lambda: found)
    monkeypatch.setattr(card, "has_device", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))  # without nvidia-smi
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    done = gpu(*args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("simnet: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_ranks_never_start_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = gpu("-o", tmp_path / "gpu", "--device", "cpu")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "this command starts its own ranks: run it without torchrun" in done.stderr


@pytest.mark.parametrize(
    ("ends", "code", "said"),
    [
        (True, 0, "wrote "),
        (False, 1, "wrote "),
        (KeyboardInterrupt(), 130, "measure: interrupted; the parts that are done stay: the same command goes on\n"),
    ],
)
def test_the_exit_code_says_how_the_parts_ended(ends, code, said, tmp_path, monkeypatch):
    def ended(*_: object, **__: object) -> object:
        if isinstance(ends, BaseException):
            raise ends
        return ends

    monkeypatch.setattr(run.CardRun, "run", ended)
    done = gpu("-o", tmp_path / "gpu", "--device", "cpu")
    assert done.exit_code == code, done.output
    assert said in done.stderr
