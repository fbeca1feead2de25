"""What code computes results here: a hash of simnet's own, and of each module that has registered something with it."""

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from simnet import files
from simnet.collectives import algorithms
from simnet.hardware import FAULTS
from simnet.registry import is_foreign
from simnet.strategies import STRATEGIES

CodeHashes = Mapping[str, str]
"""Hashes by module; "simnet" stands for all of the simulator."""


@cache
def of_simnet() -> str:
    """Return a hash of the simulator's code and of the gradients files that come with it."""
    package = Path(__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")) + sorted(files.folder("gradients").glob("*.json")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def foreign_code() -> dict[str, bytes]:
    """Return the code of registered strategies, faults and algorithms that are not simnet's own, by module."""
    made: list[object] = [*STRATEGIES.built_in(), *FAULTS.built_in(), *(one.variants for one in algorithms.every())]
    modules = {str(getattr(one, "__module__", "")) for one in made if is_foreign(one)}
    paths = {module: getattr(sys.modules.get(module), "__file__", None) for module in modules}
    return {module: Path(path).read_bytes() for module, path in paths.items() if path}


def hashes() -> dict[str, str]:
    """Return the hash of the simulator, and that of each module that has registered something."""
    foreign = {module: hashlib.sha256(code).hexdigest() for module, code in foreign_code().items()}
    return {"simnet": of_simnet(), **foreign}


def other_code(given: CodeHashes) -> str | None:
    """Return the first of some modules whose code is another one here; None if there is none.

    A module that nothing has loaded here has computed nothing.
    """
    own = hashes()
    return next((module for module, digest in given.items() if own.get(module, digest) != digest), None)
