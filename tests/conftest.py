"""What all tests start from: Hypothesis, Triton without a GPU, and signals."""

import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("house", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("house")

if not Path("/dev/nvidia0").exists():  # Triton looks once, when something (torch, too) first imports it
    os.environ["TRITON_INTERPRET"] = "1"

if threading.current_thread() is threading.main_thread():
    # What was started in the background (`make test &`, nohup) ignores these, and so would the commands under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Let a test module that cannot be imported fail: the collector of doctests skips it, and all its tests with it."""
    if report.skipped and "unable to import module" in str(report.longrepr) and "/test_" in f"/{report.nodeid}":
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid}: cannot be imported"
