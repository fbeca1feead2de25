"""A proof of an advice: what is written, and whether the part that is off is named, by results of a known cluster."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

import simnet
from simnet.strategies.calls import calls
from simnet.validation import proof
from simnet.validation.proof import Proof
from simnet.validation.proof_verdict import CALIBRATION, RESULTS
from tests.helpers.cli import assert_refused, run
from tests.helpers.needs import needs
from tests.helpers.proofs import SCENARIO, made, results

pytestmark = pytest.mark.slow  # each advises, or fits a network
LAYOUTS = {"2 nodes": {"cluster.num_nodes": 2}, "2 x 2": {"cluster.ranks_per_node": 2}}
PLANTED: dict[str, tuple[dict[str, Any], str, float]] = {
    "network x 0.5": ({"cluster.inter_node.bandwidth": "100 Mbit/s"}, "network bandwidth", 0.5),
    "compute x 1.3": ({"workload.compute_factor": 1.3}, "compute", 1.3),
    "kernels x 3": ({"calibration.codec_efficiency": 1 / 3}, "kernels", 3.0),
    "one slow node": ({"cluster.slow_nodes": [{"node": 1, "compute_slowdown": 1.8}]}, "node 1", 1.8),
    "latency x 10": ({"cluster.inter_node.latency": "20 ms"}, "network latency", 10.0),
}
"""What is off: the setting, the part, and by which factor."""


Place = Callable[..., Proof]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Put the proof of a layout into a new folder; each is made once."""
    known: dict[str, tuple[Path, Proof]] = {}

    def put(folder: Path, layout: str = "2 nodes") -> Proof:
        if layout not in known:
            first = tmp_path_factory.mktemp("proofs") / "proof"
            known[layout] = first, made(first, LAYOUTS[layout])
        shutil.copytree(known[layout][0], folder)
        return known[layout][1]

    return put


def measured(folder: Path, asked: Proof, planted: dict[str, Any], seed: int = 0) -> Any:
    content = results(folder, asked, asked.scenario.replace(**planted), seed)
    (folder / RESULTS).write_text(json.dumps(content))
    return simnet.validate(folder)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("planted", PLANTED)
def test_the_part_that_is_off_is_named_and_explained(planted: str, layout: str, place: Place, tmp_path: Path) -> None:
    settings, part, factor = PLANTED[planted]
    asked = place(tmp_path / "proof", layout)
    answer = measured(tmp_path / "proof", asked, settings, seed=len(planted + layout))
    verdict = answer.verdict
    assert [measured_part.name for measured_part in verdict.off] == [part]
    assert verdict.off[0].factor == pytest.approx(factor, rel=0.1)
    for step, explained_s in zip(answer.comparisons, verdict.explained_s, strict=True):
        assert explained_s == pytest.approx(step.measured, rel=0.08)
    assert f"Off 1:   {part}" in str(answer)
    anew = {**verdict.settings, "calibration": str(tmp_path / "proof" / CALIBRATION)}
    scenario = simnet.load(tmp_path / "proof" / proof.PROOF, anew)
    assert [run.step_s(scenario) for run in verdict.proof.runs] == pytest.approx(verdict.explained_s, rel=1e-3)


def test_nothing_is_off_where_all_is_as_said(place: Place, tmp_path: Path) -> None:
    answer = measured(tmp_path / "proof", place(tmp_path / "proof"), {})
    assert answer.verdict.off == ()
    assert all(step.is_inside for step in answer.comparisons)
    assert "cluster.inter_node.bandwidth" not in answer.verdict.settings


def test_faster_nics_than_nominal_become_a_bandwidth(place: Place, tmp_path: Path) -> None:
    answer = measured(tmp_path / "proof", place(tmp_path / "proof"), {"cluster.inter_node.bandwidth": "300 Mbit/s"})
    assert [step.is_inside for step in answer.comparisons] == [True, False, True]
    assert answer.verdict.off[0].name == "network bandwidth"
    rate = simnet.load(tmp_path / "proof" / proof.PROOF, answer.verdict.settings).cluster.inter_node.bytes_per_s
    assert rate * 8 / 1e6 == pytest.approx(300, rel=0.05)


def test_a_latency_that_the_scenario_has_none_of_is_found(tmp_path: Path) -> None:
    asked = made(tmp_path / "proof", {"cluster.inter_node.latency": "0 s"})
    verdict = measured(tmp_path / "proof", asked, {"cluster.inter_node.latency": "20 ms"}).verdict
    assert verdict.off[0].name == "network latency"
    assert "where the scenario has none" in verdict.off[0].text
    assert verdict.scenario.calibration.collective_launch_s == pytest.approx(0.04, rel=0.1)


