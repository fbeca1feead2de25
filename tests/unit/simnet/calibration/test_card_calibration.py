"""A calibration of one card: what is measured, what stays neutral, and what comes from another calibration."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from simnet.calibration import card_calibration, card_folder, kernels
from simnet.calibration.card_calibration import CardFit
from simnet.calibration.card_folder import CardFolder
from simnet.core import files
from simnet.core.units import Bandwidth, Duration
from tests.helpers import card_samples

SIZES = (18, 22, 26)
BASE = "a100_tcp_estimate"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> CardFolder:
    path = card_samples.write(tmp_path_factory.mktemp("gpu"), parts=("kernels", "interference"), sizes=SIZES)
    return card_folder.read(path, accepts_cpu=False)


@pytest.fixture(scope="module")
def fitted(folder: CardFolder) -> CardFit:
    return card_calibration.fit(folder, draws=20)


def toml(folder: CardFolder, fitted: CardFit, base: str | None) -> dict[str, Any]:
    return tomllib.loads(card_calibration.text(folder, fitted, base))


def test_what_is_measured_is_what_the_sample_was_made_of(folder: CardFolder, fitted: CardFit) -> None:
    whole = toml(folder, fitted, None)
    assert Bandwidth.parse(whole["memory_bandwidth"]) == pytest.approx(card_samples.COPY_BYTES_PER_S, rel=0.02)
    # The median of three kernels; that of the reference, which launches many, is none of them.
    assert Duration.parse(whole["kernel_launch"]) == pytest.approx(1.2 * card_samples.IDLE_LAUNCH_S, rel=0.05)
    assert whole["intervals"]["kernel_launch"] == [pytest.approx(0.85, abs=0.03), pytest.approx(3.8, abs=0.2)]
    assert whole["backward_slowdown"] == pytest.approx(1.16, rel=0.02)
    assert {"adamw", "cast", "binsgdm_update", "merge", "top_k_encode"} <= set(whole["kernels"])
    assert {"memory_bandwidth", "kernel_launch", "backward_slowdown"} <= set(whole["intervals"])
    assert {"intra_node", "inter_node", "codec_efficiency", "collective_launch"}.isdisjoint(whole)
    assert whole["kind"] == "estimate", "the network was not measured"
    assert [row["file"] for row in whole["fitted_to"]] == ["kernels.json", "interference.json"]


def test_a_base_gives_what_was_not_measured_with_its_intervals(folder: CardFolder, fitted: CardFit) -> None:
    alone, based, base = toml(folder, fitted, None), toml(folder, fitted, BASE), files.read("calibrations", BASE)
    for key in ("intra_node", "inter_node", "codec_efficiency", "collective_launch", "flat_ring_latency"):
        assert based[key] == base[key]
    for key in ("memory_bandwidth", "kernel_launch", "backward_slowdown", "kernels", "gpu", "fitted_to"):
        assert based[key] == alone[key]
    measured = {"memory_bandwidth", "kernel_launch", "backward_slowdown"}
    kept = {key: factors for key, factors in base["intervals"].items() if key not in measured}
    assert kept["codec_efficiency"] == [0.26, 4.1]
    assert based["intervals"] == alone["intervals"] | kept
    assert f"is that of {BASE} with its intervals" in based["source"]


def test_what_was_not_measured_or_not_fitted_is_that_of_the_base(tmp_path: Path) -> None:
    given = card_folder.read(card_samples.write(tmp_path, parts=("kernels",), sizes=(18, 20, 22)), accepts_cpu=False)
    rows = [row for row in kernels.select_kernels(given.measurements) if row.kernel in {"copy", "cast"}]
    fit = CardFit(parts=tuple(kernels.fit_kernels(rows, 0.1, 20)), left_out=("kernel x: reason",))
    whole = toml(given, fit, BASE)
    assert "backward_slowdown" not in whole
    assert whole["intervals"]["backward_slowdown"] == [1.0, 1.4]
    assert "# left out: kernel x: reason" in card_calibration.text(given, fit, BASE)
    path = card_samples.write(tmp_path / "gpu", parts=("kernels", "interference"), sizes=SIZES[:2])
    few = card_folder.read(path, accepts_cpu=False)
    found = toml(few, card_calibration.fit(few, draws=20), BASE)
    assert found["memory_bandwidth"] == files.read("calibrations", BASE)["memory_bandwidth"]
    assert "copies" not in found["source"]
    assert f"is that of {BASE}" in found["source"]
