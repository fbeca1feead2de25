"""`simnet model`: what is counted becomes a workload, and mistakes one line."""

import tomllib
from pathlib import Path

import pytest
from click.testing import Result

from tests.helpers.needs import needs

needs("torch")

from simnet.engine.scenario import check_part
from simnet.workload.workload import Workload
from tests.helpers.cli import assert_refused, run

OF_USER = """
import torch
from torch import nn

def build(batch):
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(batch, 8)

def fails():
    raise KeyError("no weights")

def fails_in_forward():
    return nn.Linear(8, 4), torch.randn(2, 9)

def nothing():
    return 3

def of_three():
    return nn.Linear(8, 4), torch.randn(3, 8)

def untrained():
    return nn.ReLU(), torch.randn(2, 9)

class Chosen(nn.Linear):
    def forward(self, given):
        return super().forward(given[given[:, 0] > 0])

def by_value(batch):
    return Chosen(8, 4), torch.randn(batch, 8)

class Reads(nn.Linear):
    def forward(self, given):
        return super().forward(given) * (2.0 if given.sum().item() > 0 else 1.0)

def reads(batch):
    return Reads(8, 4), torch.randn(batch, 8)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # One name for each test: a module that was imported once is not read again.
    (tmp_path / f"of_{tmp_path.name}.py").write_text(OF_USER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def model(source: str, *args: object, folder: Path) -> Result:
    return run("model", source.replace("mine:", f"of_{folder.name}:"), *map(str, args))


def counted(folder: Path, *args: object) -> Workload:
    result = model("mine:build", "-o", "mine.toml", *args, folder=folder)
    assert result.exit_code == 0, result.output
    found = check_part("workloads", str(folder / "mine.toml"))
    assert isinstance(found, Workload)
    return found


def test_a_file_is_replaced_only_where_that_is_asked(folder: Path) -> None:
    counted(folder)
    before = (folder / "mine.toml").read_text()
    assert_refused(model("mine:build", "-o", "mine.toml", folder=folder), "mine.toml: exists: name another file")
    assert (folder / "mine.toml").read_text() == before
    assert model("mine:build", "-o", "mine.toml", "--batch", "2", "--force", folder=folder).exit_code == 0
    assert tomllib.loads((folder / "mine.toml").read_text())["batch_per_rank"] == 2


@pytest.mark.parametrize(
    ("source", "sentence", "line"),
    [
        (
            "mine:fails",
            "making the model failed with KeyError: 'no weights'; correct it",
            'raise KeyError("no weights")',
        ),
        ("mine:fails_in_forward", "a step of the model failed with RuntimeError: a and b must have", "RuntimeError"),
        (
            "mine:by_value",
            "needs values of tensors, and they have shapes alone",
            "super().forward(given[given[:, 0] > 0])",
        ),
    ],
)
def test_code_that_fails_shows_its_own_traceback_and_one_sentence(
    source: str, sentence: str, line: str, folder: Path
) -> None:
    result = model(source, "-o", "x.toml", folder=folder)
    assert result.exit_code == 2
    *shown, last = result.stderr.splitlines()
    assert last.startswith("simnet: ")
    assert sentence in last
    assert line in "\n".join(shown)
    assert "binsgdm" not in "\n".join(shown)
    assert not (folder / "x.toml").exists()


def test_what_has_its_own_batch_or_depends_on_values_is_counted(folder: Path) -> None:
    notes = {}
    for number, (source, flags) in enumerate((("of_three", ()), ("by_value", ("--real",)), ("reads", ()))):
        done = model(f"mine:{source}", "-o", f"{number}.toml", *flags, folder=folder)
        assert done.exit_code == 0, done.output
        notes[source] = done.stderr
    own, by_value = (tomllib.loads((folder / f"{number}.toml").read_text()) for number in (0, 1))
    assert (own["batch_per_rank"], own["work"]["forward_flops"]) == (3, 2 * 8 * 4)
    assert 0 < by_value["work"]["forward_flops"] <= 2 * 8 * 4
    assert f"note: values of tensors are read at of_{folder.name}.py:" in notes["reads"]


@pytest.mark.parametrize(
    ("source", "arguments", "sentence"),
    [
        ("mine:of_three", ["--batch", "3"], "--batch: no effect: of_"),
        ("mine:build", ["--length", "3"], "--length: no effect on of_"),
        ("llama_7b", ["--side", "3"], "--side: no effect on llama_7b; drop it"),
        ("mine:build", ["--autocast"], "--autocast: no effect with --dtype fp32; add --dtype bf16, or drop it"),
        ("mine:build", ["--checkpoint"], "--checkpoint: the model has no list of modules of one class"),
        ("mine:fails", ["--dtype", "fp64"], "'fp64' is not one of"),
        ("mine:fails", ["-o", "no/such/x.toml"], "no such directory"),  # before anything is counted
        ("no_such_module:build", [], "no module 'no_such_module': run where it can be imported"),
        ("mine:bild", [], "has no function 'bild'; did you mean 'build'?"),
        ("mine:nothing", [], "returned int: must return (module, inputs) or (module, inputs, loss)"),
        ("mine:untrained", [], "no parameter requires a gradient"),
        ("lama_7b", [], "'lama_7b': no shipped model (did you mean 'llama_7b')"),
        ("missing/config.json", [], "missing/config.json"),
    ],
)
def test_a_mistake_is_one_line(source: str, arguments: list[str], sentence: str, folder: Path) -> None:
    assert_refused(model(source, "-o", "x.toml", *arguments, folder=folder), sentence)
    assert not (folder / "x.toml").exists()
