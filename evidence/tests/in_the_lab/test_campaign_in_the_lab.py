"""A campaign on real nodes: measured, calibrated, predicted, compared. The NIC is so slow that nothing else decides."""

from pathlib import Path

import pytest

from evidence.lab import campaign, prediction, run_campaign
from evidence.lab import page as campaign_page
from evidence.lab.prediction import CampaignResult, evaluate
from simnet.core.errors import SimnetError
from simnet.validation.training_steps import TrainedPoint
from tests.helpers.needs import needs

needs("torch", "numba")

# On 5 Mbit/s a dense step of 200,000 parameters waits two seconds for its wire. campaigns/short.toml measures more.
CAMPAIGN = """
models = ["mlp_200k"]
strategies = [
    {kind = "all_reduce"},
    {kind = "binsgdm", topology = "flat", overlap = false},
    {kind = "one_bit_adam"},
    {kind = "qsgd"},
    {kind = "power_sgd"},
]
starts = 1
batch = 2
kernel_seconds = 0.05
model_seconds = 0.5
message_seconds = 0.1
training_seconds = 0.5
min_elements = 262144
max_elements = 1048576
[[points]]
layouts = ["3x1"]
bandwidths = ["5 Mbit/s"]
[links]
layouts = ["2x1"]
bandwidths = ["100 Mbit/s"]
min_message = "1 MiB"
max_message = "1 MiB"
max_seconds = 0.5
"""
# Of the dense step: what its wire does not decide.
WIRE_ERROR = 0.15
ANY_FIT = 100.0
KERNEL_LAUNCHES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "campaign.toml").write_text(CAMPAIGN)
    loaded = campaign.load(folder / "campaign.toml")
    launches = campaign.launches(loaded)
    paths = run_campaign.run(launches, folder, lambda _: None, max_wait_s=0.0)
    assert [path.name for path in paths] == [f"{launch.name}.json" for launch in launches]
    return folder


@pytest.fixture(scope="module")
def result(folder: Path) -> CampaignResult:
    loaded = campaign.load(folder / "campaign.toml")
    with pytest.MonkeyPatch.context() as patch:
        # A busy machine times kernels poorly; what is asserted here the wire decides. Unit tests refuse poor fits.
        patch.setattr(prediction, "BOUND", ANY_FIT)
        for _ in range(KERNEL_LAUNCHES - 1):
            try:
                return evaluate(loaded, folder, draws=20)
            except SimnetError as refusal:
                # Something else had the cores while a kernel was timed on small tensors, and not when on large ones.
                if "time must grow" not in str(refusal):
                    raise
            (folder / "kernels_3x1.json").unlink()
            run_campaign.run(campaign.launches(loaded), folder, lambda _: None, max_wait_s=0.0)
        return evaluate(loaded, folder, draws=20)


@pytest.fixture(scope="module")
def points(result: CampaignResult) -> dict[str, TrainedPoint]:
    return {point.series: point for point in result.points}


def test_what_is_measured_is_not_measured_again(folder: Path) -> None:
    loaded = campaign.load(folder / "campaign.toml")
    launches = campaign.launches(loaded)
    said: list[str] = []
    paths = run_campaign.run(launches, folder, said.append, max_wait_s=0.0)
    assert paths == [launch.path(folder) for launch in launches]
    assert said == [f"{len(launches)} of {len(launches)} launches are already measured"]


@pytest.mark.timed
def test_a_dense_step_is_predicted_on_a_network_that_was_never_measured(
    result: CampaignResult, points: dict[str, TrainedPoint]
) -> None:
    assert abs(points["all_reduce"].error) < WIRE_ERROR
    assert {(proof.num_predicted, proof.is_proven) for _, proof in result.proofs} == {(1, True)}


@pytest.mark.timed
@pytest.mark.parametrize("series", ["binsgdm flat, shaped", "one_bit_adam", "qsgd bits=4", "power_sgd matrix_rank=4"])
def test_a_compressing_system_beats_dense_steps_as_predicted(series: str, points: dict[str, TrainedPoint]) -> None:
    assert points[series].measured < points["all_reduce"].measured
    assert points[series].predicted < points["all_reduce"].predicted


@pytest.mark.timed
def test_every_strategy_is_trained_and_every_kernel_of_its_system_calibrated(
    result: CampaignResult, points: dict[str, TrainedPoint]
) -> None:
    assert len(points) == len(result.points) == 5
    kernels = result.fits[0].calibration.kernels
    assert kernels["power_sgd_merge"].options == {"matrix_rank": 4, "warm_start": True}
    assert {"momentum", "server_mean", "qsgd_encode"} <= set(kernels)


@pytest.mark.timed
def test_data_figures_and_calibrations_are_written(result: CampaignResult, tmp_path: Path) -> None:
    assert {path.suffix for path in campaign_page.write(result, tmp_path)} == {".csv", ".png", ".toml"}
