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
from simnet.core.errors import SimnetError
from simnet.core.parsing import parse_json, parse_toml

ROOT = Path(__file__).parents[4]


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


def test_an_unknown_kind_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SimnetError, match=r"'cluster': unknown kind of part. Did you mean 'clusters'?"):
        files.names("cluster")


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SimnetError, match=r"'bert_bas': unknown gradients. Did you mean 'bert_base'?"):
        files.read("gradients", "bert_bas")


def test_gradients_that_are_not_there_name_the_key() -> None:
    with pytest.raises(SimnetError, match=r"workload.gradients: './no.json': no such file"):
        files.gradients_path("./no.json")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./folder", "'./folder': not a regular file"),
        ("./pipe", "'./pipe': not a regular file"),
        ("./loop.toml", "'./loop.toml': cannot be read: Too many levels of symbolic links"),
        (f"{'a' * 300}.toml", "cannot be read: File name too long"),
        ("./\0.toml", "no such file"),
    ],
)
def test_a_path_that_is_no_file_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop.toml").symlink_to(tmp_path / "loop.toml")
    with pytest.raises(SimnetError) as caught:
        files.locate("clusters", name, tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "text"), [("a.toml", "num_nodes = 1"), ("a.json", '{"num_nodes": 1}')])
def test_a_byte_order_mark_is_skipped(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert files.read_file(tmp_path / name) == {"num_nodes": 1}


def test_a_path_starts_at_the_given_directory(tmp_path: Path) -> None:
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
    ],
)
def test_a_file_with_wrong_content_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SimnetError) as caught:
        files.read_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimnetError, match="cannot be read: Is a directory"):
        files.read_file(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"a": 1, "b": {"c": 1, "c": 2}}',
            "t.json: not JSON: the key 'c' comes twice in one object; drop one",
        ),
        ('{"a": "half \\ud800"}', "t.json: not JSON: .*half a character; write it whole"),
    ],
)
def test_json_is_read_as_strictly_as_toml(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text, encoding="utf-8")
    with pytest.raises(SimnetError, match=said):
        files.read_file(tmp_path / "t.json")


def test_a_missing_file_of_trainings_is_asked_for_by_its_ending() -> None:
    with pytest.raises(SimnetError, match=r"'no.json': no such file; give the path of a .json file, or one name of"):
        files.locate("convergence", "no.json")


