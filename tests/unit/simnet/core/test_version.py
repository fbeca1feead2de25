"""The version, with the commit where one is known."""

import subprocess
from pathlib import Path

import pytest

from simnet.core import version

GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run([*GIT, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a checkout with one commit."""
    folder = tmp_path / "simnet"
    folder.mkdir()
    (tmp_path / "pyproject.toml").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "One.")
    return folder


def test_a_checkout_says_its_commit_and_an_installed_package_that_which_it_was_built_from(package: Path) -> None:
    head = git(package, "rev-parse", f"--short={version.COMMIT_DIGITS}", "HEAD")
    assert version.commit(package) == head
    (package.parent / "pyproject.toml").write_text("[tool]")
    assert version.commit(package) == f"{head}-dirty"
    (package.parent / "pyproject.toml").unlink()
    assert version.commit(package) == "", "the repository of something else is not asked"
    (package / version.COMMIT_FILE).write_text("0123456789ab\n")
    assert version.commit(package) == "0123456789ab"


def test_without_git_or_a_repository_the_version_stands_alone(
    tmp_path: Path, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".git").write_text("broken")
    assert version.commit_of_checkout(tmp_path / "other") == ""
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert version.commit(package) == ""
    monkeypatch.setattr(version, "commit", lambda: "")
    assert version.text() == version.VERSION
