"""The short campaign on real nodes: measured, calibrated, predicted, compared."""

from pathlib import Path

import pytest

from simnet.lab import campaign, run_campaign
from simnet.show import campaign_page
from simnet.validate.campaign_prediction import evaluate

pytest.importorskip("torch")
pytest.importorskip("numba")

SHORT = Path(__file__).parents[2] / "scenarios/lab/short.toml"
WIRE_ERROR = 0.15
"""Of dense steps on the slowest network, which its wire decides whatever else this machine does."""


def test_the_short_campaign_is_measured_and_its_dense_steps_on_a_slow_network_are_predicted(tmp_path):
    mine = campaign.load(SHORT)
    launches = campaign.launches(mine)
    told: list[str] = []
    paths = run_campaign.run(mine, launches, tmp_path, told.append, max_wait_s=0.0)
    assert [path.name for path in paths] == [f"{launch.name}.json" for launch in launches]
    assert run_campaign.run(mine, launches, tmp_path, told.append, max_wait_s=0.0) == paths
    assert told[-1] == f"{len(launches)} of {len(launches)} launches are already measured"
    found = evaluate(mine, tmp_path, draws=20)
    assert len(found.points) == 4
    dense = [point for point in found.points if point.series == "all_reduce"]
    slowest = min(dense, key=lambda point: point.setup.nic_bytes_per_s or 0.0)
    assert abs(slowest.error) < WIRE_ERROR
    one_bit = {point.setup.nic_bytes_per_s: point for point in found.points if point.series == "binsgdm flat"}
    for point in dense:
        assert one_bit[point.setup.nic_bytes_per_s].measured < point.measured
        assert one_bit[point.setup.nic_bytes_per_s].predicted < point.predicted
    assert {(proof.num_predicted, proof.is_proven) for _, proof in found.proofs} == {(2, True)}
    written = campaign_page.write(found, tmp_path / "report")
    assert {path.suffix for path in written} == {".md", ".png", ".toml"}


SYSTEMS = """
models = ["mlp_200k"]
strategies = [{kind = "all_reduce"}, {kind = "one_bit_adam"}, {kind = "qsgd"}, {kind = "power_sgd"}]
starts = 1
batch = 2
kernel_seconds = 0.1
model_seconds = 0.5
message_seconds = 0.1
training_seconds = 0.5
min_elements = 65536
max_elements = 262144
[[points]]
layouts = ["2x1"]
bandwidths = ["5 Mbit/s"]
[links]
layouts = ["2x1"]
bandwidths = ["100 Mbit/s"]
min_message = "1 MiB"
max_message = "4 MiB"
"""


def test_systems_are_trained_and_predicted_to_beat_dense_steps_where_the_wire_is_slow(tmp_path):
    """On 5 Mbit/s a dense step waits a second for its wire, which nothing else on this machine comes near."""
    path = tmp_path / "campaign.toml"
    path.write_text(SYSTEMS)
    mine = campaign.load(path)
    run_campaign.run(mine, campaign.launches(mine), tmp_path, lambda _: None, max_wait_s=0.0)
    found = evaluate(mine, tmp_path, draws=20)
    points = {point.series: point for point in found.points}
    assert set(points) == {"all_reduce", "one_bit_adam", "qsgd bits=4", "power_sgd matrix_rank=4"}
    dense = points.pop("all_reduce")
    for point in points.values():
        assert point.measured < dense.measured
        assert point.predicted < dense.predicted
    kernels = found.fits[0].calibration.kernels
    assert kernels["power_sgd_merge"].options == {"matrix_rank": 4, "warm_start": True}
    assert {"momentum", "server_mean", "qsgd_encode"} <= set(kernels)