def test_a_gpus_memory_is_shown_beside_what_was_predicted(tmp_path: Path) -> None:
    sizes = {"parameters": "4 GB", "gradients": "4 GB", "optimizer": "8 GB", "activations_per_sample": "1 GB"}
    asked = made(tmp_path / "proof", {"workload.memory": sizes})
    content = results(tmp_path / "proof", asked, asked.scenario)
    labels = {"run": "reference", "optimizer": "AdamW", "num_elements": 1, "num_tensors": 1}
    content["series"].append(
        {"kind": "memory", "name": "peak", "setup": 0, "unit": "B", "labels": labels, "values": [23e9]}
    )
    (tmp_path / "proof" / RESULTS).write_text(json.dumps(content))
    assert "Memory:  DDP bf16 23 GB, predicted 20.12 GB" in str(simnet.validate(tmp_path / "proof"))


def test_compute_of_matrices_in_place_of_the_model_is_not_judged(place: Place, tmp_path: Path) -> None:
    asked = place(tmp_path / "proof")
    content = results(tmp_path / "proof", asked, asked.scenario.replace(**{"workload.compute_factor": 2.0}))
    for series in content["series"]:
        series["labels"] |= {"model": "shapes"} if "model" in series["labels"] else {}
    (tmp_path / "proof" / RESULTS).write_text(json.dumps(content))
    answer = simnet.validate(tmp_path / "proof")
    assert answer.verdict is not None
    assert answer.verdict.off == ()
    assert all(step.is_inside for step in answer.comparisons)
    assert "set MODEL to judge it" in str(answer)


class TestWritten:
    def test_the_script_has_the_printed_calls(self, place: Place, tmp_path: Path) -> None:
        asked = place(tmp_path / "proof")
        script = (tmp_path / "proof" / "prove.py").read_text()
        compile(script, "prove.py", "exec")
        for training in asked.runs[1:]:
            assert "\n".join(f"    {line}" for line in calls(training.strategy)) in script
        assert "nodes=2" in (tmp_path / "proof" / "prove.sbatch").read_text()

    def test_any_name_of_a_scenario_leaves_a_script(self, tmp_path: Path) -> None:
        made(tmp_path / "proof", {"name": 'λ """ \\'})
        script = (tmp_path / "proof" / "prove.py").read_text(encoding="utf-8")
        assert compile(script, "prove.py", "exec")
        assert "predicts for λ ''' /" in script

    @pytest.mark.parametrize(
        ("system", "lines"),
        [
            ("local_sgd", ["optimizer = torch.optim.AdamW(", "optimizer = binsgdm.LocalSGD(optimizer"]),
            ("BinSGDM", ["optimizer = binsgdm.BinSGDM(", "binsgdm.attach(optimizer"]),
            ("fsdp", ["for part in (*model.blocks, model): fully_shard", "optimizer = torch.optim.AdamW("]),
        ],
    )  # fmt: skip
    def test_an_optimizer_is_made_where_the_call_makes_none(
        self, system: str, lines: list[str], tmp_path: Path
    ) -> None:
        asked = made(tmp_path / "proof", system=system)
        script = list(proof.script_lines(asked.runs[-1]))
        places = [next(at for at, line in enumerate(script) if line.startswith(start)) for start in lines]
        assert places == sorted(places)
        assert sum(line.startswith("optimizer = torch.") for line in script) == (system != "BinSGDM")

    def test_what_is_there_is_not_touched(self, tmp_path: Path) -> None:
        made(tmp_path / "proof")
        before = {path: path.read_bytes() for path in (tmp_path / "proof").iterdir()}
        refused = run("advise", str(tmp_path / "pod.json"), "--systems", "terngrad", "--proof", str(tmp_path / "proof"))
        assert_refused(refused, "is there and not empty; name a new folder with --proof")
        assert before == {path: path.read_bytes() for path in (tmp_path / "proof").iterdir()}
        assert sorted(path.name for path in tmp_path.iterdir()) == ["pod.json", "proof"]

    def test_one_rank_alone_has_nothing_to_prove(self, tmp_path: Path) -> None:
        with pytest.raises(simnet.SimnetError, match="one rank sends nothing"):
            made(tmp_path / "proof", {"cluster.num_nodes": 1})
        assert not (tmp_path / "proof").exists()

    def test_flags_of_another_framework_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(simnet.SimnetError, match=r"is switched on by no Python"):
            made(tmp_path / "proof", system="zero2")

    def test_where_nothing_pays_the_best_other_that_python_switches_on_is_proved(self, tmp_path: Path) -> None:
        (tmp_path / "pod.json").write_text(json.dumps(SCENARIO))
        idle = {"cluster.inter_node.bandwidth": "100 GB/s", "cluster.inter_node.latency": "1 us"}
        advice = simnet.advise(tmp_path / "pod.json", idle, systems=["zero1", "terngrad"], draws=0)
        assert (advice.best, advice.answer and advice.answer.name) == (None, "ZeRO-1")
        assert proof.of_advice(advice).runs[-1].title.startswith("TernGrad")


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    def change(content: dict[str, Any]) -> None:
        content["series"] = [series for series in content["series"] if series["labels"].get("run") != name]

    return change


