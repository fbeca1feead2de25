"""The Parquet file of a sweep: read back whole, and refused where it is damaged or none."""

import sys
from pathlib import Path

import pytest

import simnet
from simnet.analysis import results_file
from simnet.engine.result import to_json
from simnet.engine.scenario import load_experiment
from simnet.report.frame import read_frame
from tests.helpers.needs import needs
from tests.helpers.refusals import refused
from tests.helpers.scenario_samples import SWEEP, pod, write

needs("pyarrow")
import pyarrow
from pyarrow import parquet


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    scenario = write(folder / "pod.toml", pod(sweep=SWEEP, question="Wächst es? \u2192"))
    return simnet.sweep_to_parquet(str(scenario), output=folder, progress=False)


def test_whole_results_come_back_with_their_question(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = results_file.read(file.parent)
    assert found.question == "Wächst es? \u2192"
    assert len(found.points) == 6
    assert [axis.key for axis in found.axes] == list(SWEEP)
    monkeypatch.setattr(results_file, "MOST_READ", 5)
    with refused(f"{file}: 6 points: at most 5 are read whole; choose some by simnet.report.frame.read_frame"):
        results_file.read(file)
    assert len(read_frame(file)) == 6


def test_the_newer_of_two_forms_is_read(file: Path, tmp_path: Path) -> None:
    import os

    (tmp_path / "results.parquet").write_bytes(file.read_bytes())
    experiment = load_experiment(str(file.parent / "pod.toml"))
    assert results_file.file_in(tmp_path).name == "results.parquet"
    (tmp_path / "results.json").write_bytes(to_json(simnet.sweep(str(file.parent / "pod.toml"), progress=False)))
    os.utime(tmp_path / "results.parquet", (1, 1))
    assert results_file.file_in(tmp_path).name == "results.json"
    assert experiment.name == results_file.read(tmp_path).name


def test_what_is_damaged_or_of_others_is_refused(file: Path, tmp_path: Path) -> None:
    path, whole, again = tmp_path / "results.parquet", file.read_bytes(), "run the sweep again"
    middle = len(whole) // 3
    for content in (whole[:-30], b"", b"a,b\n1,2\n", whole[:middle] + bytes(200) + whole[middle + 200 :]):
        path.write_bytes(content)
        with refused(f"); {again}", start=f"{path}: the file is damaged ("):
            results_file.read(path)
    parquet.write_table(pyarrow.table({"a": [1]}), path)
    for read in (results_file.read, read_frame):
        with refused(f"{path}: not results of simnet sweep: name the results.parquet of a sweep, or its folder"):
            read(path)
    head = parquet.read_metadata(file).metadata[b"simnet"].replace(b'"format":', b'"format":9', 1)
    parquet.write_table(parquet.read_table(file).replace_schema_metadata({b"simnet": head}), path)
    with refused(": this version reads format ", f"; {again}", start=f"{path}: format 9"):
        results_file.read(path)


def test_a_missing_file_and_a_missing_pyarrow_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused("no.parquet: no such file: name the results.parquet of a sweep, or its"):
        results_file.read(tmp_path / "no.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    rule = "pyarrow is missing: a Parquet file needs it; in the checkout: pip install '.[dask]'"
    with refused(start=f"sweep_to_parquet: results.parquet: {rule}"):
        simnet.sweep_to_parquet("speedup", output=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
