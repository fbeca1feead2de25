"""What reaches a terminal: nothing that steers it, one line of a refusal, tables for people or pipes, a bar."""

import ast
import io
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from simnet.cli import output
from simnet.core.errors import did_you_mean
from simnet.report.progress_bar import progress
from simnet.report.table import Page, Table
from tests.helpers.cli import ROOT, run
from tests.helpers.scenario_samples import pod, write

STEERING = "\x1b]0;title\x07\x9b31m\u202e\x08\x08\r\x85\u2028"


def printers(path: Path) -> Iterator[str]:
    """Yield the places of a file that print past `simnet.cli.output`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        streams = ("sys.stdout", "sys.stderr", "sys.__std")
        if name in {"print", "click.echo", "click.secho", "click.progressbar", "os.write"} or name.startswith(streams):
            yield f"{path.relative_to(ROOT)}:{node.lineno}: {name}"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_one_module_prints() -> None:
    found = [place for path in sorted((ROOT / "simnet").rglob("*.py")) for place in printers(path)]
    assert {place.split(":")[0] for place in found} == {
        "simnet/cli/output.py",
        "simnet/report/progress_bar.py",  # whether a bar is seen
    }, found


def test_what_steers_a_terminal_is_replaced_and_plain_text_stays() -> None:
    for steering in STEERING:
        lines = output.harmless(f"a{steering}b\nc").split("\n")
        assert lines[-1] == "c"
        assert all(line.isprintable() for line in lines)
        drawn = output.coloured(f"\x1b[1mhead\x1b[0m\na{steering}\x1b[2Jb")
        assert drawn.startswith("\x1b[1mhead\x1b[0m\na"), "a drawn table keeps its colours"
        assert drawn.removeprefix("\x1b[1mhead\x1b[0m\n").isprintable()
    text = "µs, Zürich, 表 and\n  an indent\n"
    assert output.harmless(text) == text


@pytest.mark.parametrize("text", ["a\nb\x1b[2J", "9" * 100_000, "word " * 20_000, f"x: {'[' * 600}: too deep; fix it"])
def test_a_refusal_is_one_line_of_at_most_500_characters(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.refuse(f"a.toml: {text}: the rule; the repair")
    line = capsys.readouterr().err
    assert line.startswith("simnet: a.toml: ")
    assert line.endswith(": the rule; the repair\n")
    assert len(line) <= output.LINE + 1
    assert line[:-1].isprintable()


@pytest.mark.parametrize(
    "line",
    [
        "simulate {file} --set cluster.{bad}=1", "simulate {file} --set strategy={bad}", "simulate {file} --{bad}",
        "simulate {file} --format {bad}", "simulate no/{bad}.toml", "{bad}", "simulate {named}", "show {named}",
        "check {named} {bad}", "calibrate {named} {bad}", "validate {named} {bad}", "validate --published --set {bad}",
        "plot {bad} -o x", "list {bad}", "race {file} {bad}", "advise {file} --systems {bad}",
        "crossover {file} --over {bad} --from 1 --to {bad}",
    ],
)  # fmt: skip
def test_no_command_prints_what_steers_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.chdir(tmp_path)
    bad = f"a{STEERING}b"
    named = pod(cluster__name=bad, workload__name=bad, cluster__gpu=bad, question=bad)
    file, odd = write(tmp_path / "pod.toml", pod()), write(tmp_path / f"{bad}.toml", named)
    result = run(*(word.format(file=file, bad=bad, named=odd) for word in line.split()))
    assert result.exit_code in {0, 2}, result.exception
    assert all(text.isprintable() for text in result.output.split("\n")), result.output


def test_what_is_shown_as_toml_says_the_same_without_steering_and_leaves_null_out(tmp_path: Path) -> None:
    name = f"{STEERING}\U000e0001 Zürich"
    text = run("show", write(tmp_path / "pod.toml", pod(cluster__name=name))).stdout
    assert "?" not in text.partition("[cluster]")[2]
    assert tomllib.loads(text)["cluster"]["name"] == name
    (tmp_path / "pod.json").write_text(json.dumps(pod(cluster__name="pod", baseline=None, question="a")))
    assert "baseline" not in tomllib.loads(run("show", tmp_path / "pod.json").stdout)


@pytest.mark.parametrize("name", ["horovod", "DGC", "tensor-parallel"])
def test_what_is_not_modelled_yet_is_told_apart_from_a_misspelling(name: str) -> None:
    text = "Not modelled yet, but simnet record takes the collectives of your own script."
    assert did_you_mean(name, ["qsgd", "zeros", "all_reduce"]) == f" {text} Known: all_reduce, qsgd, zeros."
    assert did_you_mean("asdx", ["qsgd"]) == " Known: qsgd.", "half another name is no misspelling of it"
    assert did_you_mean("qsdg", ["qsgd"]) == " Did you mean 'qsgd'?"


@pytest.mark.parametrize(
    ("is_terminal", "environment", "drawn"),
    [
        (False, {}, False),
        (True, {}, True),
        (True, {"TERM": "dumb"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": ""}, False),
        (True, {"NO_COLOR": "1"}, True),
    ],
)
def test_tables_are_drawn_for_people_and_plain_for_pipes(
    is_terminal: bool,
    environment: dict[str, str],
    drawn: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm"} | environment).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    output.say(Page(["", "All \x1b]0;x\x07 systems:", Table(["system", "verdict"], [("BinSGDM", "pays")])]))
    first, *lines = capsys.readouterr().out.splitlines(keepends=True)
    printed = "".join(lines)
    assert first.rstrip() == "All ?]0;x? systems:"
    assert (printed == "system   verdict\nBinSGDM  pays\n") != drawn
    assert ("\x1b[32m" in printed) == (drawn and "NO_COLOR" not in environment)


def test_a_terminal_sees_how_far_it_is_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = io.StringIO()
    monkeypatch.setattr(seen, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", seen)
    with progress(4, "simulating") as advance:
        for _ in range(4):
            advance(1)
            sys.stdout.write("a result\n")
    assert "simulating" in seen.getvalue()
    assert "4/4" in seen.getvalue()
    assert capsys.readouterr().out == "a result\n" * 4
