"""Shipped parts and files."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simnet import files
from simnet.errors import SimnetError


def test_every_shipped_part_can_be_read_by_its_name() -> None:
    for kind in files.KINDS:
        for name in files.names(kind):
            assert files.read(kind, name)


def test_names_are_sorted_stems_of_files() -> None:
    names = files.names("gradients")
    assert list(names) == sorted(names)
    assert files.locate("gradients", names[0]).name == f"{names[0]}.json"


def test_parts_are_found_from_any_directory(tmp_path: Path) -> None:
    code = "from simnet import files; print(*files.names('gradients'))"
    package = str(Path(files.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": package},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == list(files.names("gradients"))


def test_an_installed_package_carries_its_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "simnet" / "_scenarios" / "clusters"
    data.mkdir(parents=True)
    (data / "mine.toml").write_text("num_nodes = 1\n")
    monkeypatch.setattr(files, "__file__", str(tmp_path / "simnet" / "files.py"))
    files.root.cache_clear()
    try:
        assert files.names("clusters") == ("mine",)
        assert files.label(data / "mine.toml") == "clusters/mine.toml"
    finally:
        files.root.cache_clear()


def test_an_unknown_kind_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SimnetError, match=r"'cluster': unknown kind of part. Did you mean 'clusters'?"):
        files.names("cluster")


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(SimnetError, match=r"'bert_bas': unknown gradients. Did you mean 'bert_base'?"):
        files.read("gradients", "bert_bas")


def test_gradients_that_are_not_there_name_the_key() -> None:
    with pytest.raises(SimnetError, match=r"workload.gradients: './no.json': no such file"):
        files.gradients_path("./no.json")


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimnetError, match=r"no.toml': no such file; give the path of a .toml file"):
        files.read("clusters", str(tmp_path / "no.toml"))


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


def test_a_folder_that_must_not_be_searched_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: Path) -> None:  # root, who runs some test machines, may search any folder
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "stat", refused)
    with pytest.raises(SimnetError, match=r"'./a.toml': cannot be read: Permission denied"):
        files.locate("clusters", "./a.toml", tmp_path)


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
        ("a.toml", b"\xff\xfe", "not TOML: 'utf-8' codec"),
        ("a.json", b"{", "not JSON: Expecting"),
        ("a.json", b"[1]", "list: must hold one object with keys"),
        ("a.json", b"[" * 100_000, "not JSON: maximum recursion"),
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


def test_a_json_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"cluster": {}}))
    assert files.read_file(path) == {"cluster": {}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"a": 1, "b": {"c": 1, "c": 2}}',
            "t.json: not JSON: the key 'c' comes twice in one object; drop one",
        ),
        ('{"a": "half \\ud800"}', "t.json: not JSON: .*is half of a character; write it whole"),
    ],
)
def test_json_is_read_as_strictly_as_toml(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text, encoding="utf-8")
    with pytest.raises(SimnetError, match=said):
        files.read_file(tmp_path / "t.json")


def test_a_missing_file_of_trainings_is_asked_for_by_its_ending() -> None:
    with pytest.raises(SimnetError, match=r"'no.json': no such file; give the path of a .json file, or one name of"):
        files.locate("convergence", "no.json")