# Who else opens a file: what is locked, /proc, the hash of the simulator's own code, a shipped table, a
# place that is tried out, limits of the kernel, and what swallows the rest of a broken stream.
OPENERS = {
    "simnet/core/files.py",
    "simnet/analysis/journal.py",
    "simnet/validation/lab/owner.py",
    "simnet/analysis/code_hash.py",
    "simnet/validation/published_rows.py",
    "simnet/cli/output.py",
    "simnet/cli/terminal.py",
    "simnet/validation/lab/cpu_quota.py",
}
PARSERS = {
    "simnet/core/parsing.py",
    "simnet/core/schema.py",
    "simnet/analysis/journal.py",
    "simnet/analysis/results_file.py",
    "simnet/cli/settings.py",
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
    return {path for path, called in calls().items() if any(one.endswith(names) for one in called)}


@pytest.mark.slow
def test_files_are_opened_in_one_place() -> None:
    assert callers(".read_text", ".read_bytes", ".write_text", ".write_bytes", ".open", "fdopen") <= OPENERS
    assert callers(".open", "fdopen") >= {"simnet/core/files.py"}


def test_text_becomes_data_in_one_place() -> None:
    assert callers("tomllib.loads", "json.loads", "json.load", "json.decode", "msgspec.convert") <= PARSERS


class TestReading:
    def test_a_device_is_refused(self) -> None:
        with pytest.raises(SimnetError, match=r"/dev/zero: not a regular file"):
            files.read_bytes(Path("/dev/zero"))

    def test_what_is_larger_than_the_limit_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(bytes(2**20 + 1))
        assert len(files.read_bytes(tmp_path / "a", 2**20 + 1)) == 2**20 + 1
        with pytest.raises(SimnetError, match="a: larger than 1 MiB, the most that is read"):
            files.read_bytes(tmp_path / "a", 2**20)

    def test_a_name_with_a_null_character_is_refused(self) -> None:
        with pytest.raises(SimnetError, match=r"not a file name: .*embedded null"):
            files.read_bytes(Path("a\0b"))

    def test_what_is_packed_is_unpacked_up_to_the_limit(self) -> None:
        packed = gzip.compress(bytes(3 * 2**20))
        assert files.gunzipped(packed, Path("a.gz")) == bytes(3 * 2**20)
        assert files.gunzipped(b"plain", Path("a.gz")) == b"plain"
        with pytest.raises(SimnetError, match=r"a.gz: larger than 1 MiB"):
            files.gunzipped(packed, Path("a.gz"), 2**20)

    @pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:30] + b"x" * 20 + data[50:]])
    def test_what_is_packed_and_damaged_is_refused(self, damage: Callable[[bytes], bytes]) -> None:
        packed = gzip.compress(json.dumps([i**3 for i in range(200)]).encode())
        with pytest.raises(SimnetError, match=r"a.gz: damaged or incomplete gzip"):
            files.gunzipped(damage(packed), Path("a.gz"))

    def test_what_is_no_utf_8_is_refused_or_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"ab\xffc")
        with pytest.raises(SimnetError, match=r"a: not UTF-8 text \(byte 2\); save it as UTF-8"):
            files.read_text(tmp_path / "a")
        assert files.read_text(tmp_path / "a", errors="replace") == "ab\ufffdc"

    @pytest.mark.parametrize(
        "text", ["a = " + "9" * 5000, "a = 0x" + "f" * 5000, "a.b = [1, " + "9" * 301 + "000000000]"]
    )
    def test_whole_numbers_without_end_are_refused(self, text: str) -> None:
        with pytest.raises(SimnetError, match=r"t: .*a whole number of more than 300 digits"):
            parse_toml(text, "t")

    @pytest.mark.parametrize("text", ["a = " + "[" * 60 + "]" * 60, "a." * 60 + "b = 1", "a." * 3000 + "b = 1"])
    def test_deep_toml_is_refused(self, text: str) -> None:
        with pytest.raises(SimnetError, match="t: nested deeper than 50 levels; write fewer levels"):
            parse_toml(text, "t")

    @pytest.mark.parametrize("depth", [52, 300, 100_000])
    def test_deep_json_is_refused(self, depth: int) -> None:
        with pytest.raises(SimnetError, match="t: nested deeper than 50 levels; write fewer levels"):
            parse_json(b"[" * depth + b"]" * depth, "t")


class TestWriting:
    def test_a_file_that_is_replaced_keeps_its_mode(self, tmp_path: Path) -> None:
        path = tmp_path / "secret"
        path.write_text("old")
        path.chmod(0o600)
        files.write_file(path, b"new")
        assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)

    def test_a_new_file_has_the_mode_of_the_umask(self, tmp_path: Path) -> None:
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
        with pytest.raises(SimnetError, match=r"a: cannot be written \(No space left on device\)"):
            files.write_file(tmp_path / "a", b"new")
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "old")]

    @pytest.mark.parametrize("name", ["page.md", "figures/a.png"])
    def test_no_link_leads_out_of_the_folder_that_was_named(self, tmp_path: Path, name: str) -> None:
        out, other = tmp_path / "out", tmp_path / "other"
        out.mkdir()
        other.mkdir()
        (other / "page.md").write_text("mine")
        (out / "page.md").symlink_to(other / "page.md")
        (out / "figures").symlink_to(other)
        with pytest.raises(SimnetError, match=r"a link leads out of .*out'; remove the link, or name another"):
            files.write_file(out / name, b"new", inside=out)
        assert [(path.name, path.read_text()) for path in other.iterdir()] == [("page.md", "mine")]

    def test_a_link_within_the_folder_is_followed(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "a")
        files.write_file(tmp_path / "link", b"new", inside=tmp_path)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "a").read_bytes() == b"new"

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
            with pytest.raises(SimnetError, match=r"is an input .*; name another file"):
                files.write_file(places.get(kind, tmp_path / kind), b"new")
        assert source.read_text() == "a = 1"
