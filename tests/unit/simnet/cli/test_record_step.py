"""`simnet record --from` and `--chakra`, by their former names: what they make and refuse."""

import json
from pathlib import Path

import pytest

from simnet.strategies import step_file
from tests.helpers import chakra_traces, step_files
from tests.helpers.chakra_traces import GOLDEN
from tests.helpers.cli import assert_refused, run
from tests.helpers.golden import GLOO

STEP = GOLDEN / "step.json"
WORLD = ("--nodes", "1", "--ranks-per-node", "2")


def test_a_trace_is_imported_shown_and_checked(tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    result = run("step", "import", str(GOLDEN / "data_parallel.0.et"), *WORLD, "-o", str(out))
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "",
        f"found: 3 all_reduce on world (2 ranks), 14 MB; compute waits for none of them\nwrote {out}\n",
    )
    assert run("check", str(out)).stdout == f"{out}: ok: recorded step\n"
    assert "13.2 ms" in run("show", str(out)).stdout


def test_an_imported_step_is_simulated(tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    run("step", "import", str(GOLDEN / "data_parallel.0.et"), "--nodes", "2", "--ranks-per-node", "8", "-o", str(out))
    settings = (
        "cluster.num_nodes=2",
        "cluster.ranks_per_node=8",
        f"strategy={{kind='recorded',file='{out}',compute='recorded'}}",
    )
    sets = [word for one in settings for word in ("--set", one)]
    result = run("simulate", "bert_base_10gbit", *sets, "--draws", "0", "--format", "json")
    assert result.exit_code == 0, result.stderr
    # What the compute alone takes is the least; its three all-reduces of 14 MB come on top.
    assert 20.2e-3 <= json.loads(result.stdout)["result"]["iterations_s"][0] < 0.1


def test_a_trace_of_the_profiler_is_imported(tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    result = run("step", "import", str(GLOO), "--ranks-per-node", "2", "--step", "4", "-o", str(out))
    assert (result.exit_code, result.stdout) == (0, "")
    assert "which streams wait for which is not in the trace" in result.stderr
    assert [one.message_bytes for one in step_file.read(out).recordings[0].streams[1].operations] == [657664]


def test_one_of_several_layouts_is_chosen(tmp_path: Path) -> None:
    layouts = [step_files.layout(step_files.ddp(), nodes, 2) for nodes in (1, 2)]
    file = step_files.write(tmp_path / "s.json", step_files.step(*layouts))
    refused = run("step", "export", str(file), "--chakra", str(tmp_path / "t"))
    assert_refused(refused, "recorded on 1 x 2 ranks, 2 x 2 ranks; choose one of these with --nodes")
    assert not list(tmp_path.glob("*.et"))
    assert run("step", "export", str(file), "--chakra", str(tmp_path / "t"), "--nodes", "2").exit_code == 0
    assert len(list(tmp_path.glob("*.et"))) == 4


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ((GOLDEN / "pytorch.0.et").read_bytes()[:700], "cut short or damaged at byte"),
        (b"PK\x03\x04" + bytes(90), "no Chakra execution trace"),
        (b"\x80" * 64, "no Chakra execution trace"),
        (b'{"version": "9.9"}{"id": "1", "type": "COMP_NODE"}', "version: '9.9': read are Chakra's schemas"),
    ],
    ids=["cut", "magic", "varint", "version"],
)
def test_a_bad_file_is_refused_in_one_sentence_and_nothing_is_written(data: bytes, rule: str, tmp_path: Path) -> None:
    bad, out = tmp_path / "t.0.et", tmp_path / "step.json"
    bad.write_bytes(data)
    assert_refused(run("step", "import", str(bad), *WORLD, "-o", str(out)), rule)
    assert not out.exists()


def test_an_input_is_never_replaced(tmp_path: Path) -> None:
    trace = chakra_traces.write(tmp_path / "t.0.et", chakra_traces.compute(0))
    assert_refused(run("step", "import", str(trace), *WORLD, "-o", str(trace)), "is an input")
    step = tmp_path / "t.1.et"
    step.write_bytes(STEP.read_bytes())
    assert_refused(run("step", "export", str(step), "--chakra", str(tmp_path / "t")), "is an input")
    assert step.read_bytes() == STEP.read_bytes()
    assert not (tmp_path / "t.2.et").exists()