def last_value(value: float) -> Callable[[dict[str, Any]], Any]:
    return lambda content: content["series"][-1]["values"].__setitem__(-1, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("recommended"), "holds 2 of 3 trainings: prove.py was ended before 'recommended': run it again"),
        (lambda content: content["series"][-1]["values"].pop(), "recommended: ranks have 49 or 50 steps, not 50 each"),
        (lambda content: content["series"].pop(0), "1 messages are missing: run prove.py again"),
        (lambda content: content.update(notes=["proof of another"]), "was measured for another proof.json"),
        (lambda content: content["setups"][0].update(num_nodes=1), "(1, 1) nodes x ranks, not (2, 1)"),
        (last_value(math.nan), "proof/results.json"),
        (last_value(-1.0), "-1.0: must be above 0"),
    ],
)  # fmt: skip
def test_results_that_are_not_whole_are_refused(
    change: Callable[[dict[str, Any]], Any], message: str, place: Place, tmp_path: Path
) -> None:
    asked = place(tmp_path / "proof")
    content = results(tmp_path / "proof", asked, asked.scenario)
    change(content)
    (tmp_path / "proof" / RESULTS).write_text(json.dumps(content))
    assert_refused(run("validate", str(tmp_path / "proof")), message)
    assert not (tmp_path / "proof" / CALIBRATION).exists()


def test_a_proof_that_has_not_run_says_how_to_run_it(place: Place, tmp_path: Path) -> None:
    place(tmp_path / "proof")
    assert_refused(run("validate", str(tmp_path / "proof")), "no results.json: run sbatch prove.sbatch there")
    (tmp_path / "empty").mkdir()
    assert_refused(run("validate", str(tmp_path / "empty")), "proof.json")
    assert_refused(run("validate", str(tmp_path / "proof"), "--draws", "20"), "drop the other")


@pytest.mark.parametrize(("system", "baseline"), [("terngrad", "DDP bf16"), ("fsdp", "FSDP")])
def test_the_script_runs_on_ranks_of_gloo(system: str, baseline: str, tmp_path: Path) -> None:
    needs("torch", "numba")
    from tests.helpers.launch import run_script

    (tmp_path / "pod.json").write_text(json.dumps(SCENARIO))
    tensors = [{"shape": [64, 64], "name": f"layers.{layer}.weight"} for layer in range(4)]
    one_node = {"cluster.num_nodes": 1, "cluster.ranks_per_node": 2, "workload.tensors": tensors}
    one_node |= {"workload.dtype": "fp32"} if system == "fsdp" else {}
    advice = simnet.advise(tmp_path / "pod.json", one_node, systems=[system], draws=0)
    structs.replace(advice, baseline=baseline).proof(tmp_path / "proof")
    (tmp_path / "mine.py").write_text("import torch\ndef data():\n    while True:\n        yield torch.zeros(())\n")
    script = tmp_path / "proof" / "prove.py"
    script.write_text(script.read_text().replace('DATA = ""', 'DATA = "mine:data"'))
    ended = run_script(script, folder=tmp_path, ranks=2)
    assert ended.code == 0, ended.stderr
    answer = simnet.validate(tmp_path / "proof")
    assert answer.verdict is not None
    assert answer.verdict.is_of_shapes
    assert {measured_part.name for measured_part in answer.verdict.parts} >= {
        "link in a node latency",
        "link in a node bandwidth",
    }
    rows = (tmp_path / "proof" / "losses.csv").read_text().splitlines()
    assert len(rows) == 1 + 3 * proof.STEPS
