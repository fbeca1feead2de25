"""The four walks: a compressing system, a collective and a fault are one class and one registration, in any file.

Nothing in the packages is touched: what is defined here is simulated, advised on, timed by both executors and judged by
its closed form as all that is built in. The real side of a system stands in `test_a_system_from_outside.py`; a package
that brings both sides is `examples/plugin`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
from msgspec import Meta
from msgspec.structs import replace

from simnet.analysis.advise import advise
from simnet.cluster.hardware import FAULTS, Cluster, Fault, LinkId
from simnet.cluster.schedule import Group, Schedule
from simnet.cluster.topology import Topology
from simnet.collectives import algorithms, closed_form, direct, ring
from simnet.collectives.algorithms import Algorithm
from simnet.collectives.closed_form import AlphaBeta, Shape
from simnet.core.errors import SimnetError
from simnet.engine.scenario import Scenario, build, to_dict
from simnet.engine.simulation import simulate
from simnet.strategies import STRATEGIES, Exchange
from simnet.strategies.compressing import CompressingStrategy, GatheredPayload, gather_payloads, kernel_costs
from simnet.workload.buckets import Bucket
from simnet.workload.kernel_cost import KernelCost
from simnet.workload.training_step import Step
from tests.helpers.needs import needs
from tests.helpers.proof import complete, own_contributions, walk
from tests.helpers.topologies import (
    INTER_ALPHA_S,
    INTER_BYTES_PER_S,
    INTRA_ALPHA_S,
    INTRA_BYTES_PER_S,
    run_exact,
    run_folded,
    topology,
)

ROOT = Path(__file__).resolve().parents[2]


class Bytes(CompressingStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="bytes_of_outside"):
    """One byte an element."""

    title: ClassVar[str] = "Bytes"
    kernels: ClassVar[tuple[KernelCost, ...]] = kernel_costs("bytes_of_outside", 9.0, 0.0, 9.0)

    scale: Annotated[float, Meta(gt=0.0)] = 1.0

    def __post_init__(self) -> None:
        CompressingStrategy.__post_init__(self)
        if self.scale > 100:
            raise ValueError("Scales end at 100. Note: so says its author")

    def exchange(self, bucket: Bucket, step: Step, topology: Topology) -> Exchange:
        return gather_payloads(
            self, bucket, GatheredPayload(bucket.num_elements, bucket.num_elements), topology.group("world"), topology
        )


def swap_then_gather(group: Group) -> tuple[Schedule, ...]:
    """An all-reduce that swaps chunks directly and gathers the sums round a ring."""
    rounds = (*direct.all_to_all(group).rounds, *ring.all_gather_rounds(group))
    whole = Schedule(
        collective="all_reduce",
        algorithm="swap_of_outside",
        group=group,
        num_chunks=group.size,
        rounds=rounds,
        rails_are_symmetric=not group.is_mixed,
    )
    return (whole,)


def swap_then_gather_s(shape: Shape, message_bytes: float) -> float:
    slowest = shape.inter_node if shape.num_nodes > 1 else shape.intra_node
    ranks = shape.num_nodes * shape.ranks_per_node
    gather_s = closed_form.ring_all_gather_s(ranks, message_bytes, slowest)
    return closed_form.all_to_all_s(shape, message_bytes) + gather_s


SWAP = Algorithm(name="swap_of_outside", variants=swap_then_gather, closed_form_s=swap_then_gather_s)


class Flapping(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="flapping_of_outside"):
    """The NICs of a node that run at a tenth from one time to another."""

    title: ClassVar[str] = "flapping NIC"

    node: Annotated[int, Meta(ge=0)]
    from_s: float = 0.0
    to_s: float

    def check(self, cluster: Cluster) -> None:
        if self.to_s > 100:
            raise ValueError("100 s are the longest. Note: so says its author")
        if self.node >= cluster.num_nodes:
            raise ValueError("")

    @property
    def changes_s(self) -> tuple[float, ...]:
        return (self.from_s, self.to_s)

    def link_factor(self, link: LinkId, time_s: float) -> float:
        is_down = link.kind in ("nic_tx", "nic_rx") and link.place == self.node and self.from_s <= time_s < self.to_s
        return 10.0 if is_down else 1.0


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    STRATEGIES.register(Bytes)
    FAULTS.register(Flapping)
    algorithms.register(SWAP)
    yield
    STRATEGIES.remove(Bytes)
    FAULTS.remove(Flapping)
    algorithms.remove(SWAP.name)


def scenario(strategy: object, num_nodes: int = 4, **cluster: object) -> Scenario:
    nodes = {
        "num_nodes": num_nodes,
        "ranks_per_node": 2,
        "intra_node": {"bandwidth": "300 GB/s", "latency": "2 us"},
        "inter_node": {"bandwidth": "10 Gbit/s", "latency": "14 us"},
    }
    workload = {"gradient": "400 MB", "forward": "20 ms", "backward": "40 ms", "optimizer": "2 ms"}
    calibration = {"memory_bandwidth": "1500 GB/s", "kernel_launch": "10 us"}
    given = {"cluster": {**nodes, **cluster}, "workload": workload, "calibration": calibration, "strategy": strategy}
    return build({**given, "baseline": "all_reduce"})


class TestSystem:
    def test_it_is_simulated_by_its_name_and_its_options_are_checked(self) -> None:
        made = scenario({"kind": "bytes_of_outside", "scale": 2.0})
        result = simulate(made)
        assert result.result.strategy == "bytes_of_outside"
        assert result.result.compression_ratio == 4
        assert result.speedup is not None
        assert build(to_dict(made)) == made
        with pytest.raises(SimnetError, match=r"strategy\.scale: -1\.0: must be a number above 0"):
            scenario({"kind": "bytes_of_outside", "scale": -1.0})
        with pytest.raises(SimnetError, match=r"unknown key 'scal'\. Did you mean 'scale'\?"):
            scenario({"kind": "bytes_of_outside", "scal": 1.0})
        with pytest.raises(SimnetError, match=r"^scenario: strategy: Scales end at 100\. Note: so says its author$"):
            scenario({"kind": "bytes_of_outside", "scale": 200.0})

    def test_both_executors_agree_on_it(self) -> None:
        times = [
            simulate(build({**to_dict(scenario("bytes_of_outside", 3)), "run": {"fidelity": fidelity}}))
            for fidelity in ("folded", "exact")
        ]
        assert times[0].result.iteration_s == pytest.approx(times[1].result.iteration_s, rel=1e-9)

    @pytest.mark.slow
    def test_advice_ranks_it_among_all_others(self) -> None:
        found = {row.name for row in advise(scenario("all_reduce")).systems}
        assert {"Bytes", "BinSGDM", "Top-k 1 %", "DDP fp32"} <= found

    def test_its_name_is_free_again_once_it_is_taken_out(self) -> None:
        STRATEGIES.remove(Bytes)
        with pytest.raises(SimnetError, match="bytes_of_outside"):
            scenario("bytes_of_outside")


class TestCollective:
    @pytest.mark.parametrize(("num_nodes", "ranks_per_node"), [(1, 4), (2, 2), (3, 2), (4, 1), (5, 3)])
    def test_it_delivers_and_all_three_times_agree(self, num_nodes: int, ranks_per_node: int) -> None:
        network = topology(num_nodes, ranks_per_node)
        (schedule,) = SWAP.variants(network.group("world"))
        for rank, held in enumerate(walk(schedule, own_contributions(schedule))):
            assert all(held[chunk] == complete(schedule, rank) for chunk in range(schedule.num_chunks))
        shape = Shape(
            num_nodes=num_nodes,
            ranks_per_node=ranks_per_node,
            intra_node=AlphaBeta(alpha_s=INTRA_ALPHA_S, bytes_per_s=INTRA_BYTES_PER_S),
            inter_node=AlphaBeta(alpha_s=INTER_ALPHA_S, bytes_per_s=INTER_BYTES_PER_S),
        )
        exact_s, _ = run_exact(network, schedule, 44e6)
        assert run_folded(network, schedule, 44e6) == pytest.approx(exact_s, rel=1e-9)
        assert SWAP.closed_form_s(shape, 44e6) == pytest.approx(exact_s, rel=1e-9)

    def test_a_strategy_takes_it_by_name_and_auto_where_it_is_the_fastest(self) -> None:
        named = simulate(scenario({"kind": "all_reduce", "algorithm": "swap_of_outside"})).result
        assert named.algorithm == "swap_of_outside"
        small = topology(3, 1)
        assert algorithms.choose("auto", small, 8.0).algorithm == "swap_of_outside", "it has the fewest latencies"
        algorithms.remove(SWAP.name)
        assert algorithms.choose("auto", small, 8.0).algorithm != "swap_of_outside"
        with pytest.raises(SimnetError, match=r"strategy\.algorithm: 'swap_of_outside': unknown"):
            scenario({"kind": "all_reduce", "algorithm": "swap_of_outside"})
        algorithms.register(SWAP)


class TestFault:
    def test_a_nic_that_flaps_costs_what_it_holds_back(self) -> None:
        whole = simulate(scenario("all_reduce")).result
        flaps = {"kind": "flapping_of_outside", "node": 1, "from_s": 0.1, "to_s": 0.3}
        asked = scenario("all_reduce", faults=[flaps])
        slowed, exact = (
            simulate(replace(asked, run=replace(asked.run, iterations=1, fidelity=fidelity))).result
            for fidelity in ("auto", "exact")
        )
        assert slowed.iteration_s == pytest.approx(exact.iteration_s), "it changes in the middle of collectives"
        # For 0.2 s a tenth is sent, so nine tenths of that time are lost.
        assert slowed.iteration_s - whole.iteration_s == pytest.approx(0.18, rel=0.05)

    def test_it_works_beside_those_that_are_built_in_and_refuses_what_it_does_not_know(self) -> None:
        slow = {"kind": "slow_node", "node": 0, "compute_slowdown": 2.0}
        short = simulate(scenario("all_reduce", slow_nodes=[{"node": 0, "compute_slowdown": 2.0}])).result
        assert simulate(scenario("all_reduce", faults=[slow])).result.iteration_s == short.iteration_s
        with pytest.raises(
            SimnetError, match=r"cluster\.faults\.0\.kind: 'flaping_of_outside': unknown fault\. Did you mean"
        ):
            scenario("all_reduce", faults=[{"kind": "flaping_of_outside"}])

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"to_s": 200}, "scenario: cluster.faults: 100 s are the longest. Note: so says its author"),
            ({"to_s": 1, "node": 9}, "scenario: cluster.faults: wrong type for this key"),
            (
                {"to_s": 1, "nic_slowdown": 2},
                "scenario: cluster.faults.0: key 'nic_slowdown' belongs to kind 'slow_node', not to "
                "'flapping_of_outside'; drop it",
            ),
        ],
    )
    def test_what_its_author_says_is_shown(self, given: dict[str, object], said: str) -> None:
        fault = {"kind": "flapping_of_outside", "node": 1, **given}
        with pytest.raises(SimnetError) as refused:
            scenario("all_reduce", faults=[fault])
        assert str(refused.value) == said


ASKED = """
import json
from simnet.engine.scenario import build
from simnet.engine.simulation import simulate
from simnet.analysis.tune import systems

