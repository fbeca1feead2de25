"""The command line."""

import csv
import errno
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from simnet import files, simulate
from simnet.commands import main as commands
from simnet.commands import terminal
from simnet.commands.main import COMMANDS, cli
from simnet.commands.settings import read_axes, read_settings, read_value, read_values
from simnet.errors import SimnetError
from simnet.result import RunResult
from simnet.scenario import Scenario, build, load_experiment
from tests.helpers.scenario_samples import SWEEP, pod, write

FULL = "simnet: standard output: cannot be used (No space left on device)\n"
ROOT = Path(__file__).parents[4]
BANDWIDTH = "cluster.inter_node.bandwidth"


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], prog_name="simnet")


def run_in_shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which `simnet` is this checkout's."""
    whole = f'set -o pipefail; simnet() {{ "{sys.executable}" "{ROOT / "cli.py"}" "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", whole], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(write(tmp_path / "pod.toml", pod(sweep=SWEEP)))


@pytest.fixture
def never_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Scenario) -> RunResult:
        raise AssertionError("simulated before the output was checked")

    monkeypatch.setattr(simulate, "simulate", refuse)


def assert_refused(result: Result, message: str) -> None:
    """Check for one line on stderr and exit code 2."""
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stderr.startswith("simnet: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


class TestGroup:
    def test_help_lists_every_command_without_importing_any(self) -> None:
        result = run("--help")
        assert result.exit_code == 0
        assert all(name in result.stdout for name in COMMANDS)
        assert "Example:" in result.stdout

    @pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("validate", "plot")])
    def test_every_command_has_help_with_an_example(self, name: str) -> None:
        result = run(name, "--help")
        assert result.exit_code == 0
        assert re.search(rf"Examples?:\n    simnet {name}", result.stdout)

    def test_an_unknown_command_is_refused_with_the_nearest_one(self) -> None:
        assert_refused(run("simulat"), "'simulat': unknown command. Did you mean 'simulate'?")

    def test_a_missing_argument_is_one_line(self) -> None:
        assert_refused(run("simulate"), "Missing argument 'SCENARIO'. See: simnet simulate --help")

    def test_an_unknown_option_is_one_line(self, file: str) -> None:
        assert_refused(run("simulate", file, "--fromat", "json"), "--format")

    def test_the_version_is_printed(self) -> None:
        assert re.fullmatch(r"simnet \S+\n", run("--version").stdout)

    def test_an_interrupt_exits_130_with_one_sentence(self, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: object) -> RunResult:
            raise KeyboardInterrupt

        monkeypatch.setattr(simulate, "simulate", interrupted)
        result = run("simulate", file)
        assert (result.exit_code, result.stderr) == (130, "simnet: interrupted; nothing was written\n")


