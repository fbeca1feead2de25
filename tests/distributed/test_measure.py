"""Four gloo ranks on two nodes measure together: what they write is read by simnet, and has every group."""

import json
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")

from binsgdm.bench.training import OF_RANKS, PHASES
from simnet.calibration.measurement_file import read
from tests.helpers.launch import exit_code, launch, meeting_point, once, output_to

pytestmark = pytest.mark.slow

WORLD_SIZE, RANKS_PER_NODE = 4, 2
SERIES_OF_TRAINING = 1 + len(PHASES) + len(OF_RANKS) * WORLD_SIZE
"""The step and its phases, of the slowest rank; and what each rank has of its own."""
QUICK = f"--max-repetitions 8 --threads 1 --ranks-per-node {RANKS_PER_NODE}"
MODEL = f"--model mlp_200k --batch 2 {QUICK}"
COMMANDS = {
    "kernels": f"kernels --kernels cpu --max-size 1024 --system qsgd --max-seconds 0.01 {QUICK}",
    "collectives": f"collectives --max-size 2^20 --min-size 2^18 --nic-gbit-per-s 1 {QUICK}",
    "model": f"model {MODEL}",
    "binsgdm": f"training --strategy binsgdm:overlap --bucket-cap-mb 0.3 {MODEL}",
    "systems": f"training --strategy one_bit_adam --strategy qsgd:bits=2 {MODEL}",
    "own_work": f"training --without-messages --speed --strategy all_reduce --strategy binsgdm:flat {MODEL}",
    "interference": f"interference {MODEL}",
    "no force": f"model {MODEL} -o model.json",
    "mistake": f"training --strategy all_reduce:overlap {MODEL}",
}


