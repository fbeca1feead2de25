"""Times of every rank from measurement files and from traces; what does not belong together is refused in one line."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simnet.calibration import variation_files
from tests.helpers import kineto_traces, rank_runs, training_samples
from tests.helpers.refusals import refused

COMPUTE_S = rank_runs.times(ranks=4, steps=12, slow={2: 1.5})


@pytest.mark.parametrize("on_gpu", [False, True])
def test_traces_of_all_ranks_hold_the_same_packed_and_in_any_order(on_gpu: bool, tmp_path: Path) -> None:
    paths = rank_runs.traces(tmp_path / "run", COMPUTE_S, on_gpu=on_gpu)
    packed = tmp_path / "rank0.json.gz"
    packed.write_bytes(gzip.compress(paths[0].read_bytes()))
    for given in ([tmp_path / "run"], [*reversed(paths[1:]), packed]):
        found = variation_files.read(given)
        assert found.compute_s == pytest.approx(COMPUTE_S, abs=2e-6)
        assert found.own_s == pytest.approx(COMPUTE_S, abs=2e-6)
        assert found.ranks_per_node == 2
        assert [one.last for one in found.collectives] == COMPUTE_S.argmax(axis=0).tolist()
        assert found.collectives[0].waits_s == pytest.approx(COMPUTE_S[:, 0].max() - COMPUTE_S[:, 0], abs=2e-6)
        assert found.notes == ()


def traced(tmp_path: Path, compute_s: Any = COMPUTE_S, **how: Any) -> list[Path]:
    return rank_runs.traces(tmp_path / "run", compute_s, **how)


def rank(number: int, path: Path, **changes: Any) -> Path:
    about = json.loads(path.read_text())["distributedInfo"]
    return rank_runs.edited(path, distributedInfo={**about, "rank": number, **changes})


def edited(how: Callable[[list[Path]], Any], compute_s: Any = COMPUTE_S) -> Callable[[Path], list[Path]]:
    """Return what makes the traces of all ranks and changes them; it may return others."""

    def given(tmp_path: Path) -> list[Path]:
        paths = traced(tmp_path, compute_s)
        return how(paths) or paths

    return given


def replaced(number: int, old: str, new: str) -> Callable[[Path], list[Path]]:
    return edited(lambda paths: paths[number].write_text(re.sub(old, new, paths[number].read_text())) and None)


def other_trace(**how: Any) -> Callable[[Path], list[Path]]:
    steps = how.pop("steps", 12)
    return edited(lambda paths: kineto_traces.write(paths[1], rank_runs.trace(COMPUTE_S[:, :steps], 1, **how)) and None)


def a_step_of_no_time(paths: list[Path]) -> list[Path]:
    whole = json.loads(paths[0].read_text())
    mark = next(one for one in whole["traceEvents"] if one["name"] == "ProfilerStep#5")
    for one in whole["traceEvents"]:
        if mark["ts"] <= one["ts"] < mark["ts"] + mark["dur"]:
            one["dur"] = 0
    return [rank_runs.edited(paths[0], traceEvents=whole["traceEvents"]), *paths[1:]]


def on_hosts(name: str) -> Callable[[Path], list[Path]]:
    return edited(lambda paths: [rank_runs.edited(one, host_name=name.format(at % 2)) for at, one in enumerate(paths)])


def a_file(name: str, text: str) -> Callable[[Path], list[Path]]:
    return lambda tmp_path: (tmp_path / name).write_text(text) and [tmp_path / name]


def measured(tmp_path: Path, rows: Any = None, **setup: Any) -> Path:
    layout = {"num_nodes": 2, "ranks_per_node": 2, **setup}
    return training_samples.write(tmp_path / "m.json", rank_runs.rows(COMPUTE_S) if rows is None else rows, **layout)


def of_rows(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Callable[[Path], list[Path]]:
    return lambda tmp_path: [measured(tmp_path, change(rank_runs.rows(COMPUTE_S)))]


def later(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "values": row["values"][1:]}


def in_words(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows[3]["values"][5] = "fast"
    return rows


ONE_RANK: dict[str, Any] = {"num_nodes": 1, "ranks_per_node": 1, "ranks_on_machine": 1}
DAY_NS = 1_790_943_426_000_000_000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (edited(lambda paths: paths[:1]), "rank0.json: rank 0 of 4 alone: a slow rank shows in comparison with others"),
        (edited(lambda paths: paths[:3]), "rank0.json: rank 3 of 4 is missing: must be one trace of every rank; add"),
        (edited(lambda paths: [*paths[:3], rank(2, paths[3])]), "rank3.json: rank 2, as "),
        (other_trace(steps=11), "rank1.json: 11 steps, "),
        (other_trace(first=4), "rank1.json: ProfilerStep#4 where "),
        (edited(lambda paths: [*paths[:3], rank(3, paths[3], world_size=8)]), "rank3.json: of 8 ranks, and "),
        (edited(lambda paths: rank_runs.edited(paths[2], baseTimeNanoseconds=DAY_NS) and None),
         "must be traces of one run; give those of all its ranks, and no others"),
        (replaced(3, "gloo:all_reduce", "gloo:all_gather"), "rank3.json: 24 of 24 collectives lack some of their"),
        (edited(lambda paths: [rank_runs.edited(paths[0], distributedInfo=None)]),
         "rank0.json: distributedInfo: missing: must say the rank; profile every rank"),
        (edited(lambda paths: [rank(4, paths[0])]), "rank0.json: distributedInfo: rank 4 of 4: must be below that"),
        (replaced(0, r'"dur": [\d.]+', '"dur": "long"'), "rank0.json: traceEvents[0].dur: 'long': must be a number of"),
        (replaced(0, "ProfilerStep", "Step"), "rank0.json: no ProfilerStep: call prof.step()"),
        (replaced(0, "aten::mm", "c10d::wait"), "rank0.json: ProfilerStep#3: nothing was computed in it; profile"),
        (edited(a_step_of_no_time), "rank0.json: ProfilerStep#5: nothing was computed in it; profile whole training"),
        (edited(lambda _: None, COMPUTE_S[:, :5]), ": 5 steps of 4 ranks: must be at least 7, since fewer have no"),
        (on_hosts(""), "rank0.json: does not say which ranks share a node: give --ranks-per-node"),
        (on_hosts("n{}"), "rank0.json: does not say which ranks share a node: give --ranks-per-node"),
        (a_file("empty.json", "\n"), "empty.json: is empty; copy it again from its source"),
        (lambda tmp_path: [tmp_path], ": no .json or .json.gz file in it; give files of simnet measure training, or"),
        (a_file("run.log", "# nThread 1"), "run.log: unknown kind of file; give a measurement file or a torch."),
        (a_file("x.json", "{}"), "x.json: unknown kind of file; give a measurement file or a torch.profiler trace"),
        (lambda tmp_path: [tmp_path / "none.json"], "none.json: no such file"),
        (edited(lambda paths: [paths[0], paths[0].parent]), "rank0.json: is given twice; give each file once"),
        (lambda tmp_path: [*traced(tmp_path), measured(tmp_path)], "m.json is a measurement: give one kind of file"),
        (of_rows(lambda _: [training_samples.step(0.1, training_samples.DENSE)]),
         "m.json: holds no times of single ranks: give a file of simnet measure training with several"),
        (of_rows(lambda rows: [*rows, *rank_runs.rows(COMPUTE_S, strategy="qsgd")]),
         "m.json: 2 trainings, such as m with all_reduce and m with qsgd: must be one; measure one"),
        (lambda tmp_path: [measured(tmp_path), rank_runs.measurement(tmp_path / "other.json", COMPUTE_S, batch=16)],
         "other.json: another training than "),
        (of_rows(lambda rows: rows[:-1]), "m.json: rank_compute: rank 3 is missing: must be one of every rank"),
        (of_rows(lambda rows: [*rows, rows[0]]), "m.json: rank_step: 5 series of 4 ranks: must be one of every rank"),
        (of_rows(lambda rows: [*rows[:-1], later(rows[-1])]), "m.json: rank_compute: rank 3 has 11 steps, rank 0 has"),
        (of_rows(lambda rows: [later(one) if one["name"] == "rank_step" else one for one in rows]),
         "m.json: rank_step and rank_compute differ in their number: must be as many"),
        (of_rows(in_words), "m.json: series.3.values.5: 'fast': write a number without quotes"),
        (lambda tmp_path: [measured(tmp_path, rank_runs.rows(COMPUTE_S[:1]), **ONE_RANK)],
         "m.json: one rank only: a slow rank shows in comparison with others; give the files of all ranks"),
    ],
)  # fmt: skip
def test_files_that_do_not_hold_every_rank_of_one_run_are_refused(
    given: Callable[[Path], list[Path]], message: str, tmp_path: Path
) -> None:
    with refused(message):
        variation_files.read(given(tmp_path))


def test_ranks_of_a_node_are_taken_from_the_option_where_traces_do_not_say_them(tmp_path: Path) -> None:
    paths = on_hosts("")(tmp_path)
    assert variation_files.read(paths, 4).ranks_per_node == 4
    with refused("--ranks-per-node 3: the traces are of 4 ranks: must divide that"):
        variation_files.read(paths, 3)
    with refused("--ranks-per-node: has no effect on "):
        variation_files.read([measured(tmp_path)], 2)
