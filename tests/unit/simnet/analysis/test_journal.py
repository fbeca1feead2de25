"""The journal of a sweep: what is committed outlives kills, a full disk, a second sweep; what is none is refused."""

import os
import resource
import signal
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from simnet.analysis import journal
from simnet.analysis.journal import NAME, Entry, Journal
from simnet.core.errors import SimnetError
from tests.helpers.journals import change, rows
from tests.helpers.refusals import refused

A, B = Entry("a", b"{}", {}), Entry("b", "no such file", {"cluster.num_nodes": 0})
FORKED = get_context("fork")


def keys(out: Path) -> list[str]:
    return [row.key for row in rows(out)]


def forked(work: Callable[[], object]) -> int | None:
    """Do something in another process, and return how that ended."""
    process = FORKED.Process(target=work)
    process.start()
    process.join(60)
    return process.exitcode


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class TestCommits:
    @pytest.mark.parametrize(
        ("seconds", "waits", "is_kept"), [(journal.COMMIT_S, False, True), (0.0, True, True), (0.1, False, False)]
    )
    def test_a_kill_costs_a_second_of_work_or_of_waiting_at_most(
        self, tmp_path: Path, seconds: float, waits: bool, is_kept: bool
    ) -> None:
        def sweep() -> None:
            opened = Journal(tmp_path)
            if waits:
                opened._committed_at_s -= journal.COMMIT_S
            opened.append([A], seconds / 2)
            opened.append([B], seconds / 2)
            killed()

        assert forked(sweep) == -signal.SIGKILL
        kept = keys(tmp_path)
        assert kept == (["a", "b"] if is_kept and not waits else ["a"] if is_kept else [])
        with Journal(tmp_path) as again:  # which a killed sweep has let go of
            assert again.last_before == len(kept)

    def test_what_is_half_written_when_a_sweep_is_killed_is_undone(self, tmp_path: Path) -> None:
        with Journal(tmp_path) as first:
            first.append([A], 0.0)

        def sweep() -> None:
            second = Journal(tmp_path)
            second._database.execute("PRAGMA cache_size = 5")  # so that much is written before it is committed
            second.append([Entry(str(number), b"x" * 9_000, {}) for number in range(300)], 0.0)
            killed()

        assert forked(sweep) == -signal.SIGKILL
        assert (tmp_path / f"{NAME}-journal").stat().st_size > 0
        assert (tmp_path / NAME).stat().st_size > 1_000_000
        with Journal(tmp_path) as again:
            assert (again.last_before, again.place_of("a"), again.place_of("7")) == (1, 1, None)
        assert [path.name for path in tmp_path.iterdir()] == [NAME]

    def test_an_error_and_an_interrupt_keep_what_was_finished(self, tmp_path: Path) -> None:
        interrupted = Journal(tmp_path)
        interrupted.append([A], 0.0)
        interrupted.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        assert keys(tmp_path) == ["a"]


class TestLock:
    @pytest.mark.slow
    def test_a_second_sweep_in_the_same_directory_is_refused(self, tmp_path: Path) -> None:
        def second() -> None:
            with refused(start=f"{tmp_path}: another sweep is writing here; wait for it, or name another directory wi"):
                Journal(tmp_path)

        with Journal(tmp_path) as first:
            second()  # before the first has written anything
            first.append([A], journal.COMMIT_S)
            second()
            assert forked(second) == 0
            first.append([B], 0.0)
        assert keys(tmp_path) == ["a", "b"]

    @pytest.mark.slow
    def test_of_two_that_start_at_once_one_goes_on(self, tmp_path: Path) -> None:
        num = 4
        start, outcomes = FORKED.Barrier(num), FORKED.SimpleQueue()

        def sweep(out: Path) -> None:
            start.wait()
            try:
                with Journal(out):
                    outcomes.put("goes on")
                    time.sleep(2 * journal.BUSY_S)
            except SimnetError as error:
                outcomes.put(str(error))

        for turn in range(3):
            if turn:
                Journal(tmp_path / str(turn)).__exit__(None, None, None)  # one that is there, which is read first
            processes = [FORKED.Process(target=sweep, args=(tmp_path / str(turn),)) for _ in range(num)]
            for process in processes:
                process.start()
            ended = sorted(outcomes.get() for _ in processes)
            for process in processes:
                process.join(60)
            assert ended.count("goes on") == 1
            assert sum("another sweep is writing here" in outcome for outcome in ended) == num - 1


