"""What all tests start from: Hypothesis, Triton without a GPU, and signals."""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import settings

from tests.helpers.needs import (
    is_here,
    missing_of,
    pytest_pycollect_makemodule,  # noqa: F401  # a hook, as the next
    pytest_terminal_summary,  # noqa: F401
)

pytest_plugins = ["tests.helpers.slow"]

# `make test-all` takes "all": as many examples as prove something. CI tries the first half of the same, and while one
# works, some are tried.
settings.register_profile("all", deadline=None, print_blob=True, derandomize=True, max_examples=100)
settings.register_profile("ci", settings.get_profile("all"), max_examples=50)
settings.register_profile("quick", settings.get_profile("all"), max_examples=15)
settings.load_profile("quick")

# One process a core: with more threads torch spends three times as long, most of it waiting for a core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if not is_here("GPU"):  # Triton looks once, when something (torch, too) first imports it
    os.environ["TRITON_INTERPRET"] = "1"

if threading.current_thread() is threading.main_thread():
    # What was started in the background (`make test &`, nohup) ignores these, and so would the commands under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="module")
def _signals() -> Iterator[None]:
    """Refuse tests that leave another handler of a signal: it would act in the tests that follow."""
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    assert {number: signal.getsignal(number) for number in ENDING} == before


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGALRM)
HERE = Path(__file__).parent
collect_ignore = ["helpers"]
# Folders whose tests are all of one kind.
FOLDERS = {
    "distributed": pytest.mark.distributed, "works": pytest.mark.distributed, "gpu": pytest.mark.gpu,
}  # fmt: skip


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let a fork import a share of the test modules first: all find them compiled, where each would compile all."""
    worker = getattr(session.config, "workerinput", None)
    if (
        worker is None
        or not hasattr(os, "fork")
        or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    ):
        return
    number, workers = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    mine = [
        path
        for path in sorted(HERE.rglob("test_*.py"))[number::workers]
        if not (_is_compiled(path) or missing_of(path))
    ]
    if not mine:
        return
    if pid := os.fork():  # in the worker itself, tests would be in another order where imports register something
        os.waitpid(pid, 0)
        return
    try:
        for path in mine:
            # What is wrong with a module, its collection says.
            with suppress(Exception, pytest.skip.Exception):
                import_module(".".join(path.relative_to(HERE.parent).with_suffix("").parts))
    finally:
        os._exit(0)


def _is_compiled(path: Path) -> bool:
    """Return whether pytest has compiled a module, whose asserts it rewrites, as it stands."""
    compiled = (path.parent / "__pycache__").glob(f"{path.stem}.*-pytest-*.pyc")
    return any(one.stat().st_mtime >= path.stat().st_mtime for one in compiled)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Let Python look for circles neither while modules are imported nor later among what they hold.

    That is most of a million objects, of which hardly any is garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the folder that they stand in, before pytest chooses by marks."""
    for item in items:
        folder = _folder_of_tests(item.path)
        if folder in FOLDERS:
            item.add_marker(FOLDERS[folder])


@cache
def _folder_of_tests(path: Path) -> str:
    return path.relative_to(HERE).parts[0] if path.is_relative_to(HERE) else ""


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """Let it be freed again: libraries tell of what they never saw freed."""
    gc.unfreeze()
