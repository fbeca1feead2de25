"""Which tests are slow and do not say so: listed at the end of a run."""

import math

import pytest

SLOW_S = {"call": 0.25, "setup": 5.0}
"""From when on a test is slow, by phase: the tests of a file share what starts their ranks."""
LEFT_OUT = {"slow", "timed", "lab", "nightly"}
"""Marks that `make test` leaves out."""
MOST_LISTED = 10
OPTION = "--fail-on-unmarked-slow"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let whoever has a quiet machine hold the rule; under load, any test may take long."""
    parser.addoption(OPTION, action="store_true", help="exit 1 where a slow test is not marked slow")


def unmarked(config: pytest.Config) -> list[pytest.TestReport]:
    """Return reports of the slow tests without a mark, the slowest first."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    outcomes = reporter.stats if reporter else {}  # a worker of pytest-xdist has no reporter
    reports = (report for outcome in ("passed", "") for report in outcomes.get(outcome, []))  # "": of a setup
    slow = [
        report
        for report in reports
        if report.duration >= SLOW_S.get(report.when, math.inf) and not LEFT_OUT & report.keywords.keys()
    ]
    return sorted(slow, key=lambda report: -report.duration)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail if that was asked for."""
    if session.config.getoption(OPTION) and unmarked(session.config):
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List them: the worst, or all where the run fails on them."""
    reports = unmarked(config)
    if reports:
        terminalreporter.section(f"{len(reports)} tests are slow and not marked so")
        for report in reports if config.getoption(OPTION) else reports[:MOST_LISTED]:
            terminalreporter.line(f"{report.duration:.2f} s {report.when} {report.nodeid}")
