"""Logs of nccl-tests and rccl-tests: every layout is read, or refused in a sentence."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from simnet.calibration import nccl_log
from simnet.calibration.nccl_log import NcclLog
from simnet.core import files
from simnet.core.errors import SimnetError
from tests.helpers import nccl_logs
from tests.helpers.nccl_logs import COLUMNS, HEADER, NEW, OLD, Run


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


def test_nodes_are_told_apart_by_their_hosts() -> None:
    assert (log(32).num_nodes, log(32).ranks_per_node, len(log(32).rows)) == (4, 8, 23)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NEW.replace("Rank", "rank"), "no line '# Rank 0 Pid"),
        (HEADER, "no line with a time"),
        (NEW.replace("on a device  1", "on b device  1").replace(HEADER, HEADER), "all_reduce"),
        (
            NEW.replace("Rank  1 Group", "Rank  1 Group  0 Pid  9 on b device  0 [0] H\n#  Rank  2 Group"),
            "must have the same number",
        ),
        (NEW.replace("104.86       0", "104.86       3"), "3 wrong values"),
        (NEW.replace("10.00  104.86", "10.00"), "1 torn lines and 0 whole ones, such as .*: run nccl-tests again"),
        (NEW.replace("10.00", "0.00"), "1 torn lines and 0 whole ones"),
        (NEW.replace("Rank  1", "Rank 9"), r"nodes with \[2\] ranks"),
    ],
)
def test_what_is_no_whole_log_is_refused(text: str, message: str) -> None:
    if message == "all_reduce":  # two nodes of one rank are fine
        assert parse(text, "x.log").num_nodes == 2
        return
    with pytest.raises(SimnetError, match=message):
        parse(text, "x.log")


ROW = NEW.splitlines()[-2]


@pytest.mark.parametrize(
    "torn",
    [
        ROW[: len(ROW) // 2],
        ROW[len(ROW) // 2 :],
        ROW[:50] + "[1,7]<stdout>:node7:41:41 NCCL" + ROW[50:],
        ROW.replace("10.00", "10.0010.00"),
        ROW.replace("10.00", "1000"),  # whole in its form, but no time of this bandwidth
        ROW.replace("10.00", "nan"),
        ROW.replace("1048576", "1" * 5000),
    ],
)
def test_torn_lines_are_left_out_and_counted(torn: str) -> None:
    found = parse("\n".join([NEW, ROW, torn]), "x.log")
    assert ([row.times_s for row in found.rows], found.num_torn) == ([(10e-6, 11e-6)] * 2, 1)


def test_messages_of_nccl_and_averages_are_no_torn_lines() -> None:
    lines = "node0:41:52 [0] NCCL INFO Channel 00/02 :    0   1   2   3\n# Avg bus bandwidth    : 68.4\n\n1 2"
    assert parse(NEW + lines, "x.log").num_torn == 0


def test_a_rank_whose_line_is_torn_is_counted_by_the_gap_that_it_leaves() -> None:
    lines = [f"#  Rank  {rank} Group  0 Pid  1 on n{rank // 4} device  {rank % 4} [0] H100" for rank in range(8)]
    rows = "\n".join(NEW.splitlines()[3:])
    found = parse("\n".join([*lines[:5], "#  Rank  5 Gr#  Ra", *lines[6:], rows]), "x.log")
    assert (found.num_nodes, found.ranks_per_node) == (2, 4)


@pytest.mark.parametrize("gpus", [4, 8, 16, 128])
def test_a_rank_whose_line_is_lost_at_the_end_is_told_by_the_ratio_of_bandwidths(gpus: int) -> None:
    path = files.data_path("published", "nccl-tests", f"a100_azure_nd_v4_{gpus}gpus.log")
    lines = [line for line in path.read_text().splitlines() if f"Rank {gpus - 1:2} " not in line]
    found = parse("\n".join(lines), "x.log")
    assert found == replace(log(gpus), name="x.log", rows=found.rows)


def test_a_list_of_ranks_that_does_not_go_with_the_bandwidths_is_refused() -> None:
    text = "# all_reduce_perf\n" + NEW.replace("104.86  104.86", "104.86  183.5")
    with pytest.raises(SimnetError, match="2 ranks are listed: the bandwidths are of another number"):
        parse(text, "x.log")
    assert parse(text.partition("\n")[2], "x.log").collective == "unknown"


RUN = Run(num_nodes=2, ranks_per_node=4)
"""All-reduces on 8 GPUs, 64 sizes of factor 2."""


def rows_of(text: str) -> list[tuple[int, tuple[float | None, float | None]]]:
    return [(row.message_bytes, row.times_us) for row in parse(text, "x.log").rows]


PREFIXES: dict[str, Callable[[str], str]] = {
    "mpirun": "[1,3]<stdout>:{}".format,
    "mpirun 5": "[prterun-head-123@1,0]<stdout>: {}".format,
    "srun": " 0: {}".format,
    "srun, many": "015: {}".format,
    "kubectl": "[pod/nccl-launcher-x7/mpi] {}".format,
    "kubectl, container": "nccl-launcher mpi {}".format,
    "docker compose": "worker-1  | {}".format,
    "time of day": "10:00:01 {}".format,
    "ISO 8601": "2026-01-01T10:00:00.123456789Z {}".format,
    "journal": "Jan 01 10:00:00 host7 all_reduce[412]: {}".format,
    "colors": "\x1b[32m{}\x1b[0m".format,
    "quoted": "> {}".format,
    "indented": "    {}".format,
    "table": lambda line: f"| {' | '.join(line.split())} |" if line and not line.startswith("#") else f"| {line} |",
    "Windows": "{}\r".format,
}


@pytest.mark.parametrize("name", PREFIXES)
def test_what_launchers_put_before_lines_is_passed_over(name: str) -> None:
    text = "\n".join(map(PREFIXES[name], RUN.text().splitlines()))
    found = parse(text, "x.log")
    assert (found.num_nodes, found.ranks_per_node, found.num_torn) == (2, 4, 0)
    assert rows_of(text) == rows_of(RUN.text())


def test_a_log_whose_heading_signs_markdown_has_eaten_is_read() -> None:
    assert rows_of(RUN.text().replace("#  Rank", "Rank").replace("#       size", "size")) == rows_of(RUN.text())


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RUN.text([name.replace("time", "cputime") for name in COLUMNS]), "cputime: times of the CPU"),
        (nccl_logs.mixed(Run(host="a"), Run(host="b")), "rank 0 is listed twice, on a and b: .* MPI=1"),
        (nccl_logs.mixed(Run(pid=1), Run(pid=2)), "rank 0 is listed twice, on n0: .* MPI=1"),
        (RUN.text(groups=2), "the ranks form 2 groups"),
        (RUN.text() + "# Out of bounds values : 3 FAILED\n", "3 results are out of bounds"),
        (RUN.text(sizes=0) + "n1: Test NCCL failure common.cu:412\n", r"no line with a time before it failed"),
    ],
)
def test_what_cannot_be_read_right_is_refused_with_its_reason(text: str, message: str) -> None:
    with pytest.raises(SimnetError, match=message):
        nccl_log.parse(text, "x.log")


def of_json(data: object) -> list[NcclLog]:
    assert nccl_log.looks_like_json(data)
    return nccl_log.of_json(json.loads(json.dumps(data)), "x.json")


def test_json_of_nccl_tests_holds_what_its_text_holds() -> None:
    (found,) = of_json(RUN.as_json())
    wanted = parse(RUN.text(), "x.log")
    assert replace(found, rows=()) == replace(wanted, name="x.json", rows=())
    assert [row.message_bytes for row in found.rows] == [row.message_bytes for row in wanted.rows]
    assert found.rows[-1].times_us == pytest.approx(wanted.rows[-1].times_us, rel=1e-3)


def test_json_without_mpi_names_one_device_of_its_threads() -> None:
    whole = Run(ranks_per_node=4).as_json()
    whole["config"] |= {"devices": whole["config"]["devices"][:1], "ngpus": 2, "nthreads": 2}
    assert of_json(whole)[0].world_size == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"results": []}, "no line with a time"),
        ({"results": [{"size": 8, "out_of_place": {"cpu_time": 1.0}}]}, "times of the CPU"),
        ({"results": [{"size": 8, "in_place": {"time": 1.0, "nwrong": 2.0}}]}, "result 1: 2 wrong values"),
        ({"results": [{"size": "8"}]}, "results.0.size"),
        ({"config": {"devices": []}}, "no line '# Rank 0"),
    ],
)  # fmt: skip
def test_json_that_cannot_be_read_right_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(SimnetError, match=message):
        of_json(RUN.as_json() | change)


def test_records_of_rccl_tests_are_read_as_a_list_as_lines_and_as_csv() -> None:
    records = RUN.as_records()
    lines = "\n".join(json.dumps(one) for one in records)
    forms = [of_json(records), nccl_log.parse(lines, "x.json"), nccl_log.parse(nccl_logs.csv_of(RUN), "x.csv")]
    for (found,) in forms:
        assert (found.collective, found.num_nodes, found.ranks_per_node) == ("all_reduce", 2, 4)
        wanted = dict(sorted(parse(RUN.text(), "x").times()))
        assert dict(sorted(found.times())) == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"wrong": "7"}, "record 1: 7 wrong values"),
        ({"ranks": 9}, "9 ranks on 2 nodes"),
        ({"ranks": 16}, "16 ranks: the bandwidths are of another number"),
        ({"time": "x"}, "record 1: time"),
    ],
)
def test_records_that_cannot_be_read_right_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(SimnetError, match=message):
        of_json([one | change for one in RUN.as_records()])


def test_the_elasticity_of_a_time_is_1_where_bytes_take_it_and_0_where_latency_does() -> None:
    assert nccl_log.elasticity(parse(RUN.text(), "x")) > 0.9
    assert nccl_log.elasticity(parse(RUN.text(sizes=6), "x")) < 0.1
