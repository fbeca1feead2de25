"""Shipped parts and files."""

import ast
import errno
import gzip
import json
import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from simnet.core import files
from tests.helpers.refusals import refused

ROOT = Path(__file__).parents[4]

WITHOUT_END = ("a = " + "9" * 5000, "a = 0x" + "f" * 5000, "a.b = [1, " + "9" * 301 + "000000000]")
DEEP = ("a = " + "[" * 60 + "]" * 60, "a." * 60 + "b = 1", "a." * 3000 + "b = 1")


def test_every_shipped_part_can_be_read_by_its_name() -> None:
    for kind in files.KINDS:
        for name in files.names(kind):
            assert files.read(kind, name)


def test_an_installed_package_carries_its_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "simnet" / "_scenarios" / "clusters"
    data.mkdir(parents=True)
    (data / "mine.toml").write_text("num_nodes = 1\n")
    monkeypatch.setattr(files, "__file__", str(tmp_path / "simnet" / "core" / "files.py"))
    files.installed_or_checkout.cache_clear()
    try:
        assert files.names("clusters") == ("mine",)
        assert files.label(data / "mine.toml") == "clusters/mine.toml"
    finally:
        files.installed_or_checkout.cache_clear()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda here: files.names("cluster"), "'cluster': unknown kind of part. Did you mean 'clusters'?"),
        (lambda here: files.read("gradients", "bert_bas"), "unknown gradients. Did you mean 'bert_base'?"),
        (lambda here: files.gradients_path("./no.json"), "workload.gradients: './no.json': no such file"),
        (
            lambda here: files.locate("convergence", "no.json"),
            "'no.json': no such file; give the path of a .json file, or one name of",
        ),
        (lambda here: files.locate("clusters", "./folder", here), "'./folder': not a regular file"),
        (lambda here: files.locate("clusters", "./pipe", here), "'./pipe': not a regular file"),
        (lambda here: files.locate("clusters", "./loop.toml", here), "cannot be read: Too many levels of symbolic"),
        (lambda here: files.locate("clusters", f"{'a' * 300}.toml", here), "cannot be read: File name too long"),
        (lambda here: files.locate("clusters", "./\0.toml", here), "no such file"),
        (files.read_file, "cannot be read: Is a directory"),
        (lambda here: files.read_bytes(Path("/dev/zero")), "/dev/zero: not a regular file"),
        (lambda here: files.read_bytes(Path("a\0b")), "not a file name: "),
    ],
)
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, ask: Callable[[Path], object], message: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop.toml").symlink_to(tmp_path / "loop.toml")
    with refused(message):
        ask(tmp_path)


@pytest.mark.parametrize(("name", "text"), [("a.toml", "num_nodes = 1"), ("a.json", '{"num_nodes": 1}')])
def test_a_path_starts_at_the_given_directory_and_a_byte_order_mark_is_skipped(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert files.read_file(tmp_path / name) == {"num_nodes": 1}
    (tmp_path / "pod.toml").write_text("num_nodes = 1\n")
    assert files.read("clusters", "./pod.toml", tmp_path) == {"num_nodes": 1}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", b"num_nodes = \n", "not TOML: Invalid value"),
        ("a.toml", b"\xff\xfe", "not UTF-8 text (byte 0)"),
        ("a.json", b"{", "not JSON: Expecting"),
        ("a.json", b"[1]", "list: must hold one object with keys"),
        ("a.json", b"[" * 100_000, "nested deeper than 50 levels"),
        ("a.json", b'{"a": 1, "b": {"c": 1, "c": 2}}', "not JSON: the key 'c' comes twice in one object; drop one"),
        ("a.json", b'{"a": "half \\ud800"}', "half a character; write it whole"),
        *(("a.toml", text.encode(), "a whole number of more than 300 digits") for text in WITHOUT_END),
        *(("a.toml", text.encode(), "nested deeper than 50 levels; write fewer levels") for text in DEEP),
        *(("a.json", b"[" * depth + b"]" * depth, "nested deeper than 50 levels; write fewer") for depth in (52, 300)),
    ],
)
def test_a_file_with_wrong_content_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with refused(message, start=f"{path}: "):
        files.read_file(path)


def test_what_is_larger_than_the_limit_is_refused_packed_or_not(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(2**20 + 1))
    assert len(files.read_bytes(tmp_path / "a", 2**20 + 1)) == 2**20 + 1
    with refused("a: larger than 1 MiB, the most that is read"):
        files.read_bytes(tmp_path / "a", 2**20)
    packed = gzip.compress(bytes(3 * 2**20))
    assert files.gunzipped(packed, Path("a.gz")) == bytes(3 * 2**20)
    assert files.gunzipped(b"plain", Path("a.gz")) == b"plain"
    with refused("a.gz: larger than 1 MiB"):
        files.gunzipped(packed, Path("a.gz"), 2**20)
    whole = gzip.compress(json.dumps([i**3 for i in range(200)]).encode())
    for damaged in (whole[:-9], whole[:30] + b"x" * 20 + whole[50:]):
        with refused("a.gz: damaged or incomplete gzip"):
            files.gunzipped(damaged, Path("a.gz"))


