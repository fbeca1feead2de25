"""The walks of the page on extending: a system, a collective and a fault are one class and one registration each.

Nothing in the packages is touched: what the page's code defines is simulated, advised on, timed by both executors and
judged by its closed form as all that is built in. The real side of a system stands in `test_a_system_from_outside.py`;
a package that brings both sides is `examples/plugin`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from msgspec import Meta
from msgspec.structs import replace

from docs import shown
from simnet.analysis.advise import advise
from simnet.cluster.hardware import FAULTS, Cluster, Fault
from simnet.collectives import algorithms
from simnet.collectives.closed_form import AlphaBeta, Shape
from simnet.core.errors import SimnetError
from simnet.engine.scenario import Scenario, build, to_dict
from simnet.engine.simulation import simulate
from simnet.strategies import STRATEGIES, GatheredPayload, GatheringStrategy, gathering_kernel_costs
from simnet.workload.buckets import Bucket
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


PAGE = shown.blocks((ROOT / "docs" / "how-to" / "extend.md").read_text(encoding="utf-8"), "python")


def of_page(word: str) -> dict[str, Any]:
    """Run the block of the page that holds a word, which registers what it defines; return its names."""
    (block,) = (one for one in PAGE if word in one)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(block, names)
    return names


class Scaled(GatheringStrategy, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="scaled_of_outside"):
    """Whose author refuses settings."""

    title: ClassVar[str] = "Scaled"
    kernels: ClassVar = gathering_kernel_costs("scaled_of_outside", 9.0, 9.0)

    scale: Annotated[float, Meta(gt=0.0)] = 1.0

    def __post_init__(self) -> None:
        GatheringStrategy.__post_init__(self)
        if self.scale > 100:
            raise ValueError("Scales end at 100. Note: so says its author")

    def payload(self, bucket: Bucket) -> GatheredPayload:
        return GatheredPayload(bucket.num_elements, decoded_elements=bucket.num_elements)


class Refusing(Fault, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="refusing_of_outside"):
    """Whose author refuses it in some words."""

    words: str

    def check(self, cluster: Cluster) -> None:
        raise ValueError(self.words)


@pytest.fixture
def known() -> Iterator[dict[str, Any]]:
    """Know what the page adds; yield the names of its collective."""
    system, fault, swap = (
        of_page("GatheringStrategy")["HalfPrecision"],
        of_page("FAULTS")["Flapping"],
        of_page("direct"),
    )
    STRATEGIES.register(Scaled)
    FAULTS.register(Refusing)
    yield swap
    for one in (system, Scaled):
        STRATEGIES.remove(one)
    for one in (fault, Refusing):
        FAULTS.remove(one)
    algorithms.remove("swap_gather")


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


@pytest.mark.usefixtures("known")
class TestSystem:
    def test_it_is_simulated_by_its_name_and_its_options_are_checked(self) -> None:
        made = scenario({"kind": "half_precision", "largest": 2.0})
        result = simulate(made)
        assert result.result.strategy == "half_precision"
        assert result.result.algorithm == "all_gather"
        assert result.result.compression_ratio == 2
        assert result.speedup is not None
        assert build(to_dict(made)) == made
        with pytest.raises(SimnetError, match=r"strategy\.scale: -1\.0: must be a number above 0"):
            scenario({"kind": "scaled_of_outside", "scale": -1.0})
        with pytest.raises(SimnetError, match=r"unknown key 'scal'\. Did you mean 'scale'\?"):
            scenario({"kind": "scaled_of_outside", "scal": 1.0})
        with pytest.raises(SimnetError, match=r"^scenario: strategy: Scales end at 100\. Note: so says its author$"):
            scenario({"kind": "scaled_of_outside", "scale": 200.0})

    @pytest.mark.slow
    def test_advice_ranks_it_among_all_others(self) -> None:
        found = {row.name for row in advise(scenario("all_reduce")).systems}
        assert {"Half precision", "BinSGDM", "Top-k 1 %", "DDP fp32"} <= found

    def test_its_name_is_free_again_once_it_is_taken_out(self) -> None:
        STRATEGIES.remove(Scaled)
        with pytest.raises(SimnetError, match="scaled_of_outside"):
            scenario("scaled_of_outside")


class TestCollective:
    @pytest.mark.parametrize(("num_nodes", "ranks_per_node"), [(1, 4), (2, 2), (3, 2), (4, 1), (5, 3)])
    def test_it_delivers_and_all_three_times_agree(
        self, known: dict[str, Any], num_nodes: int, ranks_per_node: int
    ) -> None:
        network = topology(num_nodes, ranks_per_node)
        (schedule,) = known["schedules"](network.group("world"))
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
        assert known["seconds"](shape, 44e6) == pytest.approx(exact_s, rel=1e-9)

    @pytest.mark.usefixtures("known")
    def test_a_strategy_takes_it_by_name_and_auto_where_it_is_the_fastest(self) -> None:
        named = simulate(scenario({"kind": "all_reduce", "algorithm": "swap_gather"})).result
        assert named.algorithm == "swap_gather"
        small = topology(3, 1)
        assert algorithms.choose("auto", small, 8.0).algorithm == "swap_gather", "it has the fewest latencies"
        algorithms.remove("swap_gather")
        assert algorithms.choose("auto", small, 8.0).algorithm != "swap_gather"
        with pytest.raises(SimnetError, match=r"strategy\.algorithm: 'swap_gather': unknown"):
            scenario({"kind": "all_reduce", "algorithm": "swap_gather"})
        of_page("direct")


@pytest.mark.usefixtures("known")
class TestFault:
    def test_a_nic_that_flaps_costs_what_it_holds_back(self) -> None:
        whole = simulate(scenario("all_reduce")).result
        flaps = {"kind": "flapping", "node": 1, "from_s": 0.1, "to_s": 0.3}
        asked = scenario("all_reduce", faults=[flaps])
        slowed, exact = (
            simulate(replace(asked, run=replace(asked.run, iterations=1, fidelity=fidelity))).result
            for fidelity in ("auto", "exact")
        )
        assert slowed.iteration_s == pytest.approx(exact.iteration_s), "it changes in the middle of collectives"
        # For 0.2 s a tenth is sent, so nine tenths of that time are lost.
        assert slowed.iteration_s - whole.iteration_s == pytest.approx(0.18, rel=0.05)

    def test_it_works_beside_those_that_are_built_in(self) -> None:
        slow = {"kind": "slow_node", "node": 0, "compute_slowdown": 2.0}
        short = simulate(scenario("all_reduce", slow_nodes=[{"node": 0, "compute_slowdown": 2.0}])).result
        assert simulate(scenario("all_reduce", faults=[slow])).result.iteration_s == short.iteration_s

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"kind": "flaping"}, "cluster.faults.0.kind: 'flaping': unknown fault. Did you mean 'flapping'?"),
            ({"to_s": 1, "node": 9}, "cluster.faults: node 9 from 0.0 to 1.0 s: must be there, and end later"),
            ({"kind": "refusing_of_outside", "words": "No. Note: so I say"}, "cluster.faults: No. Note: so I say"),
            ({"kind": "refusing_of_outside", "words": ""}, "cluster.faults: wrong type for this key"),
            (
                {"to_s": 1, "node": 1, "nic_slowdown": 2},
                "cluster.faults.0: key 'nic_slowdown' belongs to kind 'slow_node', not to 'flapping'; drop it",
            ),
        ],
    )  # fmt: skip
    def test_what_cannot_be_is_refused_and_what_its_author_says_is_shown(
        self, given: dict[str, object], said: str
    ) -> None:
        with pytest.raises(SimnetError) as refused:
            scenario("all_reduce", faults=[{"kind": "flapping", **given}])
        assert str(refused.value).startswith(f"scenario: {said}")


def test_the_real_system_of_the_page_can_be_made() -> None:
    needs("torch")
    from binsgdm.compressors.registry import SYSTEMS, make

    system = of_page("CompressorSystem")["HalfPrecision"]
    try:
        assert make("half_precision", rank=0, world_size=1, largest=1.0).compressor == system(largest=1.0)
    finally:
        SYSTEMS.remove(system)


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


@pytest.mark.slow
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
