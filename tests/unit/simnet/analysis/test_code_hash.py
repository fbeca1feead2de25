"""Two processes compute the same if the code of simnet, that of modules that add to it, and packages are the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simnet.analysis import code_hash, sweeps
from simnet.analysis.code_hash import Computing
from simnet.analysis.sweeps import SweepTask
from simnet.core.errors import SimnetError
from simnet.core.version import VERSION


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(code_hash, "foreign_code", lambda: {"my_systems": b"code"})
    return


def test_what_is_the_same_is_no_difference(plugin: None) -> None:
    assert code_hash.difference(code_hash.computing()) is None


def test_a_module_that_only_the_asking_process_has_loaded_is_no_difference(plugin: None) -> None:
    own = code_hash.computing()
    assert code_hash.difference(Computing({**own.code, "of_another": "1"}, own.packages)) is None


@pytest.mark.parametrize(
    ("code", "packages", "told"),
    [
        ({"simnet": "1"}, {}, f"other code of simnet {VERSION}"),
        ({"my_systems": "1"}, {}, "other code of my_systems"),
        ({}, {"numpy": "0.1"}, r"numpy [\d.]+, not 0\.1"),
        ({}, {"nonesuch": "2"}, r"nonesuch \(none\), not 2"),
    ],
)
def test_a_task_of_another_process_is_not_done(
    plugin: None, code: dict[str, str], packages: dict[str, str], told: str
) -> None:
    own = code_hash.computing()
    task = SweepTask(Computing({**own.code, **code}, {**own.packages, **packages}), (), ())
    with pytest.raises(SimnetError, match=rf"^\S+: a worker has {told}: install the same on all workers$"):
        sweeps.simulate_task(task)


def test_versions_are_those_of_the_packages_that_compute() -> None:
    import numpy
    import scipy

    found = code_hash.package_versions()
    assert (found["numpy"], found["scipy"]) == (numpy.__version__, scipy.__version__)
    assert set(found) == {"msgspec", "numpy", "scipy", "simpy"}


def test_code_that_is_registered_by_others_is_hashed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from types import SimpleNamespace

    module = tmp_path / "theirs.py"
    module.write_text("a = 1")
    monkeypatch.setitem(code_hash.sys.modules, "theirs", SimpleNamespace(__file__=str(module)))

    class Theirs:
        __module__ = "theirs"

    def built_in() -> list[Any]:
        return [Theirs]

    monkeypatch.setattr(code_hash, "FAULTS", SimpleNamespace(built_in=built_in))
    first = code_hash.hashes()
    module.write_text("a = 2")
    second = code_hash.hashes()
    assert first["simnet"] == second["simnet"]
    assert first["theirs"] != second["theirs"]
