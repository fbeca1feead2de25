"""`simnet record --from` and `--chakra`, by their former names: what they make and refuse."""

import json
from pathlib import Path

from simnet.strategies import step_file
from tests.helpers import step_files
from tests.helpers.chakra_traces import GOLDEN
from tests.helpers.cli import assert_refused, run
from tests.helpers.golden import GLOO


def test_traces_are_imported_shown_and_checked(tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    result = run("step", "import", GOLDEN / "data_parallel.0.et", "--nodes", 1, "--ranks-per-node", 2, "-o", out)
    said = f"found: 3 all_reduce on world (2 ranks), 14 MB; compute waits for none of them\nwrote {out}\n"
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", said)
    assert run("check", out).stdout == f"{out}: ok: recorded step\n"
    assert "13.2 ms" in run("show", out).stdout
    result = run("step", "import", GLOO, "--ranks-per-node", 2, "--step", 4, "-o", tmp_path / "gloo.json")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "which streams wait for which is not in the trace" in result.stderr
    streams = step_file.read(tmp_path / "gloo.json").recordings[0].streams
    assert [one.message_bytes for one in streams[1].operations] == [657664]


def test_an_imported_step_is_simulated(tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    run("step", "import", GOLDEN / "data_parallel.0.et", "--nodes", 2, "--ranks-per-node", 8, "-o", out)
    strategy = f"strategy={{kind='recorded',file='{out}',compute='recorded'}}"
    settings = ("cluster.num_nodes=2", "cluster.ranks_per_node=8", strategy)
    sets = [word for one in settings for word in ("--set", one)]
    result = run("simulate", "bert_base_10gbit", *sets, "--draws", "0", "--format", "json")
    assert result.exit_code == 0, result.stderr
    # What the compute alone takes is the least; its three all-reduces of 14 MB come on top.
    assert 20.2e-3 <= json.loads(result.stdout)["result"]["iterations_s"][0] < 0.1


def test_one_of_several_layouts_is_chosen(tmp_path: Path) -> None:
    layouts = [step_files.layout(step_files.ddp(), nodes, 2) for nodes in (1, 2)]
    file = step_files.write(tmp_path / "s.json", step_files.step(*layouts))
    refused = run("step", "export", str(file), "--chakra", str(tmp_path / "t"))
    assert_refused(refused, "recorded on 1 x 2 ranks, 2 x 2 ranks; choose one of these with --nodes")
    assert not list(tmp_path.glob("*.et"))
    assert run("step", "export", str(file), "--chakra", str(tmp_path / "t"), "--nodes", "2").exit_code == 0
    assert len(list(tmp_path.glob("*.et"))) == 4