def damaged_key(out: Path) -> None:
    """Change a key in the index alone."""
    with Journal(out) as written:
        written.append([Entry("k" * 64, b"{}", {})], 0.0)
    content = (out / NAME).read_bytes()
    start = content.rindex(b"k" * 64)
    assert content.count(b"k" * 64) == 2
    (out / NAME).write_bytes(content[:start] + b"j" + content[start + 1 :])


def damaged_pages(out: Path) -> None:
    with Journal(out) as written:
        written.append([Entry(str(number), b"x" * 9_000, {}) for number in range(30)], 0.0)
    content = (out / NAME).read_bytes()
    (out / NAME).write_bytes(content[:4096] + bytes(len(content) - 4096))


def file(content: bytes) -> Callable[[Path], object]:
    return lambda out: (out / NAME).write_bytes(content)


LINE = b'{"key": "a", "result": {}}\n'
DAMAGED = "is damaged, or no journal; delete the file to simulate all points again, or name another directory with -o"
OTHER = "no journal of this version of simnet; delete it, or name another directory with -o"


class TestRefused:
    @pytest.mark.parametrize(
        ("lay_out", "rule"),
        [
            (file(b"notes"), DAMAGED),
            (file(b"x,y\n1,2" * 9_000), DAMAGED),
            (file(LINE), DAMAGED),
            (damaged_key, DAMAGED),
            (damaged_pages, DAMAGED),
            (lambda out: change(out, "CREATE TABLE points (key TEXT)"), OTHER),
            (lambda out: change(out, "CREATE TABLE others (place INTEGER PRIMARY KEY, key TEXT)"), OTHER),
        ],
    )
    def test_what_is_no_journal_is_refused_at_once_and_left_as_it_is(
        self, tmp_path: Path, lay_out: Callable[[Path], object], rule: str
    ) -> None:
        lay_out(tmp_path)
        content = (tmp_path / NAME).read_bytes()
        with refused(start=f"{tmp_path / NAME}: {rule}"):
            Journal(tmp_path)
        assert (tmp_path / NAME).read_bytes() == content
        assert [path.name for path in tmp_path.iterdir()] == [NAME]

    def test_a_pipe_a_device_a_file_for_a_directory_and_a_point_twice_are_refused(self, tmp_path: Path) -> None:
        for name in ("pipe", "device"):
            (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / "pipe" / NAME)
        (tmp_path / "device" / NAME).symlink_to("/dev/full")
        for name in ("pipe", "device"):
            with refused("not a regular file; remove it, or name another with -o"):
                Journal(tmp_path / name)
        (tmp_path / "file").write_text("")
        with refused("file: cannot be written (File exists); name another with -o"):
            Journal(tmp_path / "file")
        with Journal(tmp_path / "twice") as twice, refused("is damaged, or no journal"):
            twice.append([A, A], 0.0)
        with Journal(tmp_path / "twice") as again:
            assert again.last_before <= 1

    def test_a_folder_that_is_read_only_is_refused(self, tmp_path: Path) -> None:
        def read_only() -> None:
            for name in ("new", "old"):
                with refused("cannot be written (Permission denied); name another with -o", start=tmp_path / name):
                    Journal(tmp_path / name)

        def as_nobody() -> None:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)  # root may write anywhere
            read_only()

        (tmp_path / "new").mkdir()
        with Journal(tmp_path / "old") as old:
            old.append([A], 0.0)
        for path in (tmp_path / "new", tmp_path / "old"):
            path.chmod(0o555)
        (tmp_path / "old" / NAME).chmod(0o444)
        for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
            folder.chmod(folder.stat().st_mode | 0o055)
        try:
            if os.getuid() == 0:
                assert forked(as_nobody) == 0
            else:
                read_only()
        finally:
            (tmp_path / "new").chmod(0o755)
            (tmp_path / "old").chmod(0o755)
        assert keys(tmp_path / "old") == ["a"]


def test_what_a_full_disk_does_not_take_is_told_and_what_it_took_is_kept(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    rule = "make room: the same sweep resumes from the finished points; or name another directory with -o"

    def filled() -> None:
        with Journal(tmp_path) as full:
            for number in range(100):
                full.append([Entry(str(number), b"x" * 9_000, {})], journal.COMMIT_S)

    with Journal(tmp_path) as first:
        first.append([A], 0.0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
    try:
        with refused(f"; {rule}", start=f"{tmp_path / NAME}: cannot be written ("):
            filled()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    kept = keys(tmp_path)
    assert kept == ["a", *map(str, range(len(kept) - 1))]
    assert 1 < len(kept) < 10
    with Journal(tmp_path) as again:
        assert again.append([B], 0.0) == [len(kept) + 1]
