"""What a release is made of: wheel, sdist, conda recipe, and the script that checks them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from simnet.core.version import VERSION
from tests.helpers.needs import needs

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA_NAMES = {"matplotlib": "matplotlib-base"}
"""matplotlib without the windows of Qt."""


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a test", "-c", "user.email=test@example.invalid")
    subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True)


def release(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a clone, with this environment's packages."""
    command = ["bash", str(folder / ".ci/release"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone of this checkout as it is, with its environment."""
    needs("git checkout")
    folder = tmp_path_factory.mktemp("release") / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    for name in (".ci/release", ".ci/conda/meta.yaml", "pyproject.toml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / ".ci/release").chmod(0o755)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "--allow-empty", "-m", "as it is")
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return folder


@pytest.mark.nightly
def test_a_dry_run_builds_and_checks_and_tags_nothing(clone: Path) -> None:
    needs("twine")
    done = release(clone, "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.sub(r"\x1b\[\d+m", "", done.stdout)  # twine's colours
    assert f"binsgdm-{VERSION}-py3-none-any.whl: PASSED" in told
    assert f"binsgdm-{VERSION}.tar.gz: PASSED" in told
    assert f"release: {VERSION} would be released; nothing was tagged" in done.stdout
    tags = subprocess.run(["git", "-C", str(clone), "tag"], capture_output=True, text=True, check=True)
    assert tags.stdout == ""
    assert not (clone / "dist").exists()


@pytest.mark.parametrize(
    ("options", "change", "said"),
    [
        (("--publish",), None, "'--publish': unknown option: must be --dry-run or --upload"),
        (("--dry-run", "--upload"), None, "contradict each other; give one"),
        (("--dry-run",), ("README.md", "changed"), "files have changed since the last commit"),
        (("--dry-run",), ("CHANGELOG.md", "# Changelog\n"), f"CHANGELOG.md: no section '## {VERSION}'"),
        (("--dry-run",), ("CITATION.cff", "version: 9.9.9\n"), "CITATION.cff: has another version"),
        (
            (),
            ("CHANGELOG.md", f"## {VERSION} - unreleased\n"),
            f"CHANGELOG.md: '## {VERSION} - unreleased': write its date there",
        ),
    ],
)
def test_what_is_not_ready_is_refused_in_one_line(
    clone: Path, options: tuple[str, ...], change: tuple[str, str] | None, said: str
) -> None:
    if change is not None:
        name, text = change
        (clone / name).write_text(text, encoding="utf-8")
        if "files have" not in said:
            git(clone, "commit", "-qam", "a change")
    try:
        done = release(clone, *options)
    finally:
        git(clone, "reset", "-q", "--hard", "HEAD~1" if change is not None and "files have" not in said else "HEAD")
    assert done.returncode == 2
    assert done.stderr.startswith("release: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_the_conda_recipe_agrees_with_the_project() -> None:
    import jinja2

    needs("yaml")
    import yaml

    text = (ROOT / ".ci/conda/meta.yaml").read_text(encoding="utf-8")
    recipe = yaml.safe_load(jinja2.Template(text).render(PYTHON="python"))
    assert recipe["package"] == {"name": PROJECT["name"], "version": VERSION}
    needed = {line.partition(">=")[0]: line.partition(">=")[2] for line in PROJECT["dependencies"]}
    wanted = {f"{CONDA_NAMES.get(name, name)} >={least}" for name, least in needed.items()}
    assert set(recipe["requirements"]["run"]) == wanted | {f"python {PROJECT['requires-python']}"}
    assert recipe["build"]["entry_points"] == [f"simnet = {PROJECT['scripts']['simnet']}"]
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["about"]["summary"] == PROJECT["description"]


def test_the_licence_of_every_dependency_is_listed() -> None:
    given = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    wanted = {found.group() for one in given if (found := re.match(r"[\w-]+", one))}
    table = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Licences of dependencies")[2]
    rows = re.findall(r"^\| .* \| (.*) \|$", table, re.MULTILINE)[1:]
    assert {name.split(" ")[0] for row in rows for name in row.split(", ")} == wanted
