"""Run the command line: in this process, or as a shell does."""

import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from simnet.cli.main import cli

ROOT = Path(__file__).parents[2]
BANDWIDTH = "cluster.inter_node.bandwidth"


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], prog_name="simnet")


def run_in_shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which `simnet` is this checkout's."""
    whole = f'set -o pipefail; simnet() {{ "{sys.executable}" "{ROOT / "cli.py"}" "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", whole], cwd=cwd, capture_output=True, text=True, check=False)


def assert_refused(result: Result, message: str) -> None:
    """Check for one line on stderr and exit code 2."""
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.startswith("simnet: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
