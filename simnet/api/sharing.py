"""Answers as files to share."""

from collections.abc import Iterable
from pathlib import Path

from simnet.core.files import write_file
from simnet.engine.result import RunResult, SweepResult
from simnet.report.contents import Contents, of_scenario, of_sweep
from simnet.report.report_page import Origin, check_plotly, report_page


def write_run(result: RunResult, path: Path, systems: Iterable[str] | None) -> None:
    """Write the report of a run and of what is around it.

    Raises:
        SimnetError: the run has no baseline, plotly is missing, or the file cannot be written.
    """
    check_plotly()
    _write(of_scenario(result.scenario, lambda _: None, systems=systems), path)


def write_sweep(sweep: SweepResult, path: Path) -> None:
    """Write the report of a sweep.

    Raises:
        SimnetError: no point has a baseline, plotly is missing, or the file cannot be written.
    """
    check_plotly()
    _write(of_sweep(sweep), path)


def _write(contents: Contents, path: Path) -> None:
    origin = Origin(commands=("made in Python: import simnet",), inputs=())
    write_file(path, report_page(contents, origin).encode())
