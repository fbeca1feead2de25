"""What is predicted was not calibrated on, and the files prove it."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from simnet.calibration import provenance
from simnet.calibration.measurement_file import read
from simnet.cluster.hardware import Calibration, Cluster, FittedTo, Link
from simnet.core.units import Bandwidth, Duration, Size
from simnet.engine.scenario import Scenario
from simnet.report.measured_steps import proof_text
from simnet.strategies import DenseAllReduce
from simnet.validation import held_out_proof
from simnet.workload.workload import Workload
from tests.helpers.cli import run
from tests.helpers.refusals import refused
from tests.helpers.training_samples import DENSE, HEAD, SETUP, step, write

ROOT = Path(__file__).parents[4]
LINK = Link(bytes_per_s=Bandwidth(1e9), alpha_s=Duration(0))


def scenario(*fitted_to: FittedTo, of_workload: tuple[FittedTo, ...] = ()) -> Scenario:
    return Scenario(
        cluster=Cluster(num_nodes=2, ranks_per_node=1, intra_node=LINK, inter_node=LINK),
        workload=Workload(
            gradient_bytes=Size(1e6), forward_s=Duration(1), backward_s=Duration(1), optimizer_s=Duration(1),
            fitted_to=of_workload,
        ),
        calibration=Calibration(fitted_to=fitted_to),
        strategy=DenseAllReduce(),
    )  # fmt: skip


def links(num_nodes: int, nic: float | None, digest: str = "other") -> FittedTo:
    rate = Bandwidth(nic) if nic else None
    return FittedTo(
        file="links.json", digest=digest, measured=("collective",), num_nodes=num_nodes, ranks_per_node=1,
        nic_bytes_per_s=rate,
    )  # fmt: skip


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    return write(tmp_path / "t.json", [step(1.0, DENSE)])


def test_other_files_and_settings_are_disjoint(trained: Path) -> None:
    proof = held_out_proof.check(scenario(links(2, 25e6), links(4, 50e6)), [(trained, read(trained))])
    assert proof.is_proven
    assert (proof.num_predicted, proof.num_fitted) == (1, 1)
    assert proof.network_settings == ("2 x 1 ranks at 0.2 Gbit/s", "4 x 1 ranks at 0.4 Gbit/s")
    text = proof_text(proof)
    assert all(setting in text for setting in proof.network_settings)
    assert text.startswith("held out: ")


def test_the_network_of_a_setting_that_was_fitted_is_refused_and_what_has_none_may_be_measured_there(
    trained: Path,
) -> None:
    with refused("t.json: 4 x 1 ranks at 0.2 Gbit/s: the network was fitted"):
        held_out_proof.check(scenario(links(4, 25e6)), [(trained, read(trained))])
    compute = replace(links(4, 25e6), measured=("kernel", "model"))
    held_out_proof.check(scenario(compute, links(4, None)), [(trained, read(trained))])


@pytest.mark.parametrize("by_workload", [False, True])
def test_a_file_that_was_fitted_is_refused_however_it_is_written(by_workload: bool, trained: Path) -> None:
    mine = links(9, None, provenance.digest(read(trained)))
    other = trained.with_name("renamed.json")
    other.write_text(json.dumps(json.loads(trained.read_text()), indent=7, sort_keys=True))
    given = scenario(of_workload=(mine,)) if by_workload else scenario(mine)
    with refused("renamed.json: was fitted by the calibration or the workload (as links"):
        held_out_proof.check(given, [(other, read(other))])
    changed: dict[str, Any] = json.loads(trained.read_text())
    changed["series"][0]["values"][0] *= 1.0001
    other.write_text(json.dumps(changed))
    held_out_proof.check(given, [(other, read(other))])


def test_a_published_calibration_names_the_measurements_behind_it() -> None:
    written = ROOT / "evidence/results/lab_campaign/links_2x1_1000mbit.json"
    digest = provenance.digest(read(written))
    assert f'digest = "{digest}"' in (ROOT / "docs/evidence/lab/calibration_3x2.toml").read_text()


def test_calibrate_names_what_it_fitted_and_validate_refuses_it(tmp_path: Path) -> None:
    rows = [
        {
            "kind": "collective", "name": "all_reduce", "setup": 0, "unit": "s", "values": [1.5 * size / 24e6] * 3,
            "labels": {"group": "world", "group_size": 4, "message_bytes": size, "num_groups": 1, "dtype": "float32"},
        }
        for size in (2**20, 2**22, 2**24)
    ]  # fmt: skip
    path = tmp_path / "links.json"
    path.write_text(json.dumps({**HEAD, "setups": [SETUP], "series": rows}))
    mine = tmp_path / "mine.toml"
    done = run("calibrate", path, "-o", mine)
    assert done.exit_code == 0, done.output
    assert provenance.digest(read(path)) in mine.read_text()
    experiment = tmp_path / "e.toml"
    experiment.write_text(
        f'calibration = "{mine}"\n'
        'workload = {gradient = "1 MB", forward = "1 ms", backward = "1 ms", optimizer = "1 ms"}\n'
        'strategy = "all_reduce"\n[cluster]\nnum_nodes = 2\nranks_per_node = 1\n'
        'intra_node = {bandwidth = "1 Gbit/s", latency = "0 s"}\n'
        'inter_node = {bandwidth = "1 Gbit/s", latency = "0 s"}\n'
    )
    for nic, code in ((25e6, 2), (26e6, 0)):
        trained = write(tmp_path / "t.json", [step(1.0, DENSE)], nic_bytes_per_s=nic)
        figure = tmp_path / "f.png"
        said = run("validate", experiment, trained, "--figure", figure)
        assert said.exit_code == code, said.output
        assert figure.exists() == (code == 0)
