"""Tests of what only a card can show in full; without one they run on the CPU, at the smallest sizes.

`--checks FILE` leaves how they ended in a measurement file, which `simnet measure gpu --card` shows: a check for each
test function.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.bench.ranks import Ranks
from binsgdm.bench.record import Record
from tests.helpers import kernel_samples


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--checks", type=Path, help="measurement file that says how the tests ended")


def pytest_configure(config: pytest.Config) -> None:
    """Listen to reports if they are asked for."""
    if path := config.getoption("--checks", None):
        config.pluginmanager.register(Checks(path))


class Checks:
    """Writes at the end, for each test function, how many of its tests have run, and what the first failure was."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reports: dict[str, list[pytest.TestReport]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report of a test that has run."""
        if report.failed or (report.passed and report.when == "call"):
            self._reports[report.nodeid.partition("[")[0]].append(report)

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        place: torch.device = torch.device(kernel_samples.device())
        alone = Ranks(rank=0, world_size=1, ranks_per_node=1, ranks_on_machine=1, device=place, backend="", groups=None)
        record = Record(alone)
        for name, reports in self._reports.items():
            module, _, function = name.rpartition("::")
            title = f"{Path(module).stem}: {function}".replace("test_", "").replace("_", " ")
            failed = [report for report in reports if report.failed]
            detail = (
                f"{failed[0].nodeid.partition('[')[2].removesuffix(']')} {failed[0].longreprtext.strip()[-200:]}"
                if failed
                else ""
            )
            detail = " ".join(detail.split())
            record.check(title, passed=not failed, count=len({one.nodeid for one in reports}), detail=detail)
        if not record.checks:
            record.note("no test has run")
        record.write(self._path)


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Return the first card; without one the CPU, as another object than `torch.device("cpu")`."""
    return torch.device(kernel_samples.device(), 0)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Let torch work on one thread: small tensors on several mostly wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