class TestSimulate:
    def test_the_table_names_both_strategies(self, file: str) -> None:
        result = run("simulate", file)
        assert result.exit_code == 0
        assert "binsgdm" in result.stdout
        assert "all_reduce" in result.stdout
        assert f"simnet sweep {file}" in result.stderr

    def test_json_has_what_programs_read(self, file: str) -> None:
        found = json.loads(run("simulate", file, "--format", "json").stdout)
        assert build(found["scenario"]).name == "pod"
        assert found["world_size"] == 16
        result, baseline = found["result"], found["baseline"]
        assert sum(result["breakdown"].values()) == pytest.approx(result["iterations_s"][0])
        assert found["speedup"] == pytest.approx(baseline["iterations_s"][0] / result["iterations_s"][0])

    def test_json_is_a_scenario_that_gives_the_same_result(self, file: str, tmp_path: Path) -> None:
        first = run("simulate", file, "--format", "json").stdout
        (tmp_path / "result.json").write_text(first)
        assert run("simulate", str(tmp_path / "result.json"), "--format", "json").stdout == first

    def test_csv_is_one_row(self, file: str) -> None:
        rows = list(csv.DictReader(io.StringIO(run("simulate", file, "--format", "csv").stdout)))
        assert [row["world_size"] for row in rows] == ["16"]

    def test_values_are_set(self, file: str) -> None:
        result = run(
            "simulate", file, "--set", "cluster.num_nodes=4", "--set", f"{BANDWIDTH}=1 Gbit/s", "--format", "json"
        )
        cluster = json.loads(result.stdout)["scenario"]["cluster"]
        assert (cluster["num_nodes"], cluster["inter_node"]["bandwidth"]) == (4, "1 Gbit/s")

    def test_a_file_is_written(self, file: str, tmp_path: Path) -> None:
        out = tmp_path / "result.json"
        result = run("simulate", file, "--format", "json", "-o", str(out))
        assert result.stdout == ""
        assert json.loads(out.read_text())["world_size"] == 16

    @pytest.mark.parametrize("option", ["-o", "--trace"])
    def test_a_device_is_written_to_and_not_replaced(self, file: str, option: str) -> None:
        assert run("simulate", file, option, "/dev/null").exit_code == 0
        assert Path("/dev/null").is_char_device()

    def test_a_timeline_is_written(self, file: str, tmp_path: Path) -> None:
        pytest.importorskip("simnet.show.trace")
        run("simulate", file, "--trace", str(tmp_path / "trace.json"))
        assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]

    @pytest.mark.parametrize("option", ["-o", "--trace"])
    @pytest.mark.parametrize(
        ("place", "message"),
        [
            ("", "is a directory; name a file"),
            ("pod.toml/result", "cannot be written (Not a directory); name another with {option}"),
            ("new/result", "no such directory; make it, or name another file with {option}"),
            ("a" * 300, "cannot be written (File name too long); name another with {option}"),
        ],
    )
    @pytest.mark.usefixtures("never_simulated")
    def test_an_unwritable_place_is_refused_before_simulating(
        self, file: str, tmp_path: Path, option: str, place: str, message: str
    ) -> None:
        assert_refused(run("simulate", file, option, str(tmp_path / place)), message.format(option=option))
        assert [path.name for path in tmp_path.iterdir()] == ["pod.toml"]

    @pytest.mark.parametrize("option", ["-o", "--trace"])
    @pytest.mark.usefixtures("never_simulated")
    def test_links_in_a_circle_and_empty_names_are_refused_before_simulating(
        self, file: str, tmp_path: Path, option: str
    ) -> None:
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        refused = run("simulate", file, option, str(tmp_path / "loop"))
        assert refused.exit_code == 2
        assert re.search("in a circle|Too many levels", refused.stderr)
        assert_refused(run("simulate", file, option, ""), "'': is empty; name a file or a directory.")

    @pytest.mark.usefixtures("never_simulated")
    def test_one_file_for_result_and_timeline_is_refused(self, file: str, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "same.json")
        result = run("simulate", file, "-o", str(tmp_path / "same.json"), "--trace", str(tmp_path / "link"))
        assert_refused(result, "link: is named by -o and by --trace; name two files")

    @pytest.mark.usefixtures("never_simulated")
    def test_bytes_that_are_no_text_are_refused(self, file: str) -> None:
        assert_refused(
            run("simulate", file, "--set", "cluster.name=\udcff"), "'cluster.name=\\udcff': has bytes that are"
        )

    def test_an_unknown_scenario_is_refused(self) -> None:
        assert_refused(run("simulate", "nonesuch"), "'nonesuch': unknown experiment.")

    def test_a_wrong_setting_is_refused(self, file: str) -> None:
        assert_refused(run("simulate", file, "--set", "cluster.num_node=4"), "--set: cluster: unknown key 'num_node'.")

    def test_parts_that_contradict_are_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path / "pod.toml", pod(workload__gradient="1 GB"))
        assert_refused(run("simulate", str(path)), "gradient and num_elements")


