"""Times of every rank from measurement files and from traces; what does not belong together is refused in one line."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simnet.calibration import variation_files
from simnet.core.errors import SimnetError
from tests.helpers import kineto_traces, rank_runs, training_samples
from tests.helpers.golden import GLOO

COMPUTE_S = rank_runs.times(ranks=4, steps=12, slow={2: 1.5})


def test_a_measurement_file_holds_the_times_of_every_rank(tmp_path: Path) -> None:
    found = variation_files.read([rank_runs.measurement(tmp_path / "m.json", COMPUTE_S)])
    assert found.compute_s.tolist() == COMPUTE_S.tolist()
    assert (found.num_ranks, found.num_steps, found.ranks_per_node) == (4, 12, 2)
    last = [one.last for one in found.collectives]
    assert last == COMPUTE_S.argmax(axis=0).tolist()
    waited = found.collectives[0].waits_s
    assert waited == pytest.approx(COMPUTE_S[:, 0].max() - COMPUTE_S[:, 0])


def test_several_files_of_one_training_follow_each_other(tmp_path: Path) -> None:
    parts = [rank_runs.measurement(tmp_path / f"{n}.json", part) for n, part in enumerate(np.hsplit(COMPUTE_S, 2))]
    assert variation_files.read(parts).compute_s.tolist() == COMPUTE_S.tolist()


def test_without_messages_nobody_comes_last(tmp_path: Path) -> None:
    path = training_samples.write(
        tmp_path / "m.json", rank_runs.rows(COMPUTE_S, "own_work"), num_nodes=2, ranks_per_node=2
    )
    found = variation_files.read([path])
    assert found.collectives == ()


@pytest.mark.parametrize("on_gpu", [False, True])
def test_traces_of_all_ranks_hold_the_same(on_gpu: bool, tmp_path: Path) -> None:
    rank_runs.traces(tmp_path / "run", COMPUTE_S, on_gpu=on_gpu)
    found = variation_files.read([tmp_path / "run"])
    assert found.compute_s == pytest.approx(COMPUTE_S, abs=2e-6)
    assert found.own_s == pytest.approx(COMPUTE_S, abs=2e-6)
    assert found.ranks_per_node == 2
    assert [one.last for one in found.collectives] == COMPUTE_S.argmax(axis=0).tolist()
    assert found.collectives[0].waits_s == pytest.approx(COMPUTE_S[:, 0].max() - COMPUTE_S[:, 0], abs=2e-6)
    assert found.notes == ()


def test_traces_may_be_packed_and_given_one_by_one_in_any_order(tmp_path: Path) -> None:
    paths = rank_runs.traces(tmp_path, COMPUTE_S)
    packed = tmp_path / "rank0.json.gz"
    packed.write_bytes(gzip.compress(paths[0].read_bytes()))
    assert variation_files.read([*reversed(paths[1:]), packed]).compute_s == pytest.approx(COMPUTE_S, abs=2e-6)


def refusal(paths: list[Path], ranks_per_node: int | None = None) -> str:
    with pytest.raises(SimnetError) as caught:
        variation_files.read(paths, ranks_per_node)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def traced(tmp_path: Path, compute_s: Any = COMPUTE_S, **how: Any) -> list[Path]:
    return rank_runs.traces(tmp_path / "run", compute_s, **how)


def rank(number: int, path: Path, **changes: Any) -> Path:
    about = json.loads(path.read_text())["distributedInfo"]
    return rank_runs.edited(path, distributedInfo={**about, "rank": number, **changes})


def alone(tmp_path: Path) -> list[Path]:
    return traced(tmp_path)[:1]


def a_rank_missing(tmp_path: Path) -> list[Path]:
    return traced(tmp_path)[:3]


def a_rank_twice(tmp_path: Path) -> list[Path]:
    paths = traced(tmp_path)
    return [*paths[:3], rank(2, paths[3])]


def fewer_steps(tmp_path: Path) -> list[Path]:
    paths = traced(tmp_path)
    kineto_traces.write(paths[1], rank_runs.trace(COMPUTE_S[:, :11], 1))
    return paths


def other_steps(tmp_path: Path) -> list[Path]:
    paths = traced(tmp_path)
    kineto_traces.write(paths[1], rank_runs.trace(COMPUTE_S, 1, first=4))
    return paths


def another_run_of_more_ranks(tmp_path: Path) -> list[Path]:
    paths = traced(tmp_path)
    return [*paths[:3], rank(3, paths[3], world_size=8)]


def another_day(tmp_path: Path) -> list[Path]:
    paths = traced(tmp_path)
    rank_runs.edited(paths[2], baseTimeNanoseconds=1_790_943_426_000_000_000)
    return paths


def other_collectives(tmp_path: Path) -> list[Path]:
    paths = traced(tmp_path)
    paths[3].write_text(paths[3].read_text().replace("gloo:all_reduce", "gloo:all_gather"))
    return paths


def a_process_alone(tmp_path: Path) -> list[Path]:
    return [rank_runs.edited(traced(tmp_path)[0], distributedInfo=None)]


def a_rank_beyond(tmp_path: Path) -> list[Path]:
    return [rank(4, traced(tmp_path)[0])]


def no_time(tmp_path: Path) -> list[Path]:
    paths = traced(tmp_path)
    text = paths[0].read_text()
    paths[0].write_text(re.sub(r'"dur": [\d.]+', '"dur": "long"', text, count=1))
    return paths


def no_steps(tmp_path: Path) -> list[Path]:
    paths = traced(tmp_path)
    paths[0].write_text(paths[0].read_text().replace("ProfilerStep", "Step"))
    return paths


def no_compute(tmp_path: Path) -> list[Path]:
    paths = traced(tmp_path)
    paths[0].write_text(paths[0].read_text().replace("aten::mm", "c10d::wait"))
    return paths


def a_step_of_no_time(tmp_path: Path) -> list[Path]:
    paths = traced(tmp_path)
    whole = json.loads(paths[0].read_text())
    mark = next(one for one in whole["traceEvents"] if one["name"] == "ProfilerStep#5")
    for one in whole["traceEvents"]:
        if mark["ts"] <= one["ts"] < mark["ts"] + mark["dur"]:
            one["dur"] = 0
    return [rank_runs.edited(paths[0], traceEvents=whole["traceEvents"]), *paths[1:]]


def few_steps(tmp_path: Path) -> list[Path]:
    return traced(tmp_path, COMPUTE_S[:, :5])


def no_hosts(tmp_path: Path) -> list[Path]:
    return [rank_runs.edited(path, host_name="") for path in traced(tmp_path)]


def hosts_in_turns(tmp_path: Path) -> list[Path]:
    return [rank_runs.edited(path, host_name=f"n{at % 2}") for at, path in enumerate(traced(tmp_path))]


def an_empty_file(tmp_path: Path) -> list[Path]:
    (tmp_path / "empty.json").write_text("\n")
    return [tmp_path / "empty.json"]


def an_empty_folder(tmp_path: Path) -> list[Path]:
    return [tmp_path]


def a_log(tmp_path: Path) -> list[Path]:
    (tmp_path / "run.log").write_text("# nThread 1")
    return [tmp_path / "run.log"]


def other_json(tmp_path: Path) -> list[Path]:
    (tmp_path / "x.json").write_text("{}")
    return [tmp_path / "x.json"]


def a_missing_file(tmp_path: Path) -> list[Path]:
    return [tmp_path / "none.json"]


def one_file_twice(tmp_path: Path) -> list[Path]:
    return [traced(tmp_path)[0], tmp_path / "run"]


def of_two_kinds(tmp_path: Path) -> list[Path]:
    return [*traced(tmp_path), measured(tmp_path)]


def measured(tmp_path: Path, rows: Any = None, **setup: Any) -> Path:
    layout = {"num_nodes": 2, "ranks_per_node": 2, **setup}
    return training_samples.write(tmp_path / "m.json", rank_runs.rows(COMPUTE_S) if rows is None else rows, **layout)


def without_ranks(tmp_path: Path) -> list[Path]:
    return [measured(tmp_path, [training_samples.step(0.1, training_samples.DENSE)])]


def two_strategies(tmp_path: Path) -> list[Path]:
    return [measured(tmp_path, [*rank_runs.rows(COMPUTE_S), *rank_runs.rows(COMPUTE_S, strategy="qsgd")])]


def another_training(tmp_path: Path) -> list[Path]:
    return [measured(tmp_path), rank_runs.measurement(tmp_path / "other.json", COMPUTE_S, batch=16)]


def a_series_missing(tmp_path: Path) -> list[Path]:
    return [measured(tmp_path, rank_runs.rows(COMPUTE_S)[:-1])]


def a_series_twice(tmp_path: Path) -> list[Path]:
    rows = rank_runs.rows(COMPUTE_S)
    return [measured(tmp_path, [*rows, rows[0]])]


def a_shorter_series(tmp_path: Path) -> list[Path]:
    rows = rank_runs.rows(COMPUTE_S)
    return [measured(tmp_path, [*rows[:-1], {**rows[-1], "values": rows[-1]["values"][1:]}])]


def more_steps_than_computes(tmp_path: Path) -> list[Path]:
    rows = rank_runs.rows(COMPUTE_S)
    kept = [{**one, "values": one["values"][1:]} if one["name"] == "rank_step" else one for one in rows]
    return [measured(tmp_path, kept)]


def a_time_in_words(tmp_path: Path) -> list[Path]:
    rows = rank_runs.rows(COMPUTE_S)
    rows[3]["values"][5] = "fast"
    return [measured(tmp_path, rows)]


def one_measured_rank(tmp_path: Path) -> list[Path]:
    rows = rank_runs.rows(COMPUTE_S[:1])
    return [measured(tmp_path, rows, num_nodes=1, ranks_per_node=1, ranks_on_machine=1)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            alone,
            "rank0.json: rank 0 of 4 alone: a slow rank shows in comparison with others; give the traces of all ranks",
        ),
        (a_rank_missing, "rank0.json: rank 3 of 4 is missing: must be one trace of every rank; add it"),
        (a_rank_twice, "rank3.json: rank 2, as "),
        (fewer_steps, "rank1.json: 11 steps, "),
        (other_steps, "rank1.json: ProfilerStep#4 where "),
        (another_run_of_more_ranks, "rank3.json: of 8 ranks, and "),
        (another_day, "must be traces of one run; give those of all its ranks, and no others"),
        (other_collectives, "rank3.json: 24 of 24 collectives lack some of their ranks: must be traces of one run"),
        (a_process_alone, "rank0.json: distributedInfo: missing: must say the rank; profile every rank"),
        (a_rank_beyond, "rank0.json: distributedInfo: rank 4 of 4: must be below that"),
        (no_time, "rank0.json: traceEvents[0].dur: 'long': must be a number of microseconds: export the trace again"),
        (no_steps, "rank0.json: no ProfilerStep: call prof.step()"),
        (no_compute, "rank0.json: ProfilerStep#3: nothing was computed in it; profile whole training steps"),
        (a_step_of_no_time, "rank0.json: ProfilerStep#5: nothing was computed in it; profile whole training steps"),
        (few_steps, ": 5 steps of 4 ranks: must be at least 7, since fewer have no interval of the median; measure"),
        (no_hosts, "rank0.json: does not say which ranks share a node: give --ranks-per-node"),
        (hosts_in_turns, "rank0.json: does not say which ranks share a node: give --ranks-per-node"),
        (an_empty_file, "empty.json: is empty; copy it again from its source"),
        (an_empty_folder, ": no .json or .json.gz file in it; give files of simnet measure training, or the traces"),
        (a_log, "run.log: unknown kind of file; give files of simnet measure training"),
        (other_json, "x.json: unknown kind of file; give files of simnet measure training"),
        (a_missing_file, "none.json: cannot be read: No such file or directory"),
        (one_file_twice, "rank0.json: is given twice; give each file once"),
        (of_two_kinds, "m.json is a measurement: give one kind of file"),
        (without_ranks, "m.json: holds no times of single ranks: give a file of simnet measure training with several"),
        (two_strategies, "m.json: 2 trainings, such as m with all_reduce and m with qsgd: must be one; measure one"),
        (another_training, "other.json: another training than "),
        (a_series_missing, "m.json: rank_compute: rank 3 is missing: must be one of every rank; measure again"),
        (a_series_twice, "m.json: rank_step: 5 series of 4 ranks: must be one of every rank; measure again"),
        (a_shorter_series, "m.json: rank_compute: rank 3 has 11 steps, rank 0 has 12: must be as many; measure again"),
        (more_steps_than_computes, "m.json: rank_step and rank_compute differ in their number: must be as many"),
        (a_time_in_words, "m.json: series.3.values.5: 'fast': write a number without quotes"),
        (
            one_measured_rank,
            "m.json: one rank only: a slow rank shows in comparison with others; give the files of all ranks",
        ),
    ],
)
def test_files_that_do_not_hold_every_rank_of_one_run_are_refused(
    given: Callable[[Path], list[Path]], message: str, tmp_path: Path
) -> None:
    assert message in refusal(given(tmp_path))


def test_ranks_of_a_node_are_taken_from_the_option_where_traces_do_not_say_them(tmp_path: Path) -> None:
    paths = no_hosts(tmp_path)
    assert variation_files.read(paths, 4).ranks_per_node == 4
    assert "--ranks-per-node 3: the traces are of 4 ranks: must divide that" in refusal(paths, 3)
    assert "--ranks-per-node: has no effect on " in refusal([measured(tmp_path)], 2)


def test_a_recorded_trace_of_gloo_alone_is_refused_as_one_rank() -> None:
    assert "rank 0 of 2 alone: a slow rank shows in comparison with others" in refusal([GLOO])
