"""Completion in a shell: what is offered, and that a real bash offers it."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete, ShellComplete

from simnet.cli.doctor import NAME, VARIABLE
from simnet.cli.main import COMMANDS, cli
from simnet.core import files
from simnet.core.errors import SimnetError
from simnet.engine.scenario import load
from tests.helpers.cli import ROOT, assert_refused, run
from tests.helpers.needs import needs


def offered(*words: str) -> list[str]:
    """Return what is offered for the last of some words."""
    *before, typed = words
    return [item.value for item in ShellComplete(cli, {}, NAME, VARIABLE).get_completions(before, typed)]


def test_commands_and_options_are_completed() -> None:
    assert offered("sw") == ["sweep"]
    assert set(offered("")) == set(COMMANDS)
    assert offered("simulate", "x", "--dr") == ["--draws"]
    assert offered("simulate", "x", "--format", "") == ["table", "json", "csv"]
    assert offered("init", "--acc") == ["--accumulation"]  # which --help leaves out


def test_a_mode_is_completed_and_then_its_options() -> None:
    assert offered("sweep", "x", "--br") == ["--break-even"]
    assert offered("sweep", "x", "--break-even", "cluster.num") == ["cluster.num_nodes"]
    assert offered("sweep", "x", "--break-even", "cluster.num_nodes", "--t") == ["--to", "--tolerance"]
    assert "characters" in offered("advise", "bert_base_10gbit", "--time-to-target", "cha")
    assert offered("report", "x", "--live", "--po") == ["--port"]


@pytest.mark.parametrize("command", ["simulate", "sweep", "advise", "crossover", "explore", "report", "time-to-target"])
def test_a_scenario_is_completed_by_the_shipped_names_and_files(command: str) -> None:
    assert offered(command, "bert_b") == ["bert_b", *(n for n in files.names("experiments") if n.startswith("bert_b"))]
    given = ShellComplete(cli, {}, NAME, VARIABLE).get_completions([command], "./mi")
    assert [(item.value, item.type) for item in given] == [("./mi", "file")]


def test_parts_are_completed_by_their_kind() -> None:
    assert "a100_tcp_estimate" in offered("show", "a100")
    assert offered("show", "calib") == ["calib", "calibrations"]
    assert "bert_base" in offered("init", "--workload", "bert")
    assert "hsdp" in offered("init", "--strategy", "h")
    assert "A100-80GB" in offered("init", "--gpu", "A100")
    assert "characters" in offered("time-to-target", "bert_base_10gbit", "cha")


def test_keys_of_a_scenario_are_completed() -> None:
    assert offered("simulate", "x", "--set", "cluster.inter_node.") == [
        "cluster.inter_node.bandwidth",
        "cluster.inter_node.latency",
    ]
    assert "run.grad_accumulation" in offered("sweep", "x", "--set", "run.")
    assert offered("crossover", "x", "--over", "cluster.num") == ["cluster.num_nodes"]
    assert not any(key.endswith((".source", ".title")) for key in offered("simulate", "x", "--set", ""))


def test_every_offered_key_is_one_of_a_scenario() -> None:
    for key in [*offered("simulate", "x", "--set", ""), "cluster.nodes"]:
        refusal = refusal_of({key: "what no key takes"})
        assert ("unknown key" in refusal) == (key == "cluster.nodes"), refusal


def refusal_of(settings: dict[str, object]) -> str:
    try:
        load("bert_base_10gbit", settings)
    except SimnetError as error:
        return str(error)
    return ""


def test_a_real_bash_completes_by_the_printed_script(tmp_path: Path) -> None:
    needs("bash")
    bash = shutil.which("bash")
    assert bash is not None
    program = tmp_path / "simnet"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(ROOT / "cli.py"))} "$@"\n')
    program.chmod(0o755)
    script = run("doctor", "--completion", "bash").stdout
    ask = 'COMP_WORDS=(simnet simulate bert_base_1) COMP_CWORD=2; _simnet_completion simnet; echo "${COMPREPLY[@]}"'
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [bash, "-c", f"compopt() {{ :; }}\n{script}\n{ask}"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "bert_base_10gbit" in done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    ("shell", "sign"), [("bash", "complete -o nosort"), ("zsh", "#compdef simnet"), ("fish", "complete ")]
)
def test_the_script_is_clicks_own(shell: str, sign: str) -> None:
    printed = run("doctor", "--completion", shell)
    assert printed.exit_code == 0
    assert sign in printed.stdout
    assert VARIABLE in printed.stdout
    if shell == "bash":
        assert printed.stdout.rstrip() == BashComplete(cli, {}, NAME, VARIABLE).source().rstrip()


def test_an_unknown_shell_is_refused() -> None:
    assert_refused(run("doctor", "--completion", "tcsh"), "'tcsh' is not one of 'bash', 'zsh', 'fish'")
