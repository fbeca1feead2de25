"""Code of other packages that is wrong is refused in a sentence, and changes nothing of what is built in."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from simnet.analysis.advise import advise
from simnet.cluster.hardware import FAULTS, Fault, LinkId
from simnet.collectives import ring
from simnet.engine.scenario import Scenario, build
from simnet.engine.simulation import simulate
from simnet.strategies import QSGD, STRATEGIES, Exchange, Strategy
from simnet.strategies.compressing import CompressingStrategy, kernel_costs
from simnet.strategies.program import Communicate, Compute, Kernel, OperationId, Program
from simnet.workload.buckets import Bucket
from tests.helpers.refusals import refused

ROOT = Path(__file__).resolve().parents[4]


def scenario(strategy: object, **cluster: object) -> Scenario:
    link = {"bandwidth": "10 Gbit/s", "latency": "5 us"}
    nodes = {"num_nodes": 2, "ranks_per_node": 2, "intra_node": link, "inter_node": link, **cluster}
    workload = {"gradient": "40 MB", "forward": "10 ms", "backward": "20 ms", "optimizer": "1 ms"}
    return build({"cluster": nodes, "workload": workload, "strategy": strategy})


class Odd(CompressingStrategy, frozen=True, kw_only=True, tag="odd_of_test"):
    """Whatever a test puts in place of its exchange."""

    title: ClassVar[str] = "Odd"
    kernels: ClassVar = kernel_costs("odd_of_test", 1.0, 0.0, 1.0)
    made: ClassVar[Any] = None

    def exchange(self, bucket: Bucket, step: Any, topology: Any) -> Exchange:
        return self.made(bucket)


class Weird(Fault, frozen=True, kw_only=True, tag="weird_of_test"):
    """Whatever a test puts in place of its factors."""

    factor: ClassVar[Any] = 1.0

    def link_factor(self, link: LinkId, time_s: float) -> float:
        return self.factor

    def compute_factor(self, node: int, local_rank: int) -> float:
        return self.factor


@pytest.fixture
def _known() -> Iterator[None]:
    STRATEGIES.register(Odd)
    FAULTS.register(Weird)
    yield
    STRATEGIES.remove(Odd)
    FAULTS.remove(Weird)


def compute(**said: Any) -> Compute:
    return Compute(**{"part": "encode", "seconds": 1.0, **said})


def kernel(name: str, num_elements: float) -> Kernel:
    return Kernel(name=name, part="encode", num_elements=num_elements)


@pytest.mark.usefixtures("_known")
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda _: Exchange((), 0.0, "x"), "0.0 B: must be above 0 B; fix the strategy"),
        (lambda _: Exchange((compute(),), -5.0, "x"), "must be above 0 B; fix the strategy"),
        (lambda _: Exchange((compute(),), float("nan"), "x"), "must be above 0 B; fix the strategy"),
        (lambda _: Exchange((compute(seconds=-1.0),), 1.0, "x"), "seconds: -1.0: must be finite and not below 0"),
        (lambda _: Exchange((compute(part="nope"),), 1.0, "x"), "part: 'nope': must be one of forward"),
        (lambda _: Exchange((kernel("cast", float("nan")),), 1.0, "x"), "num_elements: nan: must be finite"),
        (lambda _: Exchange((kernel("none", 1.0),), 1.0, "x"), "kernel 'none': no strategy declares"),
        (lambda _: None, "program: AttributeError"),
        (lambda _: 1 / 0, "program: ZeroDivisionError"),
    ],
)
def test_an_exchange_that_is_nonsense_is_refused(made: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "made", staticmethod(made))
    with refused(said, "kernel 'none'" if "no strategy" in said else "odd_of_test"):
        simulate(scenario("odd_of_test"))


@pytest.mark.usefixtures("_known")
def test_one_that_is_wrong_is_left_out_of_advice_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "made", staticmethod(lambda _: 1 / 0))
    advice = advise(scenario("all_reduce"), names=["Odd", "SignSGD"])
    assert [name for name, _ in advice.left_out] == ["Odd"]
    assert "SignSGD" in {row.name for row in advice.systems}


@pytest.mark.parametrize(
    ("tag", "attributes", "said"),
    [
        ("other_of_test", {"kernels": kernel_costs("qsgd", 1.0, 0.0, 1.0)}, "kernels: 'qsgd_encode': has another cost"),
        ("other_of_test", {"title": "QSGD 4 bit"}, "title: 'QSGD 4 bit': must be text, and the title of no other"),
        ("other_of_test", {"title": ""}, "title: '': must be text"),
        *(
            (
                "other_of_test",
                {hook: lambda _: ()},
                f"{hook}: is never called; give what it returned in Strategy.choices",
            )
            for hook in ("presets", "trains_as")
        ),
        ("qsgd", {}, "'qsgd': is registered twice"),
    ],
)
def test_a_strategy_that_takes_what_others_have_or_has_what_nobody_calls_is_refused(
    tag: str, attributes: dict[str, Any], said: str
) -> None:
    made = type("Other", (CompressingStrategy,), {"title": "Other", **attributes}, frozen=True, tag=tag)
    with refused(said):
        STRATEGIES.register(made)
    assert made not in STRATEGIES.built_in()
    assert STRATEGIES.register(QSGD) is STRATEGIES.find("qsgd"), "the same class may come again"
    with refused("cluster.faults: node 9: the cluster has nodes 0 to 1"):
        scenario("all_reduce", faults=[{"kind": "slow_node", "node": 9}])


def test_marks_that_never_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Waits(Strategy, frozen=True, kw_only=True, tag="waits_of_test"):
        title: ClassVar[str] = "Waits"

        def program(self, step: Any, topology: Any) -> Program:
            sent = Communicate(schedule=ring.all_gather(topology.group("world")), message_bytes=8.0)
            streams = (
                (compute(after=(OperationId(1, 0),)),),
                (msgspec.structs.replace(sent, after=(OperationId(0, 0),)),),
            )
            return Program(streams=streams, num_buckets=1, payload_bytes=8.0, algorithm="x")

    STRATEGIES.register(Waits)
    try:
        with refused("waits for one that never ends"):
            simulate(scenario("waits_of_test"))
    finally:
        STRATEGIES.remove(Waits)


BROKEN = "[simnet.strategies]\nraises = broken_of_test:X\nexits = exits_of_test:X\nloud = loud_of_test:loud\n"


def test_packages_that_fail_to_load_change_nothing_else_and_asking_for_them_says_why(tmp_path: Path) -> None:
    (tmp_path / "broken_of_test.py").write_text("raise RuntimeError('two\\nlines')\n")
    (tmp_path / "exits_of_test.py").write_text("raise SystemExit(7)\n")
    (tmp_path / "loud_of_test.py").write_text("print('loud')\nloud = 3\n")
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(BROKEN)
    code = (
        "from simnet.strategies import STRATEGIES\nprint(len(list(STRATEGIES)))\n"
        "for name in ('raises', 'exits', 'loud'):\n    try:\n        STRATEGIES.find(name)\n"
        "    except Exception as error:\n        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False, timeout=60,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, *messages = done.stdout.splitlines()
    assert int(count) == len(STRATEGIES.built_in())
    assert [line.split("'")[1] for line in messages] == ["raises", "exits", "loud"]
    assert "(RuntimeError: two lines)" in messages[0]
    assert "must name a strategy or a module" in messages[2]
    assert done.stderr == "loud\n"
