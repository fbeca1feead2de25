"""The journal of a sweep: what is committed outlives kills, a full disk, a second sweep; what is none is refused."""

import os
import resource
import signal
import sqlite3
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

from simnet.analysis import journal
from simnet.analysis.journal import NAME, OLDER, Entry, Journal
from simnet.core.errors import SimnetError
from tests.helpers.journals import change, rows

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
            one = Journal(tmp_path)
            if waits:
                one._committed_at_s -= journal.COMMIT_S
            one.append([A], seconds / 2)
            one.append([B], seconds / 2)
            killed()

        assert forked(sweep) == -signal.SIGKILL
        assert keys(tmp_path) == (["a", "b"] if is_kept and not waits else ["a"] if is_kept else [])

    def test_what_is_half_written_when_a_sweep_is_killed_is_undone(self, tmp_path: Path) -> None:
        with Journal(tmp_path) as one:
            one.append([A], 0.0)

        def sweep() -> None:
            one = Journal(tmp_path)
            one._database.execute("PRAGMA cache_size = 5")  # so that much is written before it is committed
            one.append([Entry(str(number), b"x" * 9_000, {}) for number in range(300)], 0.0)
            killed()

        assert forked(sweep) == -signal.SIGKILL
        assert (tmp_path / f"{NAME}-journal").stat().st_size > 0
        assert (tmp_path / NAME).stat().st_size > 1_000_000
        with Journal(tmp_path) as again:
            assert (again.last_before, again.place_of("a"), again.place_of("7")) == (1, 1, None)
        assert [path.name for path in tmp_path.iterdir()] == [NAME]

    def test_an_error_and_an_interrupt_keep_what_was_finished(self, tmp_path: Path) -> None:
        one = Journal(tmp_path)
        one.append([A], 0.0)
        one.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        assert keys(tmp_path) == ["a"]


class TestLock:
    @pytest.mark.slow
    def test_a_second_sweep_in_the_same_directory_is_refused(self, tmp_path: Path) -> None:
        rule = f"^{tmp_path}: another sweep is writing here; wait for it, or name another directory with -o$"
        with Journal(tmp_path) as first:
            first.append([A], journal.COMMIT_S)
            with pytest.raises(SimnetError, match=rule):
                Journal(tmp_path)

            def second() -> None:
                with pytest.raises(SimnetError, match=rule):
                    Journal(tmp_path)

            assert forked(second) == 0
            first.append([B], 0.0)
        assert keys(tmp_path) == ["a", "b"]
        with Journal(tmp_path), pytest.raises(SimnetError, match=rule):  # before it has written anything
            Journal(tmp_path)

    @pytest.mark.slow
    def test_of_two_that_start_at_once_one_goes_on(self, tmp_path: Path) -> None:
        num = 4
        start, told = FORKED.Barrier(num), FORKED.SimpleQueue()

        def sweep(out: Path) -> None:
            start.wait()
            try:
                with Journal(out):
                    told.put("goes on")
                    time.sleep(2 * journal.BUSY_S)
            except SimnetError as error:
                told.put(str(error))

        for turn in range(3):
            if turn:
                Journal(tmp_path / str(turn)).__exit__(None, None, None)  # one that is there, which is read first
            processes = [FORKED.Process(target=sweep, args=(tmp_path / str(turn),)) for _ in range(num)]
            for process in processes:
                process.start()
            found = sorted(told.get() for _ in processes)
            for process in processes:
                process.join(60)
            assert found.count("goes on") == 1
            assert sum("another sweep is writing here" in one for one in found) == num - 1

    def test_a_killed_sweep_lets_go_of_it(self, tmp_path: Path) -> None:
        def sweep() -> None:
            Journal(tmp_path).append([A], journal.COMMIT_S)
            killed()

        forked(sweep)
        with Journal(tmp_path) as again:
            assert again.last_before == 1


