"""What help shows: twelve commands in groups, eight options of each, all of both on demand; former names still work."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from docs import commands
from simnet.cli import options
from simnet.cli.main import DEVELOPMENT, FORMER, GROUPS, cli
from tests.helpers.chakra_traces import GOLDEN
from tests.helpers.cli import BANDWIDTH, ROOT, assert_refused, run
from tests.helpers.needs import needs

MOST_COMMANDS, MOST_OPTIONS = 12, 8
EVERY = dict(commands.commands(cli, "simnet"))
"""Every command, subcommand and mode by the words that call it."""
CARD = ROOT / "tests" / "golden" / "card_cpu"
ENDS = "--from '1 Gbit/s' --to '400 Gbit/s' --draws 0"
TRAINED = "--same-task --at '10 Gbit/s' --draws 0"


def block(page: str, title: str) -> list[str]:
    """Return the first words of the lines of a block of a help page."""
    inside = page.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
    return re.findall(r"^  (-[\w-]+(?:, -[\w-]+)*|[a-z]\S*)", inside, re.MULTILINE)


def own_options(page: str) -> list[str]:
    return block(page, "Options")


def test_at_most_twelve_commands_are_visible_each_in_a_group() -> None:
    page = run("--help").stdout
    shown = [name for title in GROUPS for name in block(page, title)]
    assert shown == [name for group in GROUPS.values() for name in group]
    assert len(shown) <= MOST_COMMANDS
    assert not any(re.search(rf"^  {name}\b", page, re.MULTILINE) for name in [*FORMER, *DEVELOPMENT])


def test_three_lines_on_top_say_where_to_start() -> None:
    top = run("--help").stdout.partition("\nAsk:")[0]
    assert re.findall(r"^    simnet (\w+) mine.toml", top, re.MULTILINE) == ["init", "advise", "report"]


def test_the_whole_list_has_the_lab_and_what_each_former_name_is_now() -> None:
    page = run("--help-all").stdout
    assert block(page, "Development") == ["lab"]
    assert block(page, "Former names") == list(FORMER)


@pytest.mark.parametrize("path", EVERY)
def test_help_shows_at_most_eight_options_of_a_command(path: str) -> None:
    page = run(*path.split()[1:], "--help").stdout
    assert page.startswith(f"Usage: {path} ")
    assert len(own_options(page)) <= MOST_OPTIONS
    assert "Options needed rarely" not in page


@pytest.mark.parametrize("path", EVERY)
def test_help_all_shows_every_parameter(path: str) -> None:
    page = run(*path.split()[1:], "--help-all").stdout
    for param in EVERY[path].params:
        if isinstance(param, click.Option):
            assert re.search(rf"^  (-\w, )?{param.opts[-1]}\b|, {param.opts[-1]}\b", page, re.MULTILINE), param.opts
        else:
            assert param.make_metavar(click.Context(EVERY[path])) in page.partition("\n")[0]


def test_a_ninth_option_is_seen() -> None:
    made = options.Command("made", params=[click.Option([f"--of-{letter}"]) for letter in "abcdefghi"])
    page = made.get_help(click.Context(made))
    assert len(own_options(page)) == MOST_OPTIONS + 1
    made.params[0] = options.Rare(["--of-a"])
    assert "--of-a" not in made.get_help(click.Context(made))


def test_common_options_stand_apart() -> None:
    page = run("sweep", "--help").stdout
    assert block(page, "Common")[:5] == ["--set", "--format", "-o, --output", "--draws", "--jobs"]
    assert "--help-all" not in page
    assert "--help-all" in block(run("init", "--help").stdout, "Common")


def test_a_rare_option_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    assert run("init", file, "--yes", "--inside", "123 Gbit/s").exit_code == 0
    assert '"123 Gbit/s"' in file.read_text()


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
    yield "completion bash", "doctor --completion bash"
    yield "completion bash", "doctor --completion=bash"
    yield "explore FILE --static OUT.html --port 1", "report FILE --static OUT.html --port 1"


def filled(line: str, given: dict[str, str]) -> list[str]:
    """Return the words of a line with what stands for the names in capitals."""
    return [re.sub("|".join(given), lambda match: given[match[0]], word) for word in shlex.split(line)]


@pytest.mark.parametrize(("former", "now"), list(pairs()))
def test_a_former_name_and_a_visible_command_do_the_same(former: str, now: str, file: str, tmp_path: Path) -> None:
    results = tmp_path / "results"
    if "RESULTS" in former:
        run("sweep", file, "-o", str(results), "--draws", "0")
    found = []
    for folder, line in ((tmp_path / "former", former), (tmp_path / "now", now)):
        folder.mkdir()
        given = {"FILE": file, "RESULTS": str(results), "OUT": str(folder / "out")}
        done = run(*filled(line, given))
        written = [path.relative_to(folder) for path in sorted(folder.rglob("*"))]
        said = [text.replace(str(folder), "") for text in (done.stdout, done.stderr)]
        found.append((done.exit_code, written, said))
    assert found[0] == found[1]
    assert found[0][0] == (2 if "nonesuch" in former or "--port" in former else 0), found[0]
    assert found[0][1] or "OUT" not in former or found[0][0]


def test_every_former_name_is_tried() -> None:
    assert {former.partition(" ")[0] for former, _ in pairs()} == {*FORMER}


@pytest.mark.parametrize("name", FORMER)
def test_a_former_name_has_help(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: simnet {name} ")


@pytest.mark.slow
def test_the_page_of_knobs_is_written_by_both_names(file: str, tmp_path: Path) -> None:
    needs("plotly")
    for number, words in enumerate((["explore"], ["report"])):
        out = tmp_path / f"page{number}.html"
        assert run(*words, file, "--static", str(out)).exit_code == 0
        assert out.stat().st_size > 1_000_000


def test_of_two_modes_one_is_refused(file: str, tmp_path: Path) -> None:
    refused = run("report", file, "--live", "--static", str(tmp_path / "page.html"))
    assert_refused(refused, "--live: has no effect with --static; drop one of the two. See: simnet report --help")


def test_a_mode_reads_its_own_options_alone(file: str) -> None:
    assert_refused(run("sweep", file, "--break-even", BANDWIDTH, "--strict"), "See: simnet sweep --break-even --help")
    assert_refused(run("sweep", file, "--tolerance", "1e-3"), "--tolerance")
    assert_refused(run("advise", file, "--time-to-target"), "Option '--time-to-target' requires an argument")
    assert_refused(run("time-to-target", file), "Missing argument 'CURVES...'. See: simnet time-to-target --help")


def test_words_of_a_recorded_program_are_no_modes(tmp_path: Path) -> None:
    for words in (["no.py", "--from", "x"], ["--", "no.py", "--chakra", "x"], ["--force", "--", "no.py", "--help"]):
        assert_refused(run("record", "-o", str(tmp_path / "step.json"), *words), "'no.py': no such file")
