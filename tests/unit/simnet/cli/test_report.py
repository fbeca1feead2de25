"""`simnet report`: what it writes, and what it refuses."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from simnet.core import files
from simnet.report import contents
from tests.helpers.cli import run
from tests.helpers.needs import needs
from tests.helpers.training_samples import DENSE, step, write

needs("plotly")
BERT = "bert_base_10gbit"


@pytest.fixture(autouse=True)
def _little_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let figures have few points: what each holds, report/test_contents.py shows."""
    monkeypatch.setattr(contents, "RATES", contents.RATES[2:4])
    monkeypatch.setattr(contents, "MOST_NODES", 1)


@pytest.mark.slow
def test_the_page_of_a_scenario_says_how_to_repeat_it(tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    result = run("report", BERT, "--set", "cluster.num_nodes=2", "--draws", "20", "--systems", "", "-o", str(output))
    assert result.exit_code == 0
    assert re.fullmatch(rf"wrote {re.escape(str(output))} in \d+\.\d s\n", result.stderr)
    text = output.read_text(encoding="utf-8")
    assert "simnet simulate bert_base_10gbit --set cluster.num_nodes=2 --draws 20" in text
    path = files.locate("experiments", BERT)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in text


@pytest.mark.slow
def test_the_page_of_a_sweep_is_made_of_its_files_alone(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    swept = run("sweep", "speedup", "--set", "cluster.num_nodes=1,4", "--draws", "20", "-o", str(folder))
    assert swept.exit_code == 0
    pages = []
    for source in (folder, folder / "results.json"):
        assert run("report", str(source), "-o", str(tmp_path / "r.html")).exit_code == 0
        text = (tmp_path / "r.html").read_text(encoding="utf-8")
        pages.append(text.replace(str(folder), "").replace("/results.json", ""))
    assert pages[0] == pages[1]
    assert "How much faster: ResNet-50" in pages[0]


@pytest.mark.slow
def test_the_json_of_a_run_is_reported_as_it_was_simulated(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    assert run("simulate", BERT, "--draws", "20", "--format", "json", "-o", str(path)).exit_code == 0
    assert run("report", str(path), "--systems", "", "-o", str(tmp_path / "r.html")).exit_code == 0
    written = json.loads(path.read_text(encoding="utf-8"))
    assert f"{written['speedup']:.2f}x (90 % interval" in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_measured_steps_stand_beside_their_predictions_by_the_scenario_as_it_is_set(tmp_path: Path) -> None:
    measured = write(tmp_path / "t.json", [step(1.0, DENSE)])
    pages = []
    for factor in ("1.0", "3.0"):
        flags = ["--measured", str(measured), "--systems", "", "--draws", "20", "-o", str(tmp_path / "r.html")]
        done = run("report", BERT, "--set", f"workload.compute_factor={factor}", *flags)
        assert done.exit_code == 0, done.stderr
        pages.append((tmp_path / "r.html").read_text(encoding="utf-8").partition("The numbers: Predicted and")[2])
    assert ">all_reduce<" in pages[0]
    assert pages[0].partition("</table>")[0] != pages[1].partition("</table>")[0]
