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
from simnet.core.errors import SimnetError
from simnet.engine.scenario import Scenario, build
from simnet.engine.simulation import simulate
from simnet.strategies import QSGD, STRATEGIES, Exchange, Strategy
from simnet.strategies.compressing import CompressingStrategy, kernel_costs
from simnet.strategies.program import Communicate, Compute, Kernel, OperationId, Program
from simnet.workload.buckets import Bucket

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


@pytest.mark.usefixtures("_known")
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda _: Exchange((), 0.0, "x"), "0.0 B: must be above 0 B; fix the strategy"),
        (lambda _: Exchange((compute(),), -5.0, "x"), "must be above 0 B; fix the strategy"),
        (lambda _: Exchange((compute(),), float("nan"), "x"), "must be above 0 B; fix the strategy"),
        (lambda _: Exchange((compute(seconds=-1.0),), 1.0, "x"), "seconds: -1.0: must be finite and not below 0"),
        (lambda _: Exchange((compute(part="nope"),), 1.0, "x"), "part: 'nope': must be one of forward"),
        (
            lambda _: Exchange((Kernel(name="cast", part="encode", num_elements=float("nan")),), 1.0, "x"),
            "num_elements: nan: must be finite",
        ),
        (lambda _: Exchange((Kernel(name="none", part="encode", num_elements=1.0),), 1.0, "x"), "no strategy declares"),
        (lambda _: None, "program: AttributeError"),
        (lambda _: 1 / 0, "program: ZeroDivisionError"),
    ],
)
def test_an_exchange_that_is_nonsense_is_refused(made: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "made", staticmethod(made))
    with pytest.raises(SimnetError, match=r"odd_of_test|kernel 'none'") as told:
        simulate(scenario("odd_of_test"))
    assert said in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.usefixtures("_known")
def test_one_that_is_wrong_is_left_out_of_advice_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Odd, "made", staticmethod(lambda _: 1 / 0))
    advice = advise(scenario("all_reduce"), names=["Odd", "SignSGD"])
    assert [name for name, _ in advice.left_out] == ["Odd"]
    assert "SignSGD" in {row.name for row in advice.systems}


def test_a_fault_that_does_not_fit_is_told_at_its_own_key() -> None:
    with pytest.raises(SimnetError, match=r"cluster\.faults: node 9: the cluster has nodes 0 to 1"):
        scenario("all_reduce", faults=[{"kind": "slow_node", "node": 9}])


class TestRegistration:
    def refused(self, said: str, **attributes: Any) -> None:
        made = type("Other", (CompressingStrategy,), {"title": "Other", **attributes}, frozen=True, tag="other_of_test")
        with pytest.raises(SimnetError, match=said):
            STRATEGIES.register(made)
        assert "other_of_test" not in {one.__struct_config__.tag for one in STRATEGIES.built_in()}

    def test_another_cost_of_a_kernel_that_is_known_is_refused(self) -> None:
        self.refused("kernels: 'qsgd_encode': has another cost", kernels=kernel_costs("qsgd", 1.0, 0.0, 1.0))

    def test_a_title_that_is_taken_or_none_is_refused(self) -> None:
        self.refused("title: 'QSGD 4 bit': must be text, and the title of no other", title="QSGD 4 bit")
        self.refused("title: '': must be text", title="")

    @pytest.mark.parametrize("hook", ["presets", "trains_as"])
    def test_a_method_that_nobody_calls_any_more_is_refused(self, hook: str) -> None:
        self.refused(f"{hook}: is never called; give what it returned in Strategy.choices", **{hook: lambda _: ()})

    def test_a_tag_that_is_taken_is_refused_and_the_same_class_may_come_again(self) -> None:
        thief = type("Thief", (CompressingStrategy,), {"title": "Thief"}, frozen=True, tag="qsgd")
        with pytest.raises(SimnetError, match="'qsgd': is registered twice"):
            STRATEGIES.register(thief)
        assert STRATEGIES.register(QSGD) is STRATEGIES.find("qsgd")


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
        with pytest.raises(SimnetError, match="waits for one that never ends"):
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
    count, *told = done.stdout.splitlines()
    assert int(count) == len(STRATEGIES.built_in())
    assert [line.split("'")[1] for line in told] == ["raises", "exits", "loud"]
    assert "(RuntimeError: two lines)" in told[0]
    assert "must name a strategy or a module" in told[2]
    assert done.stderr == "loud\n"