link = {"bandwidth": "10 Gbit/s", "latency": "5 us"}
cluster = {"num_nodes": 2, "ranks_per_node": 2, "intra_node": link, "inter_node": link}
workload = {"gradient": "40 MB", "forward": "10 ms", "backward": "20 ms"}
result = simulate(build({"cluster": cluster, "workload": workload, "strategy": "half_precision"})).result
print(json.dumps([result.strategy, result.compression_ratio, "Half precision" in systems()]))
"""
REAL = """
import torch
from binsgdm.compressors.registry import SYSTEMS, make

print(SYSTEMS["half_precision"].title, make("half_precision", rank=0, world_size=1) is not None)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    install += ["--disable-pip-version-check", "--target", str(folder), str(ROOT / "examples" / "plugin")]
    subprocess.run(install, check=True, timeout=120)
    return folder


def python(code: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_package_that_is_installed_brings_its_strategy(installed: Path) -> None:
    assert json.loads(python(ASKED, installed)) == ["half_precision", 2.0, True]


BROKEN = """
from simnet.core.errors import SimnetError
from simnet.engine.scenario import build

link = {"bandwidth": "10 Gbit/s", "latency": "5 us"}
cluster = {"num_nodes": 2, "ranks_per_node": 2, "intra_node": link, "inter_node": link}
workload = {"gradient": "40 MB", "forward": "10 ms", "backward": "20 ms"}
try:
    build({"cluster": cluster, "workload": workload, "strategy": "broken"})
except SimnetError as error:
    print(error)
"""


def test_a_package_that_cannot_be_loaded_is_told_at_the_key_that_names_its_strategy(tmp_path: Path) -> None:
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_text("[simnet.strategies]\nbroken = not_there:It\n")
    said = python(BROKEN, tmp_path)
    assert said.startswith("scenario: strategy.kind: ")
    assert "'broken'" in said
    assert "the package that provides it cannot be loaded (ModuleNotFoundError: No module named 'not_there')" in said


def test_a_package_that_is_installed_brings_its_real_system(installed: Path) -> None:
    needs("torch")
    assert python(REAL, installed).split("\n")[0] == "Half precision True"


def test_what_the_package_sends_is_what_it_says_that_it_sends(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("torch")
    monkeypatch.syspath_prepend(str(installed))
    from half_precision import real, simulated

    from binsgdm.compressors.registry import registered
    from tests.helpers.messages import real_messages, simulated_messages

    STRATEGIES.register(simulated.HalfPrecision)
    try:
        with registered(real.HalfPrecision):
            for layout in ((2, 1), (3, 2)):
                sent = real_messages("half_precision", {}, layout)
                assert sent == simulated_messages("half_precision", {}, layout)
                assert sent
    finally:
        STRATEGIES.remove(simulated.HalfPrecision)
