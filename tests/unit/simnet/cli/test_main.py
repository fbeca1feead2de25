"""The command as a whole: help in groups, former names, exit codes, closed and full outputs, signals, imports."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from docs import commands
from simnet.analysis import tune
from simnet.cli import main, output
from simnet.cli.main import FORMER, GROUPS, cli
from simnet.core import files
from tests.helpers.chakra_traces import GOLDEN
from tests.helpers.cli import BANDWIDTH, ROOT, run, run_in_shell
from tests.helpers.scenario_samples import pod

MOST_COMMANDS, MOST_OPTIONS = 12, 8
EVERY = dict(commands.commands(cli, "simnet"))
"""Every command, subcommand and mode by the words that call it."""
CARD = ROOT / "tests" / "golden" / "card_cpu"
ENDS = "--from '1 Gbit/s' --to '400 Gbit/s' --draws 0"
TRAINED = "--same-task --at '10 Gbit/s' --draws 0"
FULL = "simnet: standard output: cannot be used (No space left on device)\n"


def block(page: str, title: str) -> list[str]:
    """Return the first words of the lines of a block of a help page."""
    inside = page.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  (-[\w-]+(?:, -[\w-]+)*|[a-z]\S*)", inside, re.MULTILINE)


class TestHelp:
    def test_at_most_twelve_commands_are_visible_each_in_a_group_and_three_lines_say_where_to_start(self) -> None:
        page = run("--help").stdout
        shown = [name for title in GROUPS for name in block(page, title)]
        assert shown == [name for group in GROUPS.values() for name in group]
        assert len(shown) <= MOST_COMMANDS
        assert not any(re.search(rf"^  {name}\b", page, re.MULTILINE) for name in FORMER)
        top = page.partition("\nAsk:")[0]
        assert re.findall(r"^    simnet (\w+) mine.toml", top, re.MULTILINE) == ["init", "advise", "report"]

    def test_the_whole_list_has_each_former_name(self) -> None:
        page = run("--help-all").stdout
        assert block(page, "Former names") == list(FORMER)

    @pytest.mark.parametrize("path", EVERY)
    def test_help_shows_at_most_eight_options_and_help_all_every_parameter(self, path: str) -> None:
        page = run(*path.split()[1:], "--help").stdout
        assert page.startswith(f"Usage: {path} ")
        assert len(block(page, "Options")) <= MOST_OPTIONS
        assert "Options needed rarely" not in page
        page = run(*path.split()[1:], "--help-all").stdout
        for param in EVERY[path].params:
            if isinstance(param, click.Option):
                assert re.search(rf"^  (-\w, )?{param.opts[-1]}\b|, {param.opts[-1]}\b", page, re.MULTILINE), param.opts
            else:
                assert param.make_metavar(click.Context(EVERY[path])) in page.partition("\n")[0]

    def test_common_options_stand_apart_and_a_rare_one_is_read(self, tmp_path: Path) -> None:
        page = run("sweep", "--help").stdout
        assert block(page, "Common")[:5] == ["--set", "--format", "-o, --output", "--draws", "--jobs"]
        assert "--help-all" not in page
        assert "--help-all" in block(run("init", "--help").stdout, "Common")
        assert run("init", tmp_path / "mine.toml", "--yes", "--inside", "123 Gbit/s").exit_code == 0
        assert '"123 Gbit/s"' in (tmp_path / "mine.toml").read_text()


def pairs() -> Iterator[tuple[str, str]]:
    """Yield two lines each that do the same: by a former name, and by a visible command."""
    for name in ("time-to-target", "race"):
        line = f"bert_base_10gbit characters {TRAINED}"
        yield f"{name} {line}", f"advise bert_base_10gbit --time-to-target characters {TRAINED}"
    yield f"crossover FILE --over {BANDWIDTH} {ENDS}", f"sweep FILE --break-even {BANDWIDTH} {ENDS}"
    yield f"crossover FILE --over={BANDWIDTH} {ENDS}", f"sweep --break-even={BANDWIDTH} FILE {ENDS}"
    yield "plot RESULTS -o OUT --figure heat_map", "report RESULTS --figures OUT --figure heat_map"
    yield f"card {CARD} --accept-cpu --draws 20 -o OUT", f"measure gpu --card {CARD} --accept-cpu --draws 20 -o OUT"
    trace, world = GOLDEN / "data_parallel.0.et", "--nodes 1 --ranks-per-node 2"
    yield f"step import {trace} {world} -o OUT.json", f"record --from {trace} {world} -o OUT.json"
    yield f"step export {GOLDEN}/step.json --chakra OUT", f"record --chakra OUT {GOLDEN}/step.json"
    yield "list", "show"
    yield "list clusters", "show clusters"
    yield "check FILE nonesuch", "show --check FILE nonesuch"
    yield "completion bash", "doctor --completion=bash"
    yield "explore nonesuch --static OUT.html", "report nonesuch --static OUT.html"


class TestFormerNames:
    @pytest.mark.slow
    @pytest.mark.parametrize(("former", "now"), list(pairs()))
    def test_a_former_name_and_a_visible_command_do_the_same(
        self, former: str, now: str, file: str, tmp_path: Path
    ) -> None:
        results = tmp_path / "results"
        if "RESULTS" in former:
            run("sweep", file, "-o", str(results), "--draws", "0")
        found = []
        for folder, line in ((tmp_path / "former", former), (tmp_path / "now", now)):
            folder.mkdir()
            given = {"FILE": file, "RESULTS": str(results), "OUT": str(folder / "out")}
            words = [re.sub("|".join(given), lambda match: given[match[0]], word) for word in shlex.split(line)]  # noqa: B023
            done = run(*words)
            written = [path.relative_to(folder) for path in sorted(folder.rglob("*"))]
            said = [text.replace(str(folder), "") for text in (done.stdout, done.stderr)]
            found.append((done.exit_code, written, said))
        assert found[0] == found[1]
        assert found[0][0] == (2 if "nonesuch" in former else 0), found[0]
        assert found[0][1] or "OUT" not in former or found[0][0]

    def test_every_former_name_is_tried_and_has_help(self) -> None:
        assert {former.partition(" ")[0] for former, _ in pairs()} == {*FORMER}
        for name in FORMER:
            assert run(name, "--help").stdout.startswith(f"Usage: simnet {name} ")


class TestProcess:
    def test_the_module_runs_like_the_command_and_tells_its_version(self) -> None:
        told = run("--version").stdout
        assert re.fullmatch(r"simnet \d+\.\d+\.\d+(rc\d+)?( \(commit [0-9a-f]{12}(-dirty)?\))?\n", told)
        words = [sys.executable, "-m", "simnet", "--version"]
        assert subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout == told

    def test_a_closed_pipe_ends_quietly(self, file: str, tmp_path: Path) -> None:
        ran = run_in_shell(f"simnet show gradients/bert_base | head -n 1; simnet simulate {file} 2>&- | true", tmp_path)
        assert ran.stdout == "# workloads/gradients/bert_base.json\n"
        assert ran.stderr == ""

    @pytest.mark.slow
    @pytest.mark.parametrize("command", ["list", "advise {file} --systems BinSGDM"])
    def test_a_standard_output_that_is_closed_is_no_traceback(self, file: str, tmp_path: Path, command: str) -> None:
        assert "Traceback" not in run_in_shell(f"simnet {command.format(file=file)} >&-", tmp_path).stderr

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("simnet list > /dev/full", FULL),
            ("simnet --help > /dev/full", FULL),
            ("simnet simulate {file} > /dev/full", FULL),
            ("simnet simulate {file} -o /dev/full",
             "simnet: /dev/full: cannot be written (No space left on device); name another with -o\n"),
            ("mkdir gone; cd gone; rmdir ../gone; simnet simulate {file} -o x",
             "simnet: x: cannot be written (No such file or directory); name another with -o\n"),
            ("simnet simulate half.json --format csv -o result",
             "simnet: half.json: not JSON: '\\udcff': half a character; write it whole, or drop it\n"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_written_or_read_is_told_in_a_line(
        self, file: str, tmp_path: Path, line: str, told: str
    ) -> None:
        (tmp_path / "half.json").write_text(json.dumps(pod(workload__name="\udcff")))
        ran = run_in_shell(line.format(file=file), tmp_path)
        assert (ran.returncode, ran.stderr) == (2, told)

    @pytest.mark.slow
    @pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
    def test_messages_that_nobody_can_read_change_nothing(self, file: str, tmp_path: Path, redirection: str) -> None:
        ran = run_in_shell(f"simnet sweep {file} --draws 0 --format csv {redirection}", tmp_path)
        assert (ran.returncode, ran.stdout.count("\n")) == (0, 7)
        assert run_in_shell(f"simnet simulate nonesuch {redirection}", tmp_path).returncode == 2

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
             "simnet: Too many open files: raise the limit with ulimit -n, or use fewer --jobs"),
            (UnicodeEncodeError("ascii", "\xfc", 0, 1, "ordinal not in range(128)"),
             "simnet: '\xfc': cannot be written in ascii; drop it, or set PYTHONUTF8=1"),
        ],
        ids=["files", "letters"],
    )  # fmt: skip
    def test_what_the_system_refuses_is_told_in_a_line(
        self, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[str] = []
        monkeypatch.setattr(files, "names", raiser(error))
        monkeypatch.setattr(output, "tell", told.append)
        monkeypatch.setattr(main, "silence", lambda _: None)
        with pytest.raises(SystemExit) as ended:
            main.main(["list"])
        assert ended.value.code == 2
        assert told == [said]

    def test_an_interrupt_exits_130_with_one_sentence_also_before_a_command_starts(
        self, file: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tune, "simulate", raiser(KeyboardInterrupt()))
        result = run("simulate", file)
        assert (result.exit_code, result.stderr) == (130, "simnet: interrupted; nothing was written\n")
        told: list[str] = []
        monkeypatch.setattr(cli, "make_context", raiser(KeyboardInterrupt()))
        monkeypatch.setattr(main, "tell", told.append)
        with pytest.raises(SystemExit) as ended:
            main.main(["list"])
        assert ended.value.code == 130
        assert told == ["simnet: interrupted; nothing was written"]


def raiser(error: BaseException):
    def refuse(*_: object, **__: object) -> None:
        raise error

    return refuse