class TestSweep:
    def test_files_and_table_and_summary(self, file: str, tmp_path: Path) -> None:
        out = tmp_path / "out"
        result = run("sweep", file, "-o", str(out))
        assert result.exit_code == 0
        assert "speedup of binsgdm over all_reduce" in result.stdout
        assert re.fullmatch(rf"6 points in \S+ s; wrote {out}/results.csv and {out}/results.json\n", result.stderr)
        document = json.loads((out / "results.json").read_text())
        rows = list(csv.DictReader(io.StringIO((out / "results.csv").read_text())))
        assert [point["world_size"] for point in document["points"]] == [8, 16, 32, 8, 16, 32]
        assert [row["world_size"] for row in rows] == ["8", "16", "32", "8", "16", "32"]

    def test_the_summary_says_how_much_was_there_before(self, file: str, tmp_path: Path) -> None:
        run("sweep", file, "-o", str(tmp_path))
        assert ", 6 of them finished before; wrote" in run("sweep", file, "-o", str(tmp_path)).stderr

    def test_the_same_point_twice_was_not_there_before(self, file: str) -> None:
        assert re.fullmatch(r"4 points in \S+ s\n", run("sweep", file, "--set", "cluster.num_nodes=2,2").stderr)

    @pytest.mark.usefixtures("never_simulated")
    def test_a_pipe_in_the_place_of_results_is_refused_before_simulating(self, file: str, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "results.csv")
        assert_refused(run("sweep", file, "-o", str(tmp_path)), "results.csv: not a regular file; remove it")

    def test_several_values_make_an_axis_and_one_ends_it(self, file: str) -> None:
        several, one = "strategy=binsgdm,one_bit_adam", "cluster.num_nodes=4"
        document = json.loads(run("sweep", file, "--set", several, "--set", one, "--format", "json").stdout)
        assert [axis["key"] for axis in document["axes"]] == [BANDWIDTH, "strategy"]
        assert {point["world_size"] for point in document["points"]} == {32}

    def test_csv_goes_to_the_terminal_without_a_directory(self, file: str) -> None:
        assert len(list(csv.DictReader(io.StringIO(run("sweep", file, "--format", "csv").stdout)))) == 6

    def test_an_empty_sweep_is_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path / "pod.toml", pod())
        assert_refused(run("sweep", str(path)), "nothing to sweep; add a [sweep] table or --set KEY=V1,V2")

    @pytest.mark.parametrize("place", ["pod.toml", "pod.toml/out"])
    @pytest.mark.usefixtures("never_simulated")
    def test_an_unwritable_directory_is_refused_before_simulating(self, file: str, tmp_path: Path, place: str) -> None:
        assert_refused(run("sweep", file, "-o", str(tmp_path / place)), "cannot be written")

    @pytest.mark.usefixtures("never_simulated")
    def test_a_place_of_results_that_is_a_directory_is_refused_before_simulating(
        self, file: str, tmp_path: Path
    ) -> None:
        (tmp_path / "results.csv").mkdir()
        assert_refused(run("sweep", file, "-o", str(tmp_path)), "results.csv: is a directory")

    def test_a_damaged_journal_is_refused(self, file: str, tmp_path: Path) -> None:
        (tmp_path / "points.jsonl").write_text("{}\n")
        assert_refused(
            run("sweep", file, "-o", str(tmp_path)), "points.jsonl: line 1: '{}': is damaged; delete this line"
        )

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (("result", "scenario"), "text"),
            (("result", "scenario", "cluster"), ["text"]),
            (("result", "scenario", "cluster", "num_nodes"), "many"),
            (("result", "scenario", "workload"), {"a": json.loads("[" * 200 + "]" * 200)}),
            (("result", "result", "iterations_s"), [-1.0]),
            (("result", "result", "iterations_s"), [10**400]),
            (("result", "result", "breakdown"), {"forward_s": "x"}),
            (("result", "baseline", "iterations_s"), [0]),
            (("result", "notes"), "none"),
            (("result", "speedup"), "fast"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("form", ["table", "csv"])
    def test_a_journal_with_a_damaged_result_is_refused_before_anything_is_written(
        self, file: str, tmp_path: Path, path: tuple[str, ...], value: object, form: str
    ) -> None:
        out = tmp_path / "out"
        run("sweep", file, "-o", str(out))
        first, *rest = (out / "points.jsonl").read_text().splitlines()
        entry = json.loads(first)
        *outer, last = path
        place = entry
        for key in outer:
            place = place[key]
        place[last] = value
        (out / "points.jsonl").write_text("\n".join([json.dumps(entry), *rest, ""]))
        for name in ("results.csv", "results.json"):
            (out / name).unlink()
        before = (out / "points.jsonl").read_bytes()
        refused = run("sweep", file, "-o", str(out), "--format", form)
        assert_refused(refused, "damaged")
        assert "`" not in refused.stderr
        assert [found.name for found in out.iterdir()] == ["points.jsonl"]
        assert (out / "points.jsonl").read_bytes() == before

    def test_a_journal_that_is_a_link_to_elsewhere_is_refused(self, file: str, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "mine").write_text("")
        (tmp_path / "out" / "points.jsonl").symlink_to(tmp_path / "mine")
        assert_refused(run("sweep", file, "-o", str(tmp_path / "out")), "points.jsonl: a link leads out of")
        assert (tmp_path / "mine").read_text() == ""

    @pytest.mark.usefixtures("never_simulated")
    def test_results_that_are_a_link_to_elsewhere_are_refused(self, file: str, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "results.csv").symlink_to(tmp_path / "mine")
        assert_refused(run("sweep", file, "-o", str(tmp_path / "out")), "results.csv: a link leads out of")
        assert not (tmp_path / "mine").exists()


class TestCrossover:
    def test_the_value_is_told_with_its_tolerance(self, file: str) -> None:
        result = run("crossover", file, "--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "400 Gbit/s")
        pattern = (
            rf"{BANDWIDTH}: binsgdm is faster than all_reduce up to [\d.]+ Gbit/s \(within [\d.]+ %\), all_reduce is"
        )
        assert re.match(pattern, result.stdout)

    def test_an_integer_is_told_as_its_two_neighbours(self, file: str) -> None:
        result = run("crossover", file, "--over", "cluster.num_nodes", "--from", "1", "--to", "8")
        sentence = (
            "cluster.num_nodes: all_reduce is at least as fast up to 1, binsgdm is faster than all_reduce from 2 on."
        )
        assert result.stdout.startswith(sentence)

    def test_json_holds_both_sides_of_the_crossing(self, file: str, tmp_path: Path) -> None:
        out = tmp_path / "found.json"
        ends = ["--from", "1", "--to", "8"]
        run("crossover", file, "--over", "cluster.num_nodes", *ends, "--format", "json", "-o", str(out))
        found = json.loads(out.read_text())
        (crossing,) = found["crossings"]
        assert (crossing["low"]["value"], crossing["high"]["value"]) == (1, 2)
        assert crossing["strategy_is_faster"] == "above"
        assert crossing["low"]["speedup"] < 1 < crossing["high"]["speedup"]

    def test_without_a_crossing_the_winner_is_named_with_both_ends(self, file: str) -> None:
        result = run("crossover", file, "--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "2 Gbit/s")
        assert (
            "no crossing: binsgdm is faster than all_reduce at all 9 values tried from 1 Gbit/s to 2 G" in result.stdout
        )
        assert result.stdout.splitlines()[11].lstrip().startswith("2 Gbit/s ")

    def test_the_notes_of_the_results_stand_below(self, file: str) -> None:
        ends = ["--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "2 Gbit/s"]
        note = "calibration 'inline' is ideal (nominal rates, no other cost), not measured on this cluster"
        assert run("crossover", file, *ends).stdout.endswith(f"\n\nnote: {note}\n")
        assert json.loads(run("crossover", file, *ends, "--format", "json").stdout)["notes"] == [note]

    def test_a_key_without_effect_is_refused(self, file: str) -> None:
        ends = ["--over", "workload.batch_per_rank", "--from", "1", "--to", "100"]
        assert_refused(run("crossover", file, *ends), "--over: workload.batch_per_rank: has no effect here: all 9 val")

    @pytest.mark.usefixtures("never_simulated")
    def test_a_missing_directory_is_refused_before_simulating(self, file: str, tmp_path: Path) -> None:
        ends = ["--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "2 Gbit/s"]
        assert_refused(run("crossover", file, *ends, "-o", str(tmp_path / "new" / "x")), "no such directory; make it")

    def test_a_strategy_against_itself_is_told_apart(self, file: str) -> None:
        same = ["--set", "strategy=all_reduce", "--set", "strategy.wire_dtype=fp16"]
        result = run("crossover", file, "--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "2 Gbit/s", *same)
        assert "strategy is faster than baseline" in result.stdout

    def test_a_tolerance_that_is_no_number_is_refused(self, file: str) -> None:
        ends = ["--over", BANDWIDTH, "--from", "1 Gbit/s", "--to", "2 Gbit/s"]
        assert_refused(
            run("crossover", file, *ends, "--tolerance", "nan"), "--tolerance: nan: must be from 1e-09 to 0.5"
        )

    def test_a_wrong_end_is_refused(self, file: str) -> None:
        assert_refused(
            run("crossover", file, "--over", BANDWIDTH, "--from", "1", "--to", "2"), f"--from: {BANDWIDTH}: 1: "
        )


class TestParts:
    def test_every_kind_is_listed_with_its_parts(self) -> None:
        listed = run("list").stdout
        assert all(f"{kind}:\n" in listed for kind in files.KINDS)
        assert "BERT-Base" in run("list", "gradients").stdout

    def test_an_unknown_kind_is_refused(self) -> None:
        assert_refused(run("list", "cluster"), "'cluster': unknown kind of part. Did you mean 'clusters'?")

    def test_an_experiment_is_shown_with_its_parts_and_can_be_used_again(self, file: str, tmp_path: Path) -> None:
        write(tmp_path / "wide.toml", {**pod()["cluster"], "source": "a page"})
        write(tmp_path / "named.toml", pod(cluster="./wide.toml", sweep=SWEEP))
        shown = run("show", str(tmp_path / "named.toml")).stdout
        assert 'source = "a page"' in shown
        (tmp_path / "named.toml").write_text(shown)
        assert run("check", str(tmp_path / "named.toml")).stdout.endswith("ok: experiment, 6 points\n")

    @pytest.mark.parametrize("name", files.names("experiments"))
    def test_what_is_shown_of_an_experiment_is_the_same_experiment(self, name: str, tmp_path: Path) -> None:
        (tmp_path / "shown.toml").write_text(run("show", f"experiments/{name}").stdout)
        shown, shipped = load_experiment(str(tmp_path / "shown.toml")), load_experiment(name)
        assert [(axis.key, axis.values) for axis in shown.axes] == [(axis.key, axis.values) for axis in shipped.axes]
        assert shown.at({}) == shipped.at({})

    def test_a_part_is_shown_by_kind_and_name(self) -> None:
        assert run("show", "gradients/bert_base").stdout.startswith("# workloads/gradients/bert_base.json\n")

    def test_an_unknown_part_is_refused(self) -> None:
        assert_refused(run("show", "vgg61"), "'vgg61': unknown part. Did you mean 'vgg16'?")

    def test_a_name_of_several_parts_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "names", lambda _: ("same",))
        assert_refused(
            run("show", "same"), "'same': several kinds have this name; write one of clusters/same, workloads/same"
        )


class TestCheck:
    @pytest.mark.parametrize(
        ("part", "kind"), [("cluster", "cluster"), ("workload", "workload"), ("calibration", "calibration")]
    )
    def test_a_part_is_known_by_its_keys(self, tmp_path: Path, part: str, kind: str) -> None:
        path = write(tmp_path / "part.toml", pod()[part])
        assert run("check", str(path)).stdout == f"{path}: ok: {kind}\n"

    def test_every_wrong_file_is_told_and_the_others_are_checked(self, file: str, tmp_path: Path) -> None:
        wrong = str(write(tmp_path / "wrong.toml", pod(cluster__num_nodes=0)))
        result = run("check", wrong, "nonesuch", file)
        assert result.exit_code == 2
        assert [line.split(":")[1] for line in result.stderr.splitlines()] == [f" {wrong}", " 'nonesuch'"]
        assert result.stdout == f"{file}: ok: experiment, 6 points\n"

    def test_parts_that_contradict_are_found(self, tmp_path: Path) -> None:
        contradiction = pod(workload__gradient="1 GB")
        for changes in ({}, {"sweep": SWEEP}):
            path = write(tmp_path / "wrong.toml", contradiction | changes)
            assert_refused(run("check", str(path)), "must be given once")

    def test_the_results_of_a_sweep_are_told(self, file: str, tmp_path: Path) -> None:
        run("sweep", file, "-o", str(tmp_path))
        assert_refused(run("check", str(tmp_path / "results.json")), "results of a sweep, not a scenario")

    def test_gradients_are_left_to_their_workload(self) -> None:
        assert_refused(run("check", "gradients/bert_base"), "checked only with a workload")


class TestSettings:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("16", 16),
            ("1.5", 1.5),
            ("true", True),
            ('"16"', "16"),
            ("10 Gbit/s", "10 Gbit/s"),
            ("{use = 'a', num_nodes = 2}", {"use": "a", "num_nodes": 2}),
            ("2024-01-01", "2024-01-01"),
            ("1\nother = 2", "1\nother = 2"),
            ("[" * 5000, "[" * 5000),
        ],
    )
    def test_a_value_is_toml_where_it_can_be(self, text: str, value: object) -> None:
        assert read_value(text) == value

    @pytest.mark.parametrize(
        ("text", "values"),
        [
            ("1, 2,4", (1, 2, 4)),
            ("10 Gbit/s,25 Gbit/s", ("10 Gbit/s", "25 Gbit/s")),
            ("[1, [2]],[3]", ([1, [2]], [3])),
            ('"a,b",c', ("a,b", "c")),
            ("{use = 'a', n = {b = 1}},c", ({"use": "a", "n": {"b": 1}}, "c")),
        ],
    )
    def test_commas_part_values_outside_quotes_and_brackets(self, text: str, values: Sequence[object]) -> None:
        assert read_values(text) == values

    def test_one_value_is_a_setting_and_several_are_an_axis(self) -> None:
        assert read_axes(["a.b=1", "c = 2,3"]) == ({"a.b": 1}, {"c": (2, 3)})

    @pytest.mark.parametrize("text", ["", "a", "=1", "a..b=1", "a=", ".a=1"])
    def test_what_is_no_setting_is_refused(self, text: str) -> None:
        with pytest.raises(SimnetError, match=f"--set: '{re.escape(text)}': write KEY=VALUE, such as"):
            read_settings([text])

    def test_a_key_that_is_set_twice_is_refused(self) -> None:
        with pytest.raises(SimnetError, match="--set: 'a=2': 'a' set twice; drop one"):
            read_settings(["a=1", "a=2"])


class TestProcesses:
    def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(self, tmp_path: Path) -> None:
        ran = run_in_shell("simnet simulate nonesuch", tmp_path)
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr.startswith("simnet: 'nonesuch': unknown experiment.")
        assert ran.stderr.count("\n") == 1

    def test_the_module_runs_like_the_command(self) -> None:
        ran = subprocess.run(
            [sys.executable, "-m", "simnet", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert ran.stdout == run("--version").stdout

    def test_a_closed_pipe_ends_quietly(self, file: str, tmp_path: Path) -> None:
        ran = run_in_shell(f"simnet show gradients/bert_base | head -n 1; simnet simulate {file} 2>&- | true", tmp_path)
        assert ran.stdout == "# workloads/gradients/bert_base.json\n"
        assert ran.stderr == ""

    @pytest.mark.parametrize("command", ["simulate {file}", "list", "advise {file} --systems BinSGDM"])
    def test_a_standard_output_that_is_closed_is_no_traceback(self, file: str, tmp_path: Path, command: str) -> None:
        assert "Traceback" not in run_in_shell(f"simnet {command.format(file=file)} >&-", tmp_path).stderr

    def test_a_full_device_is_told_in_a_line(self, file: str, tmp_path: Path) -> None:
        ran = run_in_shell(f"simnet simulate {file} -o /dev/full", tmp_path)
        message = "simnet: /dev/full: cannot be written (No space left on device); name another with -o\n"
        assert (ran.returncode, ran.stderr) == (2, message)

    @pytest.mark.parametrize(
        "command", ["list", "show overlap", "check bert_base_10gbit", "--version", "--help", "simulate {file}"]
    )
    def test_a_full_standard_output_is_told_in_a_line(self, file: str, tmp_path: Path, command: str) -> None:
        ran = run_in_shell(f"simnet {command.format(file=file)} > /dev/full", tmp_path)
        assert (ran.returncode, ran.stderr) == (2, FULL)

    @pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
    def test_messages_that_nobody_can_read_change_nothing(self, file: str, tmp_path: Path, redirection: str) -> None:
        ran = run_in_shell(f"simnet sweep {file} --format csv {redirection}", tmp_path)
        assert (ran.returncode, ran.stdout.count("\n")) == (0, 7)
        assert run_in_shell(f"simnet simulate nonesuch {redirection}", tmp_path).returncode == 2

    def test_a_working_directory_that_is_gone_is_told_in_a_line(self, file: str, tmp_path: Path) -> None:
        ran = run_in_shell(f"mkdir gone; cd gone; rmdir ../gone; simnet simulate {file} -o x", tmp_path)
        message = "simnet: x: cannot be written (No such file or directory); name another with -o\n"
        assert (ran.returncode, ran.stderr) == (2, message)

    def test_help_is_there_without_docstrings(self) -> None:
        code = "from click.testing import CliRunner; from simnet.commands.main import COMMANDS, cli"
        loop = "[print(CliRunner().invoke(cli, [*c, '--help'], prog_name='simnet').stdout) for c in C]"
        ran = subprocess.run(
            [sys.executable, "-OO", "-c", f"{code}; C = [[], *([name] for name in COMMANDS)]; {loop}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout == "".join(run(*command, "--help").stdout + "\n" for command in ((), *zip(COMMANDS)))

    def test_half_of_a_character_is_told_in_a_line(self, tmp_path: Path) -> None:
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
        self, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
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

    def test_an_interrupt_before_a_command_starts_exits_130(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        told: list[str] = []
        monkeypatch.setattr(cli, "make_context", interrupted)
        monkeypatch.setattr(commands, "tell", told.append)
        with pytest.raises(SystemExit) as ended:
            commands.main(["list"])
        assert ended.value.code == 130
        assert told == ["simnet: interrupted; nothing was written"]

    def test_simulating_imports_nothing_heavy(self, file: str) -> None:
        heavy = "{'torch', 'pandas', 'matplotlib', 'numpy', 'rich'}"
        called = "import sys; from simnet.commands.main import cli; cli(sys.argv[1:], standalone_mode=False)"
        code = f"{called}; print(sorted({heavy} & set(sys.modules)))"
        ran = subprocess.run(
            [sys.executable, "-c", code, "simulate", file], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert ran.stdout.splitlines()[-1] == "[]"