def test_what_is_no_utf_8_is_refused_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"ab\xffc")
    with refused("a: not UTF-8 text (byte 2); save it as UTF-8"):
        files.read_text(tmp_path / "a")
    assert files.read_text(tmp_path / "a", errors="replace") == "ab\ufffdc"


class TestWriting:
    def test_a_file_that_is_replaced_keeps_its_mode_and_a_new_one_has_that_of_the_umask(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        path.write_text("old")
        path.chmod(0o600)
        files.write_file(path, b"new")
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)
        before = os.umask(0o027)
        try:
            files.write_file(tmp_path / "a", b"new")
        finally:
            os.umask(before)
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640

    def test_a_full_disk_leaves_the_old_file_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        (tmp_path / "a").write_text("old")
        monkeypatch.setattr(os, "replace", full)
        with refused("a: cannot be written (No space left on device)"):
            files.write_file(tmp_path / "a", b"new")
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]

    def test_no_link_leads_out_of_the_folder_that_was_named_and_one_within_is_followed(self, tmp_path: Path) -> None:
        out, other = tmp_path / "out", tmp_path / "other"
        out.mkdir()
        other.mkdir()
        (other / "page.md").write_text("mine")
        (out / "page.md").symlink_to(other / "page.md")
        (out / "figures").symlink_to(other)
        for name in ("page.md", "figures/a.png"):
            with refused("a link leads out of ", "out'; remove the link, or name another"):
                files.write_file(out / name, b"new", inside=out)
        assert [(path.name, path.read_text()) for path in other.iterdir()] == [("page.md", "mine")]
        (out / "link").symlink_to(out / "a")
        files.write_file(out / "link", b"new", inside=out)
        assert (out / "link").is_symlink()
        assert (out / "a").read_bytes() == b"new"

    @pytest.mark.parametrize("kind", ["same", "symlink", "hardlink", "relative"])
    def test_an_input_is_not_replaced_under_whatever_name(
        self, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "folder").mkdir()
        (source := tmp_path / "in.toml").write_text("a = 1")
        (tmp_path / "symlink").symlink_to(source)
        (tmp_path / "hardlink").hardlink_to(source)
        places = {"same": source, "relative": Path("folder/../in.toml")}
        with files.watch_inputs():
            files.read_file(source)
            with refused("is an input ", "; name another file"):
                files.write_file(places.get(kind, tmp_path / kind), b"new")
        assert source.read_text() == "a = 1"


# Who else opens a file: what is locked, /proc, the hash of the simulator's own code, a shipped table, a
# place that is tried out, limits of the kernel, and what swallows the rest of a broken stream.
OPENERS = {
    "simnet/core/files.py",
    "simnet/analysis/journal.py",
    "simnet/validation/published_rows.py",
    "simnet/cli/output.py",
}
PARSERS = {
    "simnet/core/parsing.py",
    "simnet/core/schema.py",
    "simnet/analysis/journal.py",
    "simnet/analysis/results_file.py",
    "simnet/cli/options.py",
    "simnet/validation/published_rows.py",
}


@cache
def calls() -> dict[str, set[str]]:
    """Return what each module calls, as it is written; `files.read_text` and its like are left out."""
    return {
        str(path.relative_to(ROOT)): {
            called
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call)
            and not (called := ast.unparse(node.func)).startswith(
                ("files.", "read_", "webbrowser", "os.pidfd", "self._")
            )
        }
        for path in sorted((ROOT / "simnet").rglob("*.py"))
    }


def callers(*names: str) -> set[str]:
    """Return the modules that call something of a name, as a function or a method."""
    return {path for path, called in calls().items() if any(call.endswith(names) for call in called)}


@pytest.mark.slow
def test_files_are_opened_in_one_place() -> None:
    assert callers(".read_text", ".read_bytes", ".write_text", ".write_bytes", ".open", "fdopen") <= OPENERS
    assert callers(".open", "fdopen") >= {"simnet/core/files.py"}


@pytest.mark.slow
def test_text_becomes_data_in_one_place() -> None:
    assert callers("tomllib.loads", "json.loads", "json.load", "json.decode", "msgspec.convert") <= PARSERS


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: files.locate("experiments", "mine.tmol"), "'mine.tmol': no such file; did you mean 'mine.toml'?"),
        (lambda: files.locate("clusters", "./mine.tml"), "'./mine.tml': no such file; did you mean 'mine.toml'?"),
        (lambda: files.locate("experiments", "mine"), "'mine': unknown experiment. Did you mean 'mine.toml'?"),
        (lambda: files.read_text(Path("mine.tomll")), "mine.tomll: no such file; did you mean 'mine.toml'?"),
    ],
)
def test_a_misspelt_file_is_told_its_nearest_name(
    ask: Callable[[], object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text("")
    with refused(start=message):
        ask()
