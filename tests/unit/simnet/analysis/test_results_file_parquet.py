"""The Parquet file of a sweep: read back whole, and refused where it is damaged or none."""

import sys
from pathlib import Path
from typing import Any

import pytest

import simnet
from simnet.analysis import results_file
from simnet.core.errors import SimnetError
from simnet.engine.result import to_json
from simnet.engine.scenario import load_experiment
from simnet.report.frame import read_frame
from simnet.report.rows import kinds, plain, row
from tests.helpers.needs import needs
from tests.helpers.scenario_samples import SWEEP, pod, write

needs("pyarrow")
import pyarrow
from pyarrow import parquet


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    scenario = write(folder / "pod.toml", pod(sweep=SWEEP, question="Wächst es? \u2192"))
    return simnet.sweep_to_parquet(str(scenario), output=folder, progress=False)


def test_the_rows_can_be_read_without_simnet(file: Path) -> None:
    columns = parquet.read_table(file, columns=["cluster.num_nodes", "iteration_s", "strategy"]).to_pydict()
    assert columns["cluster.num_nodes"] == [1, 2, 4, 1, 2, 4]
    assert set(columns["strategy"]) == {"binsgdm"}
    assert all(0 < seconds < 10 for seconds in columns["iteration_s"])


def test_whole_results_come_back_with_their_question(file: Path) -> None:
    found = results_file.read(file.parent)
    assert found.question == "Wächst es? \u2192"
    assert len(found.points) == 6
    assert [axis.key for axis in found.axes] == list(SWEEP)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], pyarrow.int64()),
        ([1, 2.5], pyarrow.float64()),
        ([True, False], pyarrow.bool_()),
        ([True, 1], pyarrow.string()),
        (["bf16", "größer"], pyarrow.string()),
        ([{"a": [1]}, "x"], pyarrow.string()),
        ([1, 2**70], pyarrow.string()),
    ],
    ids=str,
)
def test_a_swept_key_has_the_type_of_its_values(values: list[Any], kind: Any, tmp_path: Path) -> None:
    columns = kinds({"key": values})
    assert next(iter(columns)) == "key"
    counted: list[int] = []
    with (tmp_path / "a.parquet").open("wb") as out:
        run = simnet.simulate("bert_base_10gbit", draws=0)
        only = {"key": columns["key"]}
        points = [results_file.FlatPoint(plain({"key": value}, only), run) for value in values]
        results_file.write_parquet(out, only, points, lambda count: counted.append(count) or _head())
    assert counted == [len(values)]
    found = results_file.read_columns(tmp_path / "a.parquet")
    assert found.schema.field("key").type == kind
    assert len(set(map(str, found["key"].to_pylist()))) == len(values)


def _head() -> results_file.ParquetHead:
    return results_file.ParquetHead(version="1", name="a", question="", axes=(), num_refused=0, refused=())


def test_every_column_of_a_row_has_a_place_in_the_file() -> None:
    small = {"cluster.num_nodes": 2, "cluster.ranks_per_node": 2}
    jitter = {"cluster.faults": [{"kind": "compute_jitter", "cv": 0.05}], "run.iterations": 3}
    for settings in ({}, jitter, {"baseline": None}):
        run = simnet.simulate("bert_base_10gbit", {**small, **settings}, draws=20)
        columns = kinds({})
        given = row(run)
        assert set(given) <= set(columns)
        for name, value in plain(given, columns).items():
            accepted = {"text": str, "whole": int, "number": (int, float), "truth": bool}[columns[name]]
            assert value is None or isinstance(value, accepted), name


def test_more_points_than_figures_take_are_refused_and_rows_are_not(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results_file, "MOST_READ", 5)
    rule = "6 points: at most 5 are read whole; choose some by simnet.report.frame.read_frame"
    with pytest.raises(SimnetError, match=rf"^{file}: {rule}$"):
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


@pytest.mark.parametrize("damage", ["cut", "empty", "text", "middle"])
def test_a_damaged_file_is_refused(file: Path, tmp_path: Path, damage: str) -> None:
    whole = file.read_bytes()
    middle = len(whole) // 3
    content = {
        "cut": whole[:-30],
        "empty": b"",
        "text": b"a,b\n1,2\n",
        "middle": whole[:middle] + bytes(200) + whole[middle + 200 :],
    }[damage]
    path = tmp_path / "results.parquet"
    path.write_bytes(content)
    with pytest.raises(SimnetError, match=rf"^{path}: the file is damaged \(.*\); run the sweep again$"):
        results_file.read(path)


def test_a_table_of_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"a": [1]}), path)
    rule = "not results of simnet sweep: name the results.parquet of a sweep, or its folder"
    for read in (results_file.read, read_frame):
        with pytest.raises(SimnetError, match=rf"{path}: {rule}$"):
            read(path)


def test_a_file_of_another_format_is_refused(file: Path, tmp_path: Path) -> None:
    head = parquet.read_metadata(file).metadata[b"simnet"].replace(b'"format":', b'"format":9', 1)
    path = tmp_path / "results.parquet"
    parquet.write_table(parquet.read_table(file).replace_schema_metadata({b"simnet": head}), path)
    with pytest.raises(
        SimnetError, match=rf"^{path}: format 9\d+: this version reads format \d+; run the sweep again$"
    ):
        results_file.read(path)


def test_a_missing_file_and_a_missing_pyarrow_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SimnetError, match=r"no\.parquet: no such file: name the results\.parquet of a sweep, or its"):
        results_file.read(tmp_path / "no.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    rule = r"pyarrow is missing: a Parquet file needs it; pip install 'binsgdm\[dask\]'$"
    with pytest.raises(SimnetError, match=f"^sweep_to_parquet: results.parquet: {rule}"):
        simnet.sweep_to_parquet("speedup", output=tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
