"""Kernels of compressing systems: what is timed, under which names and sizes, and what a calibration makes of it."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("numba")
needs("torch")
needs("torch", "numba")
import torch
from click.testing import CliRunner
from msgspec.structs import replace

from binsgdm.bench import choices, kernels, systems
from binsgdm.bench.choices import choice
from binsgdm.bench.kernel_bytes import NAMES, bytes_per_element
from binsgdm.comm import Member, RankContext
from binsgdm.compressors.registry import SYSTEMS
from binsgdm.compressors.topologies import Pieces
from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from simnet.calibration import calibration_file, fit_files, sources
from simnet.calibration.kernels import COPY, COPY_BYTES, SIMULATED_NAMES
from simnet.calibration.measurement_file import MeasurementFile, Series, read
from simnet.cli.main import cli
from simnet.core.errors import SimnetError
from simnet.strategies import STRATEGIES, CompressingStrategy
from simnet.strategies.base import every_kernel
from simnet.strategies.recorded import MEMORY_TRAFFIC
from simnet.workload.kernel_cost import OPTIMIZER_BYTES
from tests.helpers.pretend_device import pretended_card

CPU = torch.device("cpu")
NUMEL = 4096
OWN = ("momentum", "compress", "server_mean", "server_residual", "decompress", "adam_update")


def measured(folder: Path, *args: str) -> MeasurementFile:
    path = folder / "k.json"
    sizes = ["--min-size", "2^12", "--max-size", "2^14", "--kernels", "cpu"]
    sizes += ["--max-repetitions", "8", "--max-seconds", "0.01"]
    done = CliRunner().invoke(cli, ["measure", "kernels", *sizes, *args, "-o", str(path), "--force"])
    assert done.exit_code == 0, done.output
    return read(path)


# What gathers every rank's payload merges nothing, unless another topology is asked for.
MERGES = {f"{name}_merge" for name, entry in SYSTEMS.items() if entry.aggregation == "all_gather"}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> MeasurementFile:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RANK", raising=False)
        return measured(tmp_path_factory.mktemp("kernels"), "--system", "all")


def test_every_kernel_that_is_simulated_is_timed_at_every_size(every: MeasurementFile) -> None:
    wanted = {cost.name for one in STRATEGIES if issubclass(one, CompressingStrategy) for cost in one.kernels} | set(
        OWN
    )
    sizes: dict[str, list[int]] = {}
    for one in every.series:
        if one.labels.get("world_size"):
            sizes.setdefault(one.name, []).append(int(one.labels["num_elements"]))
    assert set(sizes) == wanted - MERGES
    assert sizes.pop("byte_grad_merge") == [1024, 256, 2048, 512, 4096, 1024]
    assert {len(found) for found in sizes.values()} == {3}
    assert sizes["qsgd_decode"] == sizes["power_sgd_merge"] == [4096, 8192, 16384]
    assert sizes["top_k_decode"] == [41, 82, 164]
    assert sizes["server_residual"] == [1024, 2048, 4096]


def test_what_is_gathered_counts_the_payloads_of_all_ranks_and_nothing_else_does(every: MeasurementFile) -> None:
    counts: dict[str, set[Any]] = {}
    for series in every.series:
        if series.labels.get("world_size") and series.labels.get("num_vectors"):
            counts.setdefault(series.name, set()).add(series.labels["num_vectors"])
    gathered = {f"{name}_decode" for name, entry in SYSTEMS.items() if entry.aggregation == "all_gather"}
    assert set(counts) == gathered | {"server_mean", "byte_grad_merge"}
    assert counts.pop("byte_grad_merge") == {4, 16}
    assert set.union(*counts.values()) == {systems.ASSUMED_SIZE}


def test_compiled_loops_are_told_from_plain_torch(every: MeasurementFile) -> None:
    made_with = {series.labels["kernels"] for series in every.series if series.labels.get("world_size")}
    assert made_with == {"cpu"}
    assert {one.labels["kernels"] for one in every.series if one.name in {"copy", "adamw"}} == {"torch"}


SPARSE = {"momentum": 0.0, "masks_momentum": True, "warmup_steps": 0}


def in_proportion(whole: MeasurementFile) -> MeasurementFile:
    """Return the same with 1 us and 1 ns an element, since small kernels on a busy machine take what they like."""

    def made(one: Series) -> Series:
        elements = int(one.labels["num_elements"]) * int(one.labels.get("num_vectors", 1))
        return replace(one, values=(1e-6 + 1e-9 * elements,) * len(one.values))

    return replace(whole, series=tuple(map(made, whole.series)))


def fitted(whole: MeasurementFile) -> tuple[sources.Sources, Any]:
    known = sources.Sources(files=((Path("k.json"), in_proportion(whole)),))
    options = fit_files.FitOptions(bound=9.0, draws=20)
    return known, fit_files.fit_parts(known, sources.Sources(), sources.Sources(), options)


def calibrated(whole: MeasurementFile) -> Any:
    known, parts = fitted(whole)
    header = calibration_file.header(known, sources.Sources())
    return calibration_file.as_calibration(calibration_file.merge(parts, header))


def test_a_calibration_takes_the_kernels_with_their_options(every: MeasurementFile) -> None:
    calibration = calibrated(every)
    assert {f"{name}_encode" for name in SYSTEMS if name != "dense"} | set(OWN) <= set(calibration.kernels)
    assert calibration.kernels["top_k_decode"].s_per_element == pytest.approx(1e-9)
    assert calibration.kernels["qsgd_decode"].options == {"bits": 4, "block_size": 8192, "coding": "packed"}
    assert calibration.kernels["top_k_encode"].options == {"ratio": 0.01} | SPARSE
    assert calibration.kernels["merge"].options == {}


@pytest.mark.parametrize(
    ("text", "layout", "sizes"),
    [
        ("qsgd", (8, 2), [8]),
        ("qsgd:topology=hierarchical", (8, 2), [4]),
        ("qsgd:topology=hierarchical", (8, 8), [4]),
        ("qsgd:topology=scatter_reduce", (3, 3), [3]),
        ("qsgd:topology=hierarchical_scatter_reduce", (8, 8), [4, 16]),
        ("sign_sgd", (1, 1), [4]),
        ("one_bit_adam", (1, 1), [4]),
    ],
)
def test_payloads_are_those_of_the_ranks_or_nodes_that_measure(text: str, layout: Any, sizes: list[int]) -> None:
    world_size, ranks_per_node = layout
    ranks = SimpleNamespace(world_size=world_size, num_nodes=world_size // ranks_per_node)
    assert systems._group_sizes(choice(text, "--system"), ranks) == sizes  # type: ignore[arg-type]


def test_one_system_with_two_settings_is_no_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    whole = measured(tmp_path, "--system", "power_sgd", "--system", "power_sgd:matrix_rank=2")
    with pytest.raises(SimnetError, match="timed with matrix_rank=2 warm_start=true and with matrix_rank=4"):
        fitted(whole)


@pytest.mark.slow
def test_a_merge_is_timed_where_payloads_of_pieces_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    scattered, hierarchical = "qsgd:topology=scatter_reduce", "top_k:ratio=0.01,topology=hierarchical"
    whole = measured(tmp_path, "--system", scattered, "--system", hierarchical)
    found: dict[tuple[str, Any], list[Any]] = {}
    for one in whole.series:
        if one.labels.get("world_size"):
            found.setdefault((one.name, one.labels.get("num_vectors")), []).append(one.labels["num_elements"])
    assert found == {
        ("qsgd_encode", None): [4096, 8192, 16384],
        ("qsgd_merge", 4): [1024, 2048, 4096],
        ("qsgd_merge", 16): [256, 512, 1024],
        ("qsgd_decode", None): [4096, 8192, 16384],
        ("top_k_encode", None): [4096, 8192, 16384],
        ("top_k_decode", 4): [41, 82, 164],
    }
    options = {one.name: one.labels["options"] for one in whole.series if "options" in one.labels}
    assert options["qsgd_merge"] == {"bits": 4, "block_size": 8192, "coding": "packed", "topology": "scatter_reduce"}
    assert options["top_k_decode"] == {"ratio": 0.01, "topology": "hierarchical"} | SPARSE
    merge = calibrated(whole).kernels["qsgd_merge"]
    assert merge.s_per_element == pytest.approx(1e-9)
    assert merge.s_per_result is not None
    fewer = replace(whole, series=tuple(one for one in whole.series if one.labels.get("num_vectors") != 16))
    notes = [note for part in fitted(fewer)[1] for note in part.notes]
    assert "kernel qsgd_merge: fitted to 4 vectors at once; fewer take longer per element" in notes


@pytest.mark.parametrize("text", ["qsgd:topology=scatter_reduce", "ef_sign_sgd:topology=hierarchical_scatter_reduce"])
def test_cutting_and_joining_pieces_is_no_part_of_a_kernel(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    split, join = Pieces.split, Pieces.join
    waits: list[str] = []
    clock = itertools.count(1)
    passed_s = [0.0]  # in cutting and joining

    def slowly(name: str, call: Any) -> Any:
        def slow(*args: Any) -> Any:
            waits.append(name)
            passed_s[0] += 1000.0
            return call(*args)

        return slow

    # Error feedback joins what was sent, too, in encoding; that counts.
    monkeypatch.setattr(Pieces, "split", slowly("split", split))
    monkeypatch.setattr(Pieces, "join", slowly("join", join))
    monkeypatch.setattr(systems.Stopwatch, "stamp", lambda _: next(clock) + passed_s[0])
    _, trial = systems._kernels_and_trial(choice(text, "--system"), NUMEL, 4, CPU)
    whole, *times = trial()
    assert waits == ["split", *(["join"] if "ef" in text else []), "join"]
    assert whole == pytest.approx(sum(times))
    assert 0 <= whole - 1000 * (len(waits) - 2) < 100
    assert min(times) > 0


@pytest.mark.parametrize("name", [name for name in choices.names() if name != "one_bit_adam"])
def test_the_parts_of_a_trial_are_those_of_the_conversation(name: str) -> None:
    system = choice(name, "--system")
    parts, trial = systems._kernels_and_trial(system, NUMEL, 4, CPU)
    whole, *times = trial()
    assert list(parts) == [f"{name}_{part}" for part in systems.PARTS]
    assert whole == pytest.approx(sum(times))
    assert [time > 0 for time in times] == [
        True,
        f"{name}_merge" in {cost.name for cost in STRATEGIES.find(name).kernels} - MERGES,
        True,
    ]


@pytest.mark.parametrize("world_size", [3, 4])
def test_one_bit_adam_is_timed_doing_what_it_does(world_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels one after the other move a parameter to where the optimizer moves it."""
    made: list[OneBitAdam] = []

    class Kept(OneBitAdam):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr(systems, "OneBitAdam", Kept)
    torch.manual_seed(1)
    trial = systems.one_bit_adam_trial(NUMEL, world_size, CPU)
    whole, *times = trial()
    assert len(times) == len(systems.one_bit_adam_parts(NUMEL, world_size))
    assert min(times) > 0
    assert whole == pytest.approx(sum(times))
    torch.manual_seed(1)
    systems.one_bit_adam_trial(NUMEL, world_size, CPU)
    one, other = made
    context = RankContext(rank=0, world_size=world_size, ranks_per_node=1, seed=0, step=2)
    other.join(Member(rank=0, world_size=world_size, ranks_per_node=1))
    systems._compute_seconds(other.step_protocol(), context, systems.Stopwatch(CPU))
    assert torch.equal(one.param_states()[0].parameter, other.param_states()[0].parameter)


