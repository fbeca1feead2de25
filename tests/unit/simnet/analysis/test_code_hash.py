"""Two processes compute the same if the code of simnet, that of modules that add to it, and packages are the same."""

from collections.abc import Iterator

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
