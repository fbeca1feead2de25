"""What docs/how-to/time-to-target.md shows is what the command takes and prints."""

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from simnet.commands.main import cli
from simnet.compare.convergence import load

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "time-to-target.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_file_that_is_shown_holds_together(tmp_path):
    (text,) = blocks("json")
    path = tmp_path / "trainings.json"
    path.write_text(text)
    assert load(str(path)).rank_counts == (32,)


def test_the_output_is_what_the_command_prints():
    (command,), (shown,) = blocks("console"), blocks("text")
    done = CliRunner().invoke(cli, shlex.split(command.removeprefix("$ "))[1:])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == shown, f"put the output of this command into the page again: {command}"