class TestChoice:
    def test_what_is_left_out_is_the_default(self) -> None:
        assert choice("qsgd:bits=8", "").whole == {"bits": 8, "block_size": 8192, "coding": "packed"}
        assert choice("top_k", "").options == {"ratio": 0.01}
        assert choice("qsgd:", "").options == {}
        assert choice("top_k:k=7", "").whole == {"ratio": None, "k": 7, "clip_norm": None} | SPARSE
        assert choices.text_of(choice("power_sgd:warm_start=false", "").whole) == "matrix_rank=4 warm_start=false"
        assert choice("top_k:topology=gather,k=7", "").whole == choice("top_k:k=7", "").whole
        hierarchical = choice("top_k:topology=hierarchical,intra_node_dtype=bf16,k=7", "").whole
        assert hierarchical == choice("top_k:k=7", "").whole | {"topology": "hierarchical"}

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("qsdg", "--system 'qsdg': unknown: give one of one_bit_sgd"),
            ("dense", "--system 'dense': unknown"),
            ("qsgd:bits", "after qsgd: give KEY=VALUE"),
            ("qsgd:bits=1", "qsgd: bits: 1: must be"),
            ("qsgd:bit=4", "qsgd: bit: unknown option, did you mean 'bits'?"),
            ("power_sgd:rank=4", "power_sgd: rank: unknown option; it takes matrix_rank"),
            ("qsgd:bits=4,bits=5", "an option comes twice; give it once"),
            ("qsgd:topology=ring", "qsgd: topology: 'ring': must be one of ['gather', 'scatter_reduce', "),
            ("qsgd:coding=elias,topology=scatter_reduce", "the length of its payloads must not depend on the values"),
            ("qsgd:intra_node_dtype=bf16", "intra_node_dtype: 'bf16': has no effect with topology 'gather'"),
            ("one_bit_adam:topology=hierarchical", "one_bit_adam is measured with flat topology"),
        ],
    )
    def test_a_mistake_is_told(self, text: str, said: str) -> None:
        with pytest.raises(BinsgdmError) as told:
            choice(text, "--system")
        assert said in str(told.value)


