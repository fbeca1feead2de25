"""The wheel carries the shipped scenarios and the templates, and finds them far from a checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.helpers.needs import needs

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).resolve().parents[2]
DATA = {"scenarios": "simnet/_scenarios", "docs/templates": "simnet/_templates"}
FOUND = """
from simnet.core import files, templates
print(files.root(), templates.root(), (templates.root() / "report.html.jinja").is_file(), sep="\\n")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contents of the wheel of this checkout, as an installation lays them out."""
    import hatchling.builders.wheel as wheels

    folder = tmp_path_factory.mktemp("wheel")
    (wheel,) = wheels.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    return folder / "site"


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("source", DATA)
def test_the_wheel_holds_every_file_of_a_folder_of_data(site: Path, source: str) -> None:
    assert contents(site / DATA[source]) == contents(ROOT / source) != {}


def test_an_installed_wheel_uses_its_own_data(site: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    ran = subprocess.run(
        [sys.executable, "-c", FOUND], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines() == [
        str(site / "simnet" / "_scenarios"),
        str(site / "simnet" / "_templates"),
        "True",
    ]


def test_an_installed_wheel_knows_the_commit_that_it_was_built_from(site: Path, tmp_path: Path) -> None:
    from simnet.core.version import commit_of_checkout

    needs("git checkout")
    commit = commit_of_checkout(ROOT)
    environment = {**os.environ, "PYTHONPATH": str(site), "PATH": ""}
    code = "from simnet.core import version; print(version.commit())"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == commit
