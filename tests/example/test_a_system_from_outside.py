"""A system that a user writes: one class and one registration, and all that goes through the list knows it."""

import runpy
import textwrap
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from binsgdm.bench import choices, systems
from binsgdm.comm import AllReduceSum, Protocol, RankContext
from binsgdm.compressors.base import GradientBucket, ProtocolSystem, System
from binsgdm.compressors.compressor import CompressorSystem
from binsgdm.compressors.registry import SYSTEMS, make, register, registered
from binsgdm.errors import BinsgdmError
from binsgdm.parallel.ddp_hook import compress_gradients
from tests.helpers.gradient_buckets import bucket, means_of, normal
from tests.helpers.launch import run_script

PLUGIN = Path(__file__).resolve().parents[2] / "examples" / "plugin"
Half: type[CompressorSystem] = runpy.run_path(str(PLUGIN / "half_precision" / "real.py"))["HalfPrecision"]


class Largest(ProtocolSystem):
    """The mean of what is above a part of the largest value, with a protocol of its own."""

    name = "largest_of_outside"
    title = "Largest"
    source = "this test"
    wire_format = "gradients in fp32, small ones as 0"
    aggregation = "all_reduce"

    def __init__(self, *, part: float = 0.1) -> None:
        self._part = part

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        kept = bucket.values * (bucket.values.abs() >= self._part * bucket.values.abs().amax())
        total = yield AllReduceSum(group="world", sent=kept)
        return total / context.world_size


@pytest.fixture
def known() -> Any:
    with registered(Half, Largest):
        yield


@pytest.mark.usefixtures("known")
def test_ranks_in_lock_step_get_the_mean_within_the_error_of_the_system() -> None:
    ends = [make("half_precision", rank=rank, world_size=2) for rank in range(2)]
    given = [normal(seed=rank) for rank in range(2)]
    wanted = (given[0] + given[1]) / 2
    one, other = means_of(ends, given)
    assert torch.equal(one, other)
    error = (one - wanted).abs().max()
    assert 0 < error <= 2.0**-11 * max(values.abs().max() for values in given)
    kept = sum(end.residuals.of(bucket(values)) for end, values in zip(ends, given, strict=True)) / 2
    torch.testing.assert_close(one + kept, wanted, rtol=0, atol=1e-6)


def train(system: str, folder: Path, **options: Any) -> list[list[float]]:
    """Return gradients of a DDP model of one gloo process, first without and then with the system."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    try:
        found = []
        for compresses in (False, True):
            torch.manual_seed(0)
            module = DistributedDataParallel(nn.Linear(6, 4))
            if compresses:
                compress_gradients(module, system, **options)
            module(torch.linspace(-1, 1, 12).view(2, 6)).square().sum().backward()
            found.append(torch.cat([parameter.grad.flatten() for parameter in module.parameters()]).tolist())
        return found
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("known")
def test_the_hook_of_ddp_takes_it_by_name_with_its_options(tmp_path: Path) -> None:
    plain, halved = train("half_precision", tmp_path, largest=0.5)
    assert halved == torch.tensor(plain).clamp(-0.5, 0.5).half().float().tolist()
    assert max(map(abs, plain)) > 0.5


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("name", ["half_precision", "largest_of_outside"])
def test_whoever_goes_through_the_list_sees_it(name: str) -> None:
    assert name in choices.names()
    parts, trial = systems._kernels_and_trial(choices.choice(name, "--system"), 4096, 4, torch.device("cpu"))
    assert list(parts) == [f"{name}_{part}" for part in systems.PARTS]
    assert min(trial()[:2]) > 0


def test_the_list_registers_as_a_decorator_and_removes_as_those_of_the_simulator() -> None:
    before = list(SYSTEMS)
    with registered(Half):
        assert list(SYSTEMS) == [*before, "half_precision"]
        assert SYSTEMS["half_precision"].options == {"largest": 65504.0}
        with pytest.raises(BinsgdmError, match="half_precision: larges: unknown option, did you mean 'largest'"):
            make("half_precision", rank=0, world_size=1, larges=1.0)
    assert list(SYSTEMS) == before
    assert register == SYSTEMS.register
    assert SYSTEMS.register(Half) is Half
    assert SYSTEMS["half_precision"] is Half
    SYSTEMS.remove(Half)
    assert list(SYSTEMS) == before


def changed(**said: Any) -> type[System]:
    return type("Changed", (Half,), said)


class Reserved(Largest):
    def __init__(self, *, rank: int = 0, seed: int = 0) -> None: ...


@pytest.mark.parametrize(
    ("system", "sentence"),
    [
        (3, "register: 3: must be a class of CompressorSystem or ProtocolSystem"),
        (nn.Linear, "must be a class of CompressorSystem or ProtocolSystem"),
        (changed(title=""), "register: Changed: title: '': must be text"),
        (changed(name="top_k"), "register: Changed: name 'top_k' is that of TopK of binsgdm.compressors.sparse"),
        (changed(name="no name"), "register: Changed: name: 'no name': must be letters, digits and _"),
        (
            type("Bare", (CompressorSystem,), dict.fromkeys(("name", "title", "source", "wire_format"), "x")),
            "has no compress",
        ),
        (Reserved, "register: Reserved: option 'seed': must have a default and another name"),
    ],
)
def test_what_does_not_say_what_it_is_is_refused_in_a_sentence(system: Any, sentence: str) -> None:
    before = list(SYSTEMS)
    with pytest.raises(BinsgdmError, match=sentence) as told:
        register(system)
    assert "\n" not in str(told.value)
    assert list(SYSTEMS) == before


PACKAGE = """
from binsgdm.compressors.base import ProtocolSystem
from binsgdm.compressors.compressor import all_reduce_mean