class TestRefused:
    @pytest.mark.parametrize("content", [b"notes", b"x,y\n1,2" * 9_000, b'{"key": "a", "result": {}}\n'])
    def test_a_file_of_something_else_is_left_as_it_is(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / NAME).write_bytes(content)
        rule = r"is damaged, or no journal; delete the file to simulate all points again, or name another"
        with pytest.raises(SimnetError, match=rf"^{tmp_path / NAME}: {rule} directory with -o$"):
            Journal(tmp_path)
        assert (tmp_path / NAME).read_bytes() == content

    @pytest.mark.parametrize("table", ["points (key TEXT)", "others (place INTEGER PRIMARY KEY, key TEXT)"])
    def test_a_database_of_something_else_is_left_as_it_is(self, tmp_path: Path, table: str) -> None:
        change(tmp_path, f"CREATE TABLE {table}")
        content = (tmp_path / NAME).read_bytes()
        rule = "no journal of this version of simnet; delete it, or name another directory with -o"
        with pytest.raises(SimnetError, match=f"^{tmp_path / NAME}: {rule}$"):
            Journal(tmp_path)
        assert (tmp_path / NAME).read_bytes() == content

    def test_one_of_an_older_version_is_refused_and_left_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / OLDER).write_text('{"key": "a", "result": {}}\n')
        rule = "the journal of an older version, whose results this one does not take; delete it, or name another"
        with pytest.raises(SimnetError, match=rf"^{tmp_path / OLDER}: {rule} directory with -o$"):
            Journal(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [OLDER]

    def test_a_key_that_is_damaged_in_the_index_alone_is_refused_at_once(self, tmp_path: Path) -> None:
        with Journal(tmp_path) as one:
            one.append([Entry("k" * 64, b"{}", {})], 0.0)
        content = (tmp_path / NAME).read_bytes()
        start = content.rindex(b"k" * 64)
        assert content.count(b"k" * 64) == 2
        content = content[:start] + b"j" + content[start + 1 :]
        (tmp_path / NAME).write_bytes(content)
        with pytest.raises(SimnetError, match=rf"^{tmp_path / NAME}: is damaged, or no journal; delete the file to"):
            Journal(tmp_path)

    def test_damaged_pages_are_refused_before_anything_is_written(self, tmp_path: Path) -> None:
        with Journal(tmp_path) as one:
            one.append([Entry(str(number), b"x" * 9_000, {}) for number in range(30)], 0.0)
        size = (tmp_path / NAME).stat().st_size
        with (tmp_path / NAME).open("r+b") as file:
            file.seek(4096)
            file.write(bytes(size - 4096))
        content = (tmp_path / NAME).read_bytes()
        with pytest.raises(SimnetError, match=rf"^{tmp_path / NAME}: is damaged, or no journal; delete the file to"):
            Journal(tmp_path)
        assert (tmp_path / NAME).read_bytes() == content

    def test_a_pipe_or_a_device_is_no_journal(self, tmp_path: Path) -> None:
        for name in ("pipe", "device"):
            (tmp_path / name).mkdir()
        os.mkfifo(tmp_path / "pipe" / NAME)
        (tmp_path / "device" / NAME).symlink_to("/dev/full")
        for name in ("pipe", "device"):
            with pytest.raises(SimnetError, match="not a regular file; remove it, or name another with -o"):
                Journal(tmp_path / name)

    def test_a_place_that_is_no_directory_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(SimnetError, match=r"file: cannot be written \(File exists\); name another with -o"):
            Journal(tmp_path / "file")

    def test_a_folder_that_is_read_only_is_refused(self, tmp_path: Path) -> None:
        def refused() -> None:
            for name in ("new", "old"):
                rule = r"cannot be written \(Permission denied\); name another with -o"
                with pytest.raises(SimnetError, match=rf"^{tmp_path / name}: {rule}$"):
                    Journal(tmp_path / name)

        def as_nobody() -> None:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)  # root may write anywhere
            refused()

        (tmp_path / "new").mkdir()
        with Journal(tmp_path / "old") as one:
            one.append([A], 0.0)
        for path in (tmp_path / "new", tmp_path / "old"):
            path.chmod(0o555)
        (tmp_path / "old" / NAME).chmod(0o444)
        for folder in (tmp_path, *list(tmp_path.parents)[:-2]):
            folder.chmod(folder.stat().st_mode | 0o055)
        try:
            if os.getuid() == 0:
                assert forked(as_nobody) == 0
            else:
                refused()
        finally:
            (tmp_path / "new").chmod(0o755)
            (tmp_path / "old").chmod(0o755)
        assert keys(tmp_path / "old") == ["a"]


class TestFullDisk:
    def test_what_does_not_fit_is_told_and_what_did_is_kept(self, tmp_path: Path) -> None:
        with Journal(tmp_path) as one:
            one.append([A], 0.0)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        rule = "make room: the same sweep resumes from the finished points; or name another directory with -o"

        def filled() -> None:
            with Journal(tmp_path) as full:
                for number in range(100):
                    full.append([Entry(str(number), b"x" * 9_000, {})], journal.COMMIT_S)

        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
        try:
            with pytest.raises(SimnetError, match=rf"^{tmp_path / NAME}: cannot be written \(.+\); {rule}$"):
                filled()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        kept = keys(tmp_path)
        assert kept == ["a", *map(str, range(len(kept) - 1))]
        assert 1 < len(kept) < 10
        with Journal(tmp_path) as again:
            assert again.append([B], 0.0) == [len(kept) + 1]


def test_the_same_point_is_never_there_twice(tmp_path: Path) -> None:
    with Journal(tmp_path) as one, pytest.raises(SimnetError, match="is damaged, or no journal"):
        one.append([A, A], 0.0)
    with Journal(tmp_path) as again:
        assert isinstance(again._database, sqlite3.Connection)
        assert again.last_before <= 1
