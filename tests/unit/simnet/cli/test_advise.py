"""`simnet advise`: its table, JSON, figure and command."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

import simnet
from simnet.analysis.advice import Advice
from simnet.analysis.advise import advise
from simnet.analysis.tune import chosen, systems
from simnet.analysis.verdict import PAYS
from simnet.cli.main import cli
from simnet.core.errors import SimnetError
from simnet.core.units import Size
from simnet.report import comparison_charts, figure, figures
from simnet.report.advice import answer, ranking_page, to_object
from simnet.workload.workload import StepMemory
from tests.helpers import step_files
from tests.helpers.advise_samples import GBIT, WORKLOAD, advised, row, scenario
from tests.helpers.scenario_samples import pod, write
from tests.helpers.time_to_target_samples import write_trainings

LARGE = {"TernGrad", "ByteGrad"}
MARK = " (kernels not measured)"


class TestOutput:
    def test_json_says_what_the_table_says(self) -> None:
        advice = advised("BinSGDM", "1-bit Adam")
        found = json.loads(json.dumps(to_object(advice), allow_nan=False))
        assert found["baseline"] == advice.baseline
        assert found["best"] == advice.best.name if advice.best else found["best"] is None
        assert [one["name"] for one in found["systems"]] == [one.name for one in advice.systems]
        assert found["answer"] == answer(advice)
        mine = next(one for one in found["systems"] if one["name"] == "BinSGDM")
        assert mine["strategy"]["kind"] == "binsgdm"
        assert mine["pays"] == "pays"
        assert mine["crossover_bytes_per_s"] == list(row(advice, "BinSGDM").crossovers)

    def test_the_table_has_a_line_a_system(self) -> None:
        advice = advised("BinSGDM", "1-bit Adam")
        lines = str(ranking_page(advice)).splitlines()
        first = next(number for number, line in enumerate(lines) if line.startswith("system "))
        assert [line.split("  ")[0] for line in lines[first + 1 : first + 5]] == [
            found.label for found in advice.systems
        ]
        assert any(line.startswith("note: calibration is ideal") for line in lines)


@pytest.fixture(scope="module")
def advice() -> Advice:
    return advised("binsgdm", "top_k", "qsgd", "terngrad", "marsit", "sign_sgd")


class TestFigure:
    @pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
    def test_it_is_the_same_again(self, advice: Advice, tmp_path: Path, ending: str, start: bytes) -> None:
        first, second = (tmp_path / f"{name}.{ending}" for name in "ab")
        with figure.styled():
            for path in (first, second):
                figure.write(figures.advice(advice), path)
        assert first.read_bytes() == second.read_bytes()
        assert first.read_bytes().startswith(start)

    def test_it_names_what_to_use_then_the_fastest_and_what_is_to_be_measured(self, advice: Advice) -> None:
        chart = comparison_charts.advised(advice)
        lines = {curve.name: curve for curve in chart.curves if curve.name}
        labels = [*lines, *(guide.name for guide in chart.guides)]
        chosen_ = [one.system for one in advice.choices if not one.system.is_dense]
        first = [*chosen_, *(found for found in advice.others if found not in chosen_)]
        named = [found.label for found in first[:6]]
        assert [
            label.removesuffix(MARK) for label in labels if label.removesuffix(MARK).split(", ")[0] in systems()
        ] == named
        assert f"{row(advice, 'Top-k 1 %').label}{MARK}" in labels
        assert {"this cluster", "others", f"predicted {PAYS:g} times as fast or more"} <= set(labels)
        ((rate, speedup),) = (point for point in first[0].curve if point[0] == GBIT)
        assert (rate / GBIT, speedup) in zip(lines[labels[0]].x, lines[labels[0]].y, strict=True)


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(cli, ["advise", *map(str, args)], prog_name="simnet")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "pod.toml", pod())


class TestCommand:
    def test_a_table_and_a_sentence_are_printed(self, file: Path) -> None:
        result = run(file, "--systems", "BinSGDM, one_bit_adam")
        assert result.exit_code == 0
        assert result.stdout.splitlines()[0].startswith(
            "110 M parameters on 2 nodes x 8 GPUs, NIC 25 Gbit/s per node, "
        )
        assert "pays" in result.stdout
        assert "QSGD" not in result.stdout
        assert result.stderr == ""

    def test_a_scenario_needs_no_strategy_and_trainings_may_be_ones_own(self, tmp_path: Path) -> None:
        given = {key: value for key, value in pod().items() if key not in ("strategy", "baseline")}
        file = write(tmp_path / "pod.toml", given)
        trainings = write_trainings(tmp_path / "ours.json")
        result = run(file, "--systems", "BinSGDM", "--convergence", trainings, "--format", "json", "--draws", "0")
        assert result.exit_code == 0, result.stderr
        found = json.loads(result.stdout)["systems"]
        assert {record["task"] for one in found for record in one["records"]} <= {"ours"}

    @pytest.mark.parametrize(
        ("scenario_", "given"),
        [
            ("bert_base_10gbit", {}),
            ("slow_rank", {"systems": ["binsgdm", "one_bit_adam", "qsgd", "power_sgd", "hsdp", "zero1"]}),
        ],
    )
    def test_the_answer_is_one_screen_and_all_has_no_wider_lines(self, scenario_: str, given: dict[str, Any]) -> None:
        found = simnet.advise(scenario_, {"cluster.num_nodes": 4}, draws=20, **given)
        for page, most in ((found.page(), 30), (found.ranking(), 1000)):
            lines = str(page).splitlines()
            assert 10 < len(lines) <= most
            assert max(map(len, lines)) <= 100

    def test_a_figure_is_drawn(self, file: Path, tmp_path: Path) -> None:
        result = run(file, "--systems", "BinSGDM", "--plot", tmp_path / "a.svg")
        assert result.exit_code == 0
        assert "nothing pays: use tuned DDP" in result.stdout
        assert (tmp_path / "a.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("workload", "called"),
    [
        ({"title": "Llama-like, 1.35 B"}, "Llama-like, 1.35 B"),
        ({}, "110 M parameters"),
        ({"name": "mine", "title": "Mine"}, "mine"),
    ],
)
def test_a_workload_without_a_name_is_called_by_its_title_or_by_its_size(
    workload: dict[str, object], called: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "pod.toml", pod() | {"workload": pod()["workload"] | workload})
    assert run(file, "--systems", "BinSGDM").stdout.startswith(f"{called} on 2 nodes x 8 GPUs")
    trainings = write_trainings(tmp_path / "trainings.json")
    raced = CliRunner().invoke(cli, ["race", str(file), str(trainings), "--same-task", "--at", "10 Gbit/s"])
    assert f"steps of {called} on 2 nodes" in raced.stdout
    assert f"--same-task: steps of {called} (" in " ".join(raced.stdout.split())


class TestRecordedSteps:
    def step(self, tmp_path: Path, name: str = "ours") -> Path:
        # Four buckets whose bytes are those of the sample's gradients in 4 bits.
        return step_files.write(tmp_path / f"{name}.json", step_files.step(step_files.layout(step_files.ddp(4, 14e6))))

    def test_a_recorded_step_is_ranked_with_the_systems(self, file: Path, tmp_path: Path) -> None:
        args = ("--step", self.step(tmp_path), "--systems", "BinSGDM", "--draws", 0, "--format", "json")
        found = json.loads(run(file, *args).output)
        ours = next(one for one in found["systems"] if one["name"] == "recorded ours")
        assert ours["strategy"]["kind"] == "recorded"
        assert not ours["is_ddp"]
        assert (ours["pays"], ours["step_pays"]) == ("convergence unknown", "pays")
        assert {"BinSGDM", "DDP fp32"} < {one["name"] for one in found["systems"]}
        (tmp_path / "other").mkdir()
        other = self.step(tmp_path / "other")
        names = {one["name"] for one in json.loads(run(file, "--step", other, *args).output)["systems"]}
        assert {f"recorded {path}" for path in (tmp_path / "ours.json", other)} < names

    def test_one_that_does_not_fit_is_left_out_with_the_reason(self, file: Path, tmp_path: Path) -> None:
        ops = [[step_files.compute("forward")], [step_files.collective("all_gather", 1e6)]]
        grown = step_files.write(tmp_path / "grown.json", step_files.step(step_files.layout(ops, 4)))
        found = json.loads(run(file, "--step", grown, "--systems", "BinSGDM", "--draws", 0, "--format", "json").output)
        assert "record a second layout" in found["left_out"]["recorded grown"]
        page = " ".join(run(file, "--step", grown, "--systems", "BinSGDM", "--draws", 0, "--all").output.split())
        assert "not predicted: recorded grown: " in page


@pytest.fixture(scope="module")
def too_large() -> Advice:
    """Return the advice where DDP does not fit, and what shards the optimizer's state does."""
    memory = StepMemory(
        parameters=Size(4e9), gradients=Size(4e9), optimizer=Size(100e9), activations_per_sample=Size(1e9)
    )
    given = scenario(workload=replace(WORKLOAD, memory=memory))
    given = replace(given, cluster=replace(given.cluster, gpu="A100-80GB"))
    return advise(given, names=chosen(["TernGrad", "ByteGrad"]))


class TestWhatDoesNotFit:
    def test_the_baseline_is_no_alternative_to_itself(self, too_large: Advice) -> None:
        assert too_large.baseline == "HSDP bf16"
        assert [one.name for one in too_large.others] == [one.name for one in too_large.systems if one.name in LARGE]
        assert too_large.answer is None
        assert not too_large.accumulated

    def test_it_is_no_reason_against_what_fits(self, too_large: Advice) -> None:
        assert not any(one.may_fit for one in too_large.others)
        assert answer(too_large) == {"Answer": "nothing else fits the GPU."}

    def test_each_repair_is_told_once(self, too_large: Advice) -> None:
        page = str(ranking_page(too_large))
        told = [one for one in page.split("does not fit: ")[1:] if "takes" in one]
        assert len({one.partition("): ")[2] for one in told}) == len(told)
        assert all(f"{name} (" in "".join(told) for name in (*LARGE, "DDP fp32"))
        assert "note: does not fit" not in page

    def test_it_is_not_drawn(self, too_large: Advice) -> None:
        with pytest.raises(SimnetError, match="nothing fits the GPU but what others are compared with"):
            figures.advice(too_large)
