"""The version of both packages, which pyproject.toml reads here: at run time no package metadata is parsed."""

from pathlib import Path

VERSION = "1.0.0rc1"
COMMIT_FILE = "_commit.txt"
"""Of a wheel: hatch_build.py writes it."""
COMMIT_DIGITS = 12


def commit(package: Path | None = None) -> str:
    """Return the commit that the package was built from or is a checkout of, with "-dirty" where files have changed.

    Args:
        package: folder of the package; by default this one.

    Returns:
        The commit; "" where it is not known, as in a wheel that was built without git.
    """
    from simnet.core import files

    folder = package or Path(__file__).resolve().parents[1]
    if (folder / COMMIT_FILE).exists():
        return files.read_text(folder / COMMIT_FILE).strip()
    return commit_of_checkout(folder.parent) if (folder.parent / "pyproject.toml").exists() else ""


def commit_of_checkout(root: Path) -> str:
    """Return the commit of a checkout; "" where there is no git, or no repository."""
    import subprocess

    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*", f"--abbrev={COMMIT_DIGITS}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def text() -> str:
    """Return version and commit, as people read them."""
    known = commit()
    return f"{VERSION} (commit {known})" if known else VERSION