def measure(rank: int, work: dict[str, tuple[dict[str, str], list[str]]], folder: str) -> None:
    """Run every command in one rank, and leave what each has printed and its exit code."""
    from binsgdm import __main__ as alone
    from binsgdm.bench import kernels

    # Ranks that share cores call a kernel for so long, to be timed as in training: no time is judged here.
    assert kernels.SHARED_S > 0
    kernels.SHARED_S = 1e-3
    os.chdir(folder)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank % RANKS_PER_NODE), "WORLD_SIZE": str(WORLD_SIZE),
        "LOCAL_WORLD_SIZE": str(RANKS_PER_NODE),
    }  # fmt: skip
    codes = {}
    with output_to(Path(folder) / "outputs" / str(rank)):
        for name, (where, args) in work.items():
            os.environ |= where
            output = [] if "-o" in args else ["-o", f"{name}.json"]
            codes[name] = exit_code(alone.main, ["binsgdm", "measure", args[0], *output, *args[1:]])
    (Path(folder) / "outputs" / f"{rank}.json").write_text(json.dumps(codes))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return the folder of the files, and what each rank ended with and printed, from one run for all tests here."""

    def make(folder: Path) -> None:
        (folder / "files" / "outputs").mkdir(parents=True)
        with ExitStack() as stores:
            work = {name: (stores.enter_context(meeting_point()), args.split()) for name, args in COMMANDS.items()}
            launch(measure, work, str(folder / "files"), nprocs=WORLD_SIZE)
        (folder / "files" / "outputs").rename(folder / "outputs")

    folder = once(tmp_path_factory, "measured", make)
    outputs = folder / "outputs"
    read_codes = [json.loads((outputs / f"{rank}.json").read_text()) for rank in range(WORLD_SIZE)]
    printed = [(outputs / f"{rank}.stderr").read_text() for rank in range(WORLD_SIZE)]
    return folder / "files", list(zip(read_codes, printed, strict=True))


def test_every_rank_ends_alike_and_only_the_first_writes_and_tells(measured):
    folder, said = measured
    expected = dict.fromkeys(COMMANDS, 0) | {"no force": 2, "mistake": 2}
    assert [codes for codes, _ in said] == [expected] * WORLD_SIZE, said[0][1][-2000:]
    wrote = [stderr.count("wrote ") for _, stderr in said]
    assert wrote == [len(COMMANDS) - 2, 0, 0, 0]
    assert [stderr.count("model.json: exists") for _, stderr in said] == [1, 0, 0, 0]
    # All but the collectives, which name their NIC, and the two that end before.
    asked = [stderr.count("2 nodes: to predict these times, give --nic-gbit-per-s") for _, stderr in said]
    assert asked == [len(COMMANDS) - 3, 0, 0, 0]
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{name}.json" for name in COMMANDS if expected[name] == 0
    )


def test_every_collective_is_measured_in_every_group_as_strategies_send_it(measured):
    labels = ("group", "dtype", "group_size", "num_groups", "message_bytes")
    found = {
        (series.name, *(series.labels[label] for label in labels))
        for series in read(measured[0] / "collectives.json").series
    }
    groups = {"world": (4, 1), "intra_node": (2, 2), "inter_node": (2, 2)}
    sent = (("world", "uint8"), ("inter_node", "uint8"), ("intra_node", "uint8"), ("intra_node", "float32"))
    expected = {
        (name, group, dtype, *groups[group], size)
        for name in ("all_to_all", "all_gather")
        for group, dtype in sent
        for size in (2**18, 2**20)
    }
    assert found == expected | {("all_reduce", "world", "float32", 4, 1, size) for size in (2**18, 2**20)}


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("binsgdm", {"strategy": "binsgdm", "topology": "hierarchical", "intra_node_dtype": "fp32", "overlap": 1}),
        ("systems", {"strategy": "one_bit_adam", "topology": "", "options": {}, "overlap": 0}),
        ("systems", {"strategy": "qsgd", "topology": "", "options": {"bits": 2}, "overlap": 1}),
    ],
)
def test_steps_of_training_have_their_phases(name, labels, measured):
    series = read(measured[0] / f"{name}.json").series
    mine = [one for one in series if labels.items() <= one.labels.items()]
    slowest = [one.name for one in mine if "rank" not in one.labels]
    assert slowest == ["step", "forward", "backward", "optimizer"]
    assert len({len(one.values) for one in mine}) == 1
    assert len(series) == SERIES_OF_TRAINING * {"systems": 2}.get(name, 1)


def test_every_rank_has_its_own_steps_of_which_it_computes_a_part(measured):
    series = read(measured[0] / "binsgdm.json").series
    step, compute = ({one.labels["rank"]: one.values for one in series if one.name == name} for name in OF_RANKS)
    assert list(step) == list(compute) == list(range(WORLD_SIZE))
    for rank in step:
        assert all(0 < part <= whole for part, whole in zip(compute[rank], step[rank], strict=True))


def test_steps_without_messages_are_no_training_and_the_speed_meanwhile_is_told(measured):
    series = read(measured[0] / "own_work.json").series
    assert [one.kind for one in series] == ["own_work"] * 2 * SERIES_OF_TRAINING + ["speed"] * 2
    assert [one.name for one in series[-2:]] == ["multiply", "stream"]
    own = [one.labels["strategy"] for one in series[:-2:SERIES_OF_TRAINING]]
    assert own == ["all_reduce", "binsgdm"]


def test_backward_is_measured_alone_and_beside_each_collective(measured):
    series = read(measured[0] / "interference.json").series
    assert [(one.name, one.labels["collective"]) for one in series] == [
        (name, collective)
        for collective in ("all_reduce", "all_to_all")
        for name in ("backward_alone", "backward_beside")
    ]


def test_kernels_and_models_are_measured_by_all_ranks_at_once(measured):
    assert {one.labels["kernels"] for one in read(measured[0] / "kernels.json").series} == {"torch", "cpu"}
    assert len(read(measured[0] / "model.json").series) == 4 + 8
    decoded = [series for series in read(measured[0] / "kernels.json").series if series.name == "qsgd_decode"]
    assert [one.labels["num_vectors"] for one in decoded] == [WORLD_SIZE]
