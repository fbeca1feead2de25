"""Logs of nccl-tests: every layout is read, or refused in a sentence."""

import json
from dataclasses import replace

import pytest

from simnet.calibration import nccl_log
from simnet.calibration.nccl_log import NcclLog
from simnet.core import files
from tests.helpers import nccl_logs
from tests.helpers.nccl_logs import COLUMNS, HEADER, NEW, OLD, Run
from tests.helpers.refusals import refused


def parse(text: str, name: str) -> NcclLog:
    (found,) = nccl_log.parse(text, name)
    return found


def log(gpus: int) -> NcclLog:
    return nccl_log.read(files.data_path("published", "nccl-tests", f"a100_azure_nd_v4_{gpus}gpus.log"))


@pytest.mark.parametrize("text", [NEW, OLD, "".join(f"[1,0]<stdout>:{line}\n" for line in NEW.splitlines())])
def test_both_layouts_are_read_with_and_without_a_rank_in_front(text: str) -> None:
    found = parse(text, "x.log")
    assert (found.collective, found.gpu, found.num_nodes, found.ranks_per_node) == ("all_reduce", "NVIDIA H100", 1, 2)
    assert [(row.message_bytes, row.times_s) for row in found.rows] == [(1048576, (10e-6, 11e-6))]


def test_a_collective_without_times_in_place_is_read_by_its_name() -> None:
    text = NEW.replace("# nThread", "# Collective test starting: alltoall_perf\n# nThread")
    text = text.replace("11.00   95.33   95.33     N/A", "N/A     N/A     N/A     N/A").replace("sum", "none")
    found = parse(text, "x.log")
    assert found.collective == "all_to_all"
    assert found.rows[0].times_s == (10e-6, None)


def of_json(data: object) -> list[NcclLog]:
    assert nccl_log.looks_like_json(data)
    return nccl_log.of_json(json.loads(json.dumps(data)), "x.json")


def json_with(**changes: object) -> object:
    return RUN.as_json() | changes


RUN = Run(num_nodes=2, ranks_per_node=4)
"""All-reduces on 8 GPUs, 64 sizes of factor 2."""
THREE_RANKS = "Rank  1 Group  0 Pid  9 on b device  0 [0] H\n#  Rank  2 Group"
OF_OTHERS = "# all_reduce_perf\n" + NEW.replace("104.86  104.86", "104.86  183.5")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (NEW.replace("Rank", "rank"), "no line '# Rank 0 Pid"),
        (HEADER, "no line with a time"),
        (NEW.replace("Rank  1 Group", THREE_RANKS), "must have the same number"),
        (NEW.replace("104.86       0", "104.86       3"), "3 wrong values"),
        (NEW.replace("10.00  104.86", "10.00"), "line 5: '1048576 ... must have the columns of its head"),
        (NEW.replace("10.00", "0.00"), "line 5: '1048576"),
        (NEW.replace("10.00", "1000"), "times that are those of its bandwidths; drop the line"),
        (NEW.replace("10.00", "nan"), "line 5: '1048576"),
        (NEW.replace("    1048576  ", "1" * 50 + " "), "line 5: '1111"),
        (NEW.replace("Rank  1", "Rank 9"), "nodes with [2] ranks"),
        (OF_OTHERS, "2 ranks are listed: the bandwidths are of another number"),
        (RUN.text([name.replace("time", "cputime") for name in COLUMNS]), "cputime: times of the CPU"),
        (nccl_logs.mixed(Run(host="a"), Run(host="b")), "rank 0 is listed twice, on a and b: ... MPI=1"),
        (nccl_logs.mixed(Run(pid=1), Run(pid=2)), "rank 0 is listed twice, on n0: ... MPI=1"),
        (RUN.text(groups=2), "the ranks form 2 groups"),
        (RUN.text() + "# Out of bounds values : 3 FAILED\n", "3 results are out of bounds"),
        (RUN.text(sizes=0) + "n1: Test NCCL failure common.cu:412\n", "no line with a time before it failed"),
        (json_with(results=[]), "no line with a time"),
        (json_with(results=[{"size": 8, "out_of_place": {"cpu_time": 1.0}}]), "times of the CPU"),
        (json_with(results=[{"size": 8, "in_place": {"time": 1.0, "nwrong": 2.0}}]), "line 1: 2 wrong values"),
        (json_with(results=[{"size": "8"}]), "results.0.size"),
        (json_with(config={"devices": []}), "no line '# Rank 0"),
        (
            '[{"name": "AllReduce", "algBw": 1, "busBw": 2}]',
            "-x of rccl-tests: is not read; give what rccl-tests prints",
        ),
    ],
)
def test_what_cannot_be_read_right_is_refused_with_its_reason(given: object, message: str) -> None:
    with refused(*message.split(" ... ")):
        nccl_log.parse(given, "x.log") if isinstance(given, str) else of_json(given)


