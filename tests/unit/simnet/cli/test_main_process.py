"""The command as a process: exit codes, closed and full outputs, signals, and what is imported."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simnet.cli import main as commands
from simnet.cli import terminal
from simnet.cli.main import COMMANDS, cli
from simnet.core import files
from tests.helpers.cli import ROOT, run, run_in_shell
from tests.helpers.scenario_samples import pod

FULL = "simnet: standard output: cannot be used (No space left on device)\n"


def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(tmp_path: Path) -> None:
    ran = run_in_shell("simnet simulate nonesuch", tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("simnet: 'nonesuch': unknown experiment.")
    assert ran.stderr.count("\n") == 1


def test_the_module_runs_like_the_command() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "simnet", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout == run("--version").stdout


def test_a_closed_pipe_ends_quietly(file: str, tmp_path: Path) -> None:
    ran = run_in_shell(f"simnet show gradients/bert_base | head -n 1; simnet simulate {file} 2>&- | true", tmp_path)
    assert ran.stdout == "# workloads/gradients/bert_base.json\n"
    assert ran.stderr == ""


@pytest.mark.parametrize("command", ["simulate {file}", "list", "advise {file} --systems BinSGDM"])
def test_a_standard_output_that_is_closed_is_no_traceback(file: str, tmp_path: Path, command: str) -> None:
    assert "Traceback" not in run_in_shell(f"simnet {command.format(file=file)} >&-", tmp_path).stderr


def test_a_full_device_is_told_in_a_line(file: str, tmp_path: Path) -> None:
    ran = run_in_shell(f"simnet simulate {file} -o /dev/full", tmp_path)
    message = "simnet: /dev/full: cannot be written (No space left on device); name another with -o\n"
    assert (ran.returncode, ran.stderr) == (2, message)


@pytest.mark.parametrize(
    "command", ["list", "show overlap", "check bert_base_10gbit", "--version", "--help", "simulate {file}"]
)
def test_a_full_standard_output_is_told_in_a_line(file: str, tmp_path: Path, command: str) -> None:
    ran = run_in_shell(f"simnet {command.format(file=file)} > /dev/full", tmp_path)
    assert (ran.returncode, ran.stderr) == (2, FULL)


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_messages_that_nobody_can_read_change_nothing(file: str, tmp_path: Path, redirection: str) -> None:
    ran = run_in_shell(f"simnet sweep {file} --format csv {redirection}", tmp_path)
    assert (ran.returncode, ran.stdout.count("\n")) == (0, 7)
    assert run_in_shell(f"simnet simulate nonesuch {redirection}", tmp_path).returncode == 2


def test_a_working_directory_that_is_gone_is_told_in_a_line(file: str, tmp_path: Path) -> None:
    ran = run_in_shell(f"mkdir gone; cd gone; rmdir ../gone; simnet simulate {file} -o x", tmp_path)
    message = "simnet: x: cannot be written (No such file or directory); name another with -o\n"
    assert (ran.returncode, ran.stderr) == (2, message)


def test_help_is_there_without_docstrings() -> None:
    code = "from click.testing import CliRunner; from simnet.cli.main import COMMANDS, cli"
    loop = "[print(CliRunner().invoke(cli, [*c, '--help'], prog_name='simnet').stdout) for c in C]"
    ran = subprocess.run(
        [sys.executable, "-OO", "-c", f"{code}; C = [[], *([name] for name in COMMANDS)]; {loop}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == "".join(run(*command, "--help").stdout + "\n" for command in ((), *zip(COMMANDS)))


def test_half_of_a_character_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "pod.json").write_text(json.dumps(pod(workload__name="\udcff")))
    ran = run_in_shell("simnet simulate pod.json --format csv -o result", tmp_path)
    message = "simnet: pod.json: not JSON: '\\udcff': half a character; write it whole, or drop it\n"
    assert (ran.returncode, ran.stderr) == (2, message)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
            "simnet: Too many open files: raise the limit with ulimit -n, or use fewer --jobs",
        ),
        (
            UnicodeEncodeError("ascii", "\xfc", 0, 1, "ordinal not in range(128)"),
            "simnet: '\xfc': cannot be written in ascii; drop it, or set PYTHONUTF8=1",
        ),
    ],
    ids=["files", "letters"],
)
def test_what_the_system_refuses_is_told_in_a_line(
    error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise error

    told: list[str] = []
    monkeypatch.setattr(files, "names", refused)
    monkeypatch.setattr(terminal, "tell", told.append)
    monkeypatch.setattr(commands, "silence", lambda _: None)
    with pytest.raises(SystemExit) as ended:
        commands.main(["list"])
    assert ended.value.code == 2
    assert told == [said]


def test_an_interrupt_before_a_command_starts_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    told: list[str] = []
    monkeypatch.setattr(cli, "make_context", interrupted)
    monkeypatch.setattr(commands, "tell", told.append)
    with pytest.raises(SystemExit) as ended:
        commands.main(["list"])
    assert ended.value.code == 130
    assert told == ["simnet: interrupted; nothing was written"]


def test_simulating_imports_nothing_heavy(file: str) -> None:
    heavy = "{'torch', 'pandas', 'matplotlib', 'numpy', 'rich'}"
    called = "import sys; from simnet.cli.main import cli; cli(sys.argv[1:], standalone_mode=False)"
    code = f"{called}; print(sorted({heavy} & set(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", code, "simulate", file], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == "[]"