print("imported")


class Other(ProtocolSystem):
    name, title, source, wire_format, aggregation = "other", "Other", "nobody", "fp32", "all_reduce"

    def mean(self, bucket, context):
        return (yield from all_reduce_mean(bucket.values, context))
"""
POINTS = """
[binsgdm.systems]
other = other_systems:Other
broken = other_systems:Missing
named = other_systems:Other
"""


def asked(folder: Path, code: str) -> str:
    """Return what a Python prints that has a package with entry points on its path."""
    (folder / "other_systems.py").write_text(PACKAGE)
    (folder / "other-1.0.dist-info").mkdir()
    (folder / "other-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (folder / "other-1.0.dist-info" / "entry_points.txt").write_text(POINTS)
    head = f"""
import sys, warnings
sys.path.insert(0, {str(folder)!r})
warnings.simplefilter("always")
from binsgdm.compressors.registry import SYSTEMS, make
"""
    (folder / "asks.py").write_text(head + textwrap.dedent(code))
    done = run_script(folder / "asks.py", folder=folder)
    assert done.code == 0, done.stderr
    return done.stdout + done.stderr


def test_a_system_of_another_package_is_found_when_its_name_is_asked_for_and_not_before(tmp_path: Path) -> None:
    said = asked(
        tmp_path,
        """
        make("qsgd", rank=0, world_size=1)
        print("known without")
        print(type(make("other", rank=0, world_size=2)).__name__)
        """,
    )
    assert said.split() == ["known", "without", "imported", "Other"]


def test_a_broken_package_is_one_sentence_and_the_rest_goes_on(tmp_path: Path) -> None:
    said = asked(
        tmp_path,
        """
        print("other" in list(SYSTEMS), "broken" in list(SYSTEMS))
        for name in ("broken", "named"):
            try:
                make(name, rank=0, world_size=1)
            except Exception as error:
                print(type(error).__name__, error)
        """,
    )
    assert "True False" in said
    wanted = "BinsgdmError system: 'broken': other_systems:Missing cannot be loaded (AttributeError: module"
    assert wanted in said
    assert "its name is 'other', and must be that of the entry point); fix or remove that package" in said
    assert said.count("UserWarning") == 2
    assert "Traceback" not in said


class Chosen(Largest):
    """Options of every kind that is checked, and of some that are not."""

    name = "chosen_of_outside"

    def __init__(
        self,
        *,
        ratio: "float | None" = None,
        kind: Literal["a", 2] = "a",
        on: bool = False,
        k: Annotated[int, "such as 4"] = 1,
        free: Any = 1,
        bare=1,
    ) -> None:
        super().__init__()
        if k < 0:
            raise ValueError("k: below 0")


class Unresolved(Largest):
    """Whose annotations only a type checker understands."""

    name = "unresolved_of_outside"

    def __init__(self, *, part: "NotHere" = 0.1) -> None:  # type: ignore[name-defined]  # noqa: F821
        super().__init__(part=part)


@pytest.fixture
def options_of_every_kind() -> Any:
    with registered(Half, Chosen, Unresolved):
        yield


@pytest.mark.usefixtures("options_of_every_kind")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("half_precision:largest=nan", "half_precision: largest: nan: must be finite; give a finite number"),
        ("half_precision:largest=-inf", "half_precision: largest: -inf: must be finite; give a finite number"),
        ("half_precision:largest=x", "half_precision: largest: 'x': must be a number; give one"),
        ("half_precision:largest=true", "half_precision: largest: True: must be a number; give one"),
        ("chosen_of_outside:ratio=x", "chosen_of_outside: ratio: 'x': must be a number or none; give one"),
        ("chosen_of_outside:kind=3", "chosen_of_outside: kind: 3: must be 'a' or 2; give one"),
        ("chosen_of_outside:on=1", "chosen_of_outside: on: 1: must be true or false; give one"),
        ("chosen_of_outside:k=1.5", "chosen_of_outside: k: 1.5: must be a whole number; give one"),
        ("chosen_of_outside:k=-1", "k: below 0"),
        ("chosen_of_outside:free=nan", "chosen_of_outside: free: nan: must be finite; give a finite number"),
        ("unresolved_of_outside:part=inf", "unresolved_of_outside: part: inf: must be finite; give a finite number"),
    ],
)
def test_options_that_do_not_fit_their_annotations_are_refused_before_measuring(text: str, said: str) -> None:
    with pytest.raises(BinsgdmError) as refused:
        choices.choice(text, "--system")
    assert str(refused.value) == f"--system {text!r}: {said}"


@pytest.mark.usefixtures("options_of_every_kind")
@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("half_precision:largest=7", {"largest": 7}),
        ("half_precision:largest=0.5", {"largest": 0.5}),
        (
            "chosen_of_outside:ratio=none,kind=2,on=true,free=x,bare=y",
            {"ratio": None, "kind": 2, "on": True, "free": "x", "bare": "y"},
        ),
        ("unresolved_of_outside:part=0.5", {"part": 0.5}),
    ],
)
def test_options_that_fit_or_are_of_no_kind_that_is_known_are_taken(text: str, given: dict[str, Any]) -> None:
    assert choices.choice(text, "--system").options == given
