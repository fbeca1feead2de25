"""`simnet measure gpu --card`: what it makes of measurements, what it refuses, and that a refusal writes nothing."""

import json
import shutil
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simnet.calibration.card_folder import PARTS
from simnet.core import files
from simnet.engine.scenario import check_part
from tests.helpers import card_samples
from tests.helpers.cli import assert_refused, run

ON_A_CPU = Path(__file__).parents[3] / "golden" / "card_cpu"
"""Measured on a CPU by simnet measure gpu --device cpu --quick; its kernels by simnet measure kernels."""
CALIBRATION = f"scenarios/calibrations/{card_samples.STEM}.toml"

OTHER_CARD = "models.json: was measured on 'NVIDIA H100', and card.json names 'Synthetic X100 SXM5 80GB HBM3': a folder"
SMALL = (20, 24, 28)


def card(*args: object) -> Any:
    return run("card", *map(str, args), "--draws", "20")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return card_samples.write(tmp_path_factory.mktemp("gpu"), sizes=SMALL)


@pytest.fixture(scope="module")
def out(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("card")
    done = card(folder, "--base", "a100_tcp_estimate", "-o", made)
    assert done.exit_code == 0, done.output
    assert "note: the check 'mean_, bfloat16' failed on this card" in done.stderr
    return made


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(files.data_path("workloads"), tmp_path / "scenarios" / "workloads")
    return tmp_path


class TestAWholeCard:
    def test_calibration_and_workloads_are_parts_that_simulate(self, out: Path) -> None:
        check_part("calibrations", str(out / CALIBRATION))
        assert "# failed check: mean_, bfloat16: do not trust the times\n" in (out / CALIBRATION).read_text()
        chosen = (f"calibration={out / CALIBRATION}", f"workload={out / 'scenarios/workloads/bert_base.toml'}")
        settings = [f"--set={one}" for one in (*chosen, f"cluster.gpu={card_samples.LABEL}")]
        done = run("simulate", "bert_base_10gbit", *settings)
        assert done.exit_code == 0, done.output
        assert f"{card_samples.LABEL} tf32, measured: models.json of simnet measure" in " ".join(done.stdout.split())

    @pytest.mark.slow
    def test_every_sample_goes_into_a_zip_that_can_be_read_again(self, folder: Path, out: Path, tmp_path: Path) -> None:
        packed = out / f"docs/evidence/gpu-{card_samples.STEM}.zip"
        with zipfile.ZipFile(packed) as zipped:
            assert sorted(zipped.namelist()) == sorted(path.name for path in folder.glob("*.json"))
            zipped.extractall(tmp_path / "again")
        assert card(tmp_path / "again", "-o", tmp_path / "out").exit_code == 0
        assert (tmp_path / "out" / packed.relative_to(out)).read_bytes() == packed.read_bytes()


@pytest.mark.slow
def test_a_cpu_is_marked_everywhere(tmp_path: Path) -> None:
    done = card(ON_A_CPU, "--accept-cpu", "-o", tmp_path)
    assert done.exit_code == 0, done.output
    calibration = tomllib.loads((tmp_path / "scenarios/calibrations/cpu.toml").read_text(encoding="utf-8"))
    assert calibration["gpu"] == "CPU, not a card"
    assert calibration["title"].startswith("CPU, not a card")
    assert done.stdout.startswith("CPU, not a card")
    assert {"kernel_launch", "collective_launch"}.isdisjoint(calibration), "a CPU launches nothing"
    assert "adamw" not in calibration["kernels"]
    assert "\nno shipped workload: mlp_200k, cnn_400k\n" in done.stdout
    assert not list(tmp_path.glob("scenarios/workloads/*"))


def test_parts_that_are_missing_are_named_with_the_reason(tmp_path: Path) -> None:
    given = card_samples.write(tmp_path / "gpu", parts=("interference",))
    about = card_samples.about(("interference",))
    about["parts"]["kernels"] = {"status": "failed", "reason": "out of memory", "seconds": 3.0}
    card_samples.save(given / "card.json", about)
    done = card(given, "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "\nnot measured: kernels over sizes (failed: out of memory)\n" in done.stdout
    assert done.stdout.count("\nnot measured: ") == len(PARTS) - 1
    assert "\nfitted: backward_slowdown 1.1" in done.stdout
    calibration = tomllib.loads((tmp_path / "out" / CALIBRATION).read_text(encoding="utf-8"))
    assert calibration["backward_slowdown"] == pytest.approx(1.16, rel=0.02)
    assert "memory_bandwidth" not in calibration, "what was not measured stays neutral"
    assert calibration["title"] == f"{card_samples.LABEL}: backward measured on it"
    given = card_samples.write(tmp_path / "checked", parts=("checks",))
    assert card(given, "-o", tmp_path / "bare").exit_code == 0
    assert not (tmp_path / "bare" / "scenarios").exists()


class TestInto:
    @pytest.mark.slow
    def test_a_checkout_gets_the_card_once(self, checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        folder = card_samples.write(tmp_path_factory.mktemp("gpu"), parts=("models", "interference"))
        done = card(folder, "--base", "a100_tcp_estimate", "--into", checkout)
        assert done.exit_code == 0, done.output
        check_part("calibrations", str(checkout / CALIBRATION))

        before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
        assert_refused(card(folder, "--into", checkout), "is there; add --force to replace what is there of this card")
        assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before
        again = card(folder, "--base", "a100_tcp_estimate", "--into", checkout, "--force")
        assert again.exit_code == 0, again.output
        assert {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()} == before

    def test_of_a_card_of_shipped_clusters_it_is_said_that_their_results_change(self, checkout: Path) -> None:
        shutil.copytree(files.data_path("clusters"), checkout / "scenarios" / "clusters")
        given = card_samples.write(checkout / "gpu", parts=("checks",))
        for name, place in (("card.json", "card"), ("checks.json", "hardware")):
            content = json.loads((given / name).read_text())
            content[place]["name" if place == "card" else "gpu"] = "NVIDIA A100-SXM4-80GB"
            card_samples.save(given / name, content)
        done = card(given, "--into", checkout)
        assert done.exit_code == 0, done.output
        assert "note: results on a100_8x8_10gbit, generic_100gbit" in done.stderr
        assert "one_bit_adam" not in done.stderr


def with_file(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return a function that changes a JSON file of a folder."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return damage


DAMAGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no card.json": (lambda folder: (folder / "card.json").unlink(), "card.json: is missing: it says which card"),
    "half a file": (lambda folder: (folder / "models.json").write_text('{"what": "simnet mea'), "models.json: "),
    "another file": (with_file("card.json", lambda c: c.update(what="x")), "what: 'x': must be 'simnet card'"),
    "a newer file": (with_file("card.json", lambda c: c.update(format=9)), "format: 9: this version reads up to 1"),
    "no name": (with_file("card.json", lambda c: c["card"].pop("name")), "card.name: is missing"),
    "two cards": (with_file("models.json", lambda c: c["hardware"].update(gpu="NVIDIA H100")), OTHER_CARD),
    "a CPU's file": (
        with_file("models.json", lambda c: c["setups"][0].update(device="cpu")),
        "models.json: was measured on a CPU, and card.json names",
    ),
    "half a pair": (
        with_file("interference.json", lambda c: c["series"].pop(0)),
        "backward of transformer_25m with copy: needs a time without it; measure again",
    ),
    "half a pass": (
        with_file("models.json", lambda c: c["series"].pop(1)),
        "must have as many times of backward as of forward",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_folder_is_refused_in_one_sentence_and_nothing_is_written(damage: str, tmp_path: Path) -> None:
    given = card_samples.write(tmp_path / "gpu", parts=("models", "interference"))
    break_it, message = DAMAGED[damage]
    break_it(given)
    assert_refused(card(given, "-o", tmp_path / "out"), message)
    assert not (tmp_path / "out").exists()