@pytest.mark.slow
def test_sizes_that_do_not_fit_into_a_card_are_left_out_with_a_note(monkeypatch, bench_of):
    bench = bench_of("cuda:0")
    with pretended_card(monkeypatch, free_bytes=200 * 2**10):
        kernels.measure(bench, kernels=("reference",), min_numel=2**10)
    assert {series["labels"]["num_elements"] for series in bench.record.series if series["name"] == "copy"} == {2**10}
    assert bench.record.notes == ["kernels: more than 1,024 elements do not fit into the memory: left out"]


def test_a_system_that_fails_costs_no_other_its_times(monkeypatch, bench):
    def measure(bench: Any, *, systems: Any, **_: Any) -> None:
        if systems[0].name == "qsgd":
            raise RuntimeError("an illegal\nmemory access")
        bench.record.add("kernel", f"{systems[0].name}_encode", [1.0], num_elements=8, dtype="float32", kernels="torch")

    monkeypatch.setattr(kernels, "measure", lambda *_, **__: None)
    monkeypatch.setattr(kernels.systems, "measure", measure)
    kernels.measure_card(bench, quick=False, seconds=60.0)
    named = {series["name"] for series in bench.record.series}
    assert {"one_bit_sgd_encode", "one_bit_adam_encode"} <= named
    assert "qsgd_encode" not in named
    assert [(check["name"], check["passed"], check["detail"]) for check in bench.record.checks] == [
        ("qsgd runs", False, "RuntimeError: an illegal memory access")
    ]


