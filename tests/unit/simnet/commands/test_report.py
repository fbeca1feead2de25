"""`simnet report`: what it writes, and what it refuses."""

import hashlib
from pathlib import Path

import pytest

from simnet import files
from tests.helpers.cli import assert_refused, run

pytest.importorskip("plotly")
BERT = "bert_base_10gbit"


def test_the_page_of_a_scenario_says_how_to_repeat_it(tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    result = run("report", BERT, "--set", "cluster.num_nodes=2", "--systems", "", "-o", str(output))
    assert (result.exit_code, result.stderr) == (0, f"wrote {output}\n")
    text = output.read_text(encoding="utf-8")
    assert "simnet simulate bert_base_10gbit --set cluster.num_nodes=2" in text
    path = files.locate("experiments", BERT)
    assert hashlib.sha256(path.read_bytes()).hexdigest() in text


def test_the_page_of_a_sweep_is_made_of_its_files_alone(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    swept = run("sweep", "speedup", "--set", "cluster.num_nodes=1,4", "--draws", "20", "-o", str(folder))
    assert swept.exit_code == 0
    pages = []
    for source in (folder, folder / "results.json"):
        assert run("report", str(source), "-o", str(tmp_path / "r.html")).exit_code == 0
        pages.append(
            (tmp_path / "r.html")
            .read_text(encoding="utf-8")
            .replace(str(source).removesuffix("/results.json"), "")
            .replace("/results.json", "")
        )
    assert pages[0] == pages[1]
    assert "How much faster: ResNet-50" in pages[0]


def shipped(name: str) -> str:
    return files.locate("experiments", name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("source", "flags", "message"),
    [
        ("nothing", [], "'nothing'"),
        ("{folder}", [], "results.json"),
        ("{folder}/other.json", [], "format"),
        ("{folder}/torn.json", [], "torn.json"),
        ("{folder}/alone.toml", [], "baseline: missing"),
        (BERT, ["--measured", "{folder}/none.json"], "none.json"),
        (BERT, ["--set", "cluster.num_nodes=0"], "cluster.num_nodes: 0"),
    ],
)
def test_what_cannot_be_reported_is_refused_in_one_line(
    tmp_path: Path, source: str, flags: list[str], message: str
) -> None:
    (tmp_path / "other.json").write_text('{"format": 999, "axes": [], "points": []}')
    alone = [line for line in shipped(BERT).splitlines() if not line.startswith("baseline")]
    (tmp_path / "alone.toml").write_text("\n".join(alone))
    (tmp_path / "torn.json").write_text('{"format": 4, "axes": [], "points": [')
    given = [text.format(folder=tmp_path) for text in (source, *flags)]
    output = tmp_path / "report.html"
    assert_refused(run("report", *given, "-o", str(output)), message)
    assert not output.exists()


def test_an_output_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    assert_refused(run("report", BERT, "-o", str(tmp_path)), "is a directory")
    assert_refused(run("report", BERT, "-o", str(tmp_path / "no" / "r.html")), "no such directory")


def test_no_input_is_replaced(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_bytes(files.locate("experiments", BERT).read_bytes())
    before = own.read_bytes()
    assert_refused(run("report", str(own), "--systems", "", "-o", str(own)), "is an input")
    assert own.read_bytes() == before


def test_without_plotly_the_repair_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert_refused(run("report", BERT, "-o", str(tmp_path / "r.html")), "pip install 'binsgdm[report]'")
