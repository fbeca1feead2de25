"""The outputs that docs/how-to/advise.md shows are what the commands print."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from simnet.commands.main import cli

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-to" / "advise.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```console\n\$ (simnet advise .*?)\n```\n\n```text\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=["slow network", "fast network"])
def test_an_example_is_what_the_command_prints(command: str, shown: str) -> None:
    done = CliRunner().invoke(cli, shlex.split(command)[1:])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == shown, f"put the output of this command into the page again: {command}"


def test_one_example_pays_and_the_other_does_not() -> None:
    first, second = (shown for _, shown in EXAMPLES)
    assert re.search(r"^\S+ pays: ", first, flags=re.MULTILINE)
    assert "\nNone pays: " in second


def test_its_links_lead_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)", PAGE) if not target.startswith("http")]
    assert targets
    assert all((ROOT / "docs" / "how-to" / target).exists() for target in targets)
