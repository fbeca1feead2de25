"""A proof on real nodes: a first run calibrates the scenario, then the part that is made slower is named."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import simnet
from evidence.lab import Bandwidth, Lab, LabSpec
from simnet.core.units import Duration
from simnet.validation.proof import PROOF, SCRIPT
from simnet.validation.proof_verdict import CALIBRATION, Verdict
from tests.helpers import proofs
from tests.helpers.needs import ROOT, needs

needs("torch", "numba")
pytestmark = [pytest.mark.timed, pytest.mark.nightly]
MODEL = 'MODEL = "tests.helpers.planted:make"'


class Planted(NamedTuple):
    """What is slower than the scenario says, and what is to be named."""

    part: str
    bandwidth: str = "200 Mbit/s"
    latency: str = "2 ms"
    environment: tuple[tuple[str, str], ...] = ()


CLEAN = Planted("")
PLANTED = {
    "network x 0.5": Planted("network bandwidth", bandwidth="100 Mbit/s"),
    "compute x 1.3": Planted("compute", environment=(("PLANTED_COMPUTE", "1.3"),)),
    "kernels x 3": Planted("kernels", environment=(("PLANTED_KERNELS", "3"),)),
    "one slow node": Planted("node 1", environment=(("PLANTED_RANK", "1"),)),
    "latency x 10": Planted("network latency", latency="20 ms"),
}


@contextmanager
def environment(values: tuple[tuple[str, str], ...]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        for name, value in values:
            patch.setenv(name, value)
        yield


def proven(folder: Path, nodes: int, planted: Planted) -> Verdict:
    """Run the script of a proof on nodes of which a part is slower, and return the verdict."""
    script = folder / SCRIPT
    script.write_text(script.read_text().replace('MODEL = ""', MODEL))
    network = {"bandwidth": Bandwidth.parse(planted.bandwidth), "latency": Duration.parse(planted.latency)}
    with environment(planted.environment), Lab(LabSpec(num_nodes=nodes, **network)) as lab:
        command = [sys.executable, "-W", "ignore", "-m", "tests.helpers.planted", str(script)]
        lab.launch(command, timeout_s=600).raise_if_failed()
    verdict = simnet.validate(folder).verdict
    assert verdict is not None
    return verdict


@pytest.fixture(scope="module", params=[2, 4])
def calibrated(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path, dict[str, object]]:
    """The nodes, the proof of a scenario of this machine as it is, and what it is to be set to."""
    folder = tmp_path_factory.mktemp("clean") / "proof"
    proofs.made(folder, {"cluster.num_nodes": request.param})
    verdict = proven(folder, request.param, CLEAN)
    return request.param, folder, {**verdict.settings, "calibration": str(folder / CALIBRATION)}


@pytest.mark.parametrize("name", PLANTED)
def test_the_part_that_is_slower_is_named_first(
    name: str, calibrated: tuple[int, Path, dict[str, object]], tmp_path: Path
) -> None:
    nodes, clean, settings = calibrated
    simnet.advise(clean / PROOF, settings, systems=["terngrad"], draws=0).proof(tmp_path / "proof")
    verdict = proven(tmp_path / "proof", nodes, PLANTED[name])
    assert [part.name for part in verdict.off][:1] == [PLANTED[name].part]
