"""What computes results here: hashes of the code of simnet and of modules that add to it, and versions of packages."""

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from simnet.cluster.hardware import FAULTS
from simnet.collectives import algorithms
from simnet.core import files
from simnet.core.registry import is_foreign
from simnet.core.version import VERSION
from simnet.strategies import STRATEGIES

CodeHashes = Mapping[str, str]
"""Hashes by module; "simnet" stands for all of the simulator."""
PACKAGES = ("msgspec", "numpy", "scipy", "simpy")
"""What simnet computes with: another version may draw other numbers, or round the last digit another way."""


class Computing(NamedTuple):
    """What computes results in a process.

    Attributes:
        code: hashes by module.
        packages: versions by name.
    """

    code: CodeHashes
    packages: Mapping[str, str]


@cache
def of_simnet() -> str:
    """Return a hash of the simulator's code and of the gradients files that come with it."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    # Gradients files are part of what is computed with; scenarios are in the key of each point.
    for path in sorted(package.rglob("*.py")) + sorted(files.folder("gradients").glob("*.json")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def foreign_code() -> dict[str, bytes]:
    """Return the code of registered strategies, faults and algorithms that are not simnet's own, by module."""
    made: list[object] = [
        *STRATEGIES.built_in(),
        *FAULTS.built_in(),
        *(algorithm.variants for algorithm in algorithms.every()),
    ]
    modules = {str(getattr(registered, "__module__", "")) for registered in made if is_foreign(registered)}
    paths = {module: getattr(sys.modules.get(module), "__file__", None) for module in modules}
    return {module: Path(path).read_bytes() for module, path in paths.items() if path}


def hashes() -> dict[str, str]:
    """Return the hash of the simulator, and that of each module that has registered something."""
    foreign = {module: hashlib.sha256(code).hexdigest() for module, code in foreign_code().items()}
    return {"simnet": of_simnet(), **foreign}


@cache
def package_versions() -> dict[str, str]:
    """Return the versions of `PACKAGES` by their names."""
    return {name: metadata.version(name) for name in PACKAGES}


def computing() -> Computing:
    """Return what computes results in this process."""
    return Computing(hashes(), package_versions())


def difference(wanted: Computing) -> str | None:
    """Return what this process has other than another one, as in "other code of simnet 0.1.0"; None if all is the same.

    A module that nothing has loaded here has computed nothing.
    """
    here = computing()
    for module, digest in wanted.code.items():
        if here.code.get(module, digest) != digest:
            return f"other code of {f'simnet {VERSION}' if module == 'simnet' else module}"
    for name, version in wanted.packages.items():
        if here.packages.get(name) != version:
            return f"{name} {here.packages.get(name, '(none)')}, not {version}"
    return None
