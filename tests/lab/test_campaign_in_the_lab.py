"""The short campaign on real nodes: measured, calibrated, predicted, compared."""

from pathlib import Path

import pytest

from simnet.lab import campaign, grid
from simnet.validation import campaign_page
from simnet.validation.campaign import evaluated

pytest.importorskip("torch")
pytest.importorskip("numba")

SHORT = Path(__file__).parents[2] / "scenarios/lab/short.toml"
WIRE_ERROR = 0.15
"""Of dense steps on the slowest network, which its wire decides whatever else this machine does."""


def test_the_short_campaign_is_measured_and_its_dense_steps_on_a_slow_network_are_predicted(tmp_path):
    mine = campaign.load(SHORT)
    jobs = campaign.jobs(mine)
    told: list[str] = []
    paths = grid.run(mine, jobs, tmp_path, told.append, patience_s=0.0)
    assert [path.name for path in paths] == [f"{job.name}.json" for job in jobs]
    assert grid.run(mine, jobs, tmp_path, told.append, patience_s=0.0) == paths
    assert told[-1] == f"{len(jobs)} of {len(jobs)} launches are there already"
    found = evaluated(mine, tmp_path, draws=20)
    assert len(found.points) == 4
    dense = [point for point in found.points if point.strategy == "all_reduce"]
    slowest = min(dense, key=lambda point: point.setup.nic_bytes_per_s or 0.0)
    assert abs(slowest.error) < WIRE_ERROR
    one_bit = {point.setup.nic_bytes_per_s: point for point in found.points if point.strategy == "binsgdm flat"}
    for point in dense:
        assert one_bit[point.setup.nic_bytes_per_s].measured_s < point.measured_s
        assert one_bit[point.setup.nic_bytes_per_s].predicted_s < point.predicted_s
    assert all("unseen: none of 2 files is among the" in proof for proof in found.proofs)
    written = campaign_page.write(found, tmp_path / "report")
    assert {path.suffix for path in written} == {".md", ".png", ".toml"}
