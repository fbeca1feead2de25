"""The docs as a site: built strictly, whole, and used in a browser from a folder, without a network."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import markdown
from tests.helpers.browser import Watched, chromium
from tests.helpers.needs import needs

pytestmark = pytest.mark.nightly
needs("mkdocs", "mkdocstrings", "nbconvert", "torch")

from tests.helpers.launch import once

ROOT = markdown.ROOT
SECONDS = 240


def build(folder: Path) -> None:
    """Build the site as `make docs` does, but elsewhere."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder / "site")]
    done = subprocess.run(
        [*command, "--config-file", str(ROOT / "docs/site/mkdocs.yml")],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site."""
    return once(tmp_path_factory, "site_of_docs", build) / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    front = (site / "index.html").read_text(encoding="utf-8")
    for page in markdown.pages(ROOT / "docs"):
        place = page.relative_to(ROOT / "docs").with_suffix(".html")
        if page.name == "README.md":
            place = place.with_name("index.html")
        assert (site / place).is_file(), page
        assert f'href="{place.as_posix()}"' in front or page == ROOT / "docs/README.md", page


def test_what_pages_link_to_outside_the_docs_is_there(site: Path) -> None:
    assert (site / "files/examples/train_diloco.py").read_text() == (ROOT / "examples/train_diloco.py").read_text()
    assert 'href="../files/examples/train_diloco.py"' in (site / "how-to/train.html").read_text()
    assert 'src="../evidence/figures/advise_bert_base.png"' in (site / "project/index.html").read_text()


def test_the_python_reference_has_every_public_name_with_its_docstring(site: Path) -> None:
    import simnet

    page = (site / "reference/python.html").read_text(encoding="utf-8")
    for name in simnet.__all__:
        assert name == "__version__" or f'id="simnet.{name}"' in page, name
    assert "name of a shipped experiment, or path of a" in page
    assert "batch_per_rank" in page  # of an example


def test_notebooks_are_rendered_with_what_they_show(site: Path) -> None:
    for path in (ROOT / "examples/notebooks").glob("*.ipynb"):
        page = (site / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert page.count("<img") == path.read_text(encoding="utf-8").count('"image/png"')
        for image in re.findall(r'<img[^>]* src="([^"]+)"', page):
            assert (site / "notebooks" / image).read_bytes().startswith(b"\x89PNG")


def test_pages_open_from_a_folder_and_ask_nothing_of_the_network(browser: Any, site: Path) -> None:
    watched = Watched(browser)
    for place in ("index.html", "reference/python.html", "notebooks/1-first-steps.html", "explorer.html"):
        watched.page.goto((site / place).as_uri())
        watched.page.wait_for_load_state("networkidle")
    assert [address for address in watched.requests if not address.startswith(("file:", "data:", "blob:"))] == []
    assert watched.errors == []