def test_what_is_odd_and_right_is_read() -> None:
    assert (log(32).num_nodes, log(32).ranks_per_node, len(log(32).rows)) == (4, 8, 23)
    assert parse(NEW.replace("on a device  1", "on b device  1"), "x.log").num_nodes == 2
    lines = "node0:41:52 [0] NCCL INFO Channel 00/02 :    0   1   2   3\n# Avg bus bandwidth    : 68.4\n\n1 2"
    assert rows_of(NEW + lines) == rows_of(NEW)
    assert parse(OF_OTHERS.partition("\n")[2], "x.log").collective == "unknown"
    empty = f"{NEW}0  0  float  sum  -1  9.00  0.00  0.00  0  9.00  0.00  0.00  N/A"
    assert rows_of(empty) == rows_of(NEW)  # less than an element a rank
    whole = Run(ranks_per_node=4).as_json()  # without MPI it names one device of its threads
    whole["config"] |= {"devices": whole["config"]["devices"][:1], "ngpus": 2, "nthreads": 2}
    assert of_json(whole)[0].world_size == 4


def rows_of(text: str) -> list[tuple[int, tuple[float | None, float | None]]]:
    return [(row.message_bytes, row.times_us) for row in parse(text, "x.log").rows]


def test_a_rank_whose_line_is_torn_is_counted_by_the_gap_that_it_leaves() -> None:
    lines = [f"#  Rank  {rank} Group  0 Pid  1 on n{rank // 4} device  {rank % 4} [0] H100" for rank in range(8)]
    rows = "\n".join(NEW.splitlines()[3:])
    log = parse("\n".join([*lines[:5], "#  Rank  5 Gr#  Ra", *lines[6:], rows]), "x.log")
    assert (log.num_nodes, log.ranks_per_node) == (2, 4)


@pytest.mark.parametrize("prefix", ["[1,3]<stdout>:", " 0: ", "015: ", "[pod/nccl-launcher-x7/mpi] ", "10:00:01 "])
def test_what_launchers_put_before_lines_is_passed_over(prefix: str) -> None:
    text = "\n".join(f"{prefix}{line}" for line in RUN.text().splitlines())
    log = parse(text, "x.log")
    assert (log.num_nodes, log.ranks_per_node) == (2, 4)
    assert rows_of(text) == rows_of(RUN.text())


def test_runs_in_one_file_are_split_at_their_heads_and_named_by_what_stands_before() -> None:
    runs = [Run(ranks_per_node=ranks) for ranks in (2, 4)]
    gather = Run(ranks_per_node=4, program="all_gather_perf", ratio=0.75)
    text = "$ ./all_reduce_perf -g 2\n" + "$ ./all_reduce_perf -g 4\n".join(run.text() for run in runs)
    found = nccl_log.parse(text + "$ ./build/all_gather_perf\n" + gather.text(), "x.log")
    assert [(one.collective, one.world_size) for one in found] == [
        ("all_reduce", 2), ("all_reduce", 4), ("all_gather", 4),
    ]  # fmt: skip
    assert [one.name for one in found] == [f"x.log, run {number}" for number in (1, 2, 3)]
    assert len({len(one.rows) for one in found}) == 1


@pytest.mark.parametrize(("operator", "root"), [("none", "-1"), ("", ""), ("sum", "0")])
def test_on_two_ranks_a_program_without_a_name_and_an_operator_is_no_all_reduce(operator: str, root: str) -> None:
    text = Run(ranks_per_node=2, operator=operator, root=root).text()
    assert parse(text, "x.log").collective == "unknown"
    assert parse(Run(ranks_per_node=2).text(), "x.log").collective == "all_reduce"


def test_json_of_nccl_tests_holds_what_its_text_holds() -> None:
    (found,) = of_json(RUN.as_json())
    wanted = parse(RUN.text(), "x.log")
    assert replace(found, rows=()) == replace(wanted, name="x.json", rows=())
    assert [row.message_bytes for row in found.rows] == [row.message_bytes for row in wanted.rows]
    assert found.rows[-1].times_us == pytest.approx(wanted.rows[-1].times_us, rel=1e-3)


def test_the_elasticity_of_a_time_is_1_where_bytes_take_it_and_0_where_latency_does() -> None:
    assert nccl_log.elasticity(parse(RUN.text(), "x")) > 0.9
    assert nccl_log.elasticity(parse(RUN.text(sizes=6), "x")) < 0.1