def test_a_cpu_runs_the_reference_and_its_own_loops_alone():
    assert kernels.available(torch.device("cpu")) == ("reference", "cpu")


VECTORS = {"mean": 8, "merge_shaped": 8}  # simnet counts the write of a mean for a node of 8


@pytest.mark.parametrize("name", sorted({*every_kernel(), *SIMULATED_NAMES}))
def test_a_kernel_moves_the_bytes_that_are_simulated(name):
    cost = every_kernel().get(SIMULATED_NAMES.get(name, name))
    if cost is None or name in SIMULATED_NAMES.values() or cost == MEMORY_TRAFFIC:  # which is bytes, and no kernel
        return
    if cost.is_streaming and name not in NAMES:  # torch's own copies and updates, which no command times
        return
    vectors = VECTORS.get(cost.name, 1)
    expected = cost.bytes_of_each(vectors) if cost.is_estimable else None
    assert bytes_per_element(name, vectors) == expected


@pytest.mark.parametrize(("vectors", "per_result"), [(2, 4 + 3 / 8), (64, 4 + 65 / 8)])
def test_a_shaped_merge_moves_a_bit_of_each_vector_and_one_residual(vectors, per_result):
    for found in (bytes_per_element("merge_shaped_", vectors), every_kernel()["merge_shaped"].bytes_of_each(vectors)):
        assert found == pytest.approx(per_result / vectors)


def test_no_kernel_is_only_here():
    known = {*every_kernel(), *SIMULATED_NAMES, COPY, "adamw", "cast_bf16_fp32"}
    assert set(NAMES) <= known
    assert bytes_per_element(COPY) == COPY_BYTES
    assert bytes_per_element("adamw") == OPTIMIZER_BYTES["adam"]
    assert bytes_per_element("nothing") is None
