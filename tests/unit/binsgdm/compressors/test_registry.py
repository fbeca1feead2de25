"""Every system of the registry refuses in a sentence what it cannot take, and says of values that are not finite."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.compressors.base import GradientBucket, Payload, Shapes
from binsgdm.compressors.registry import SYSTEMS, check_options, make
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.random import Key

SHAPES: Shapes = ((12, 20), (9,), (0, 3), ())
NUMEL = 250
OPTIONS: dict[str, dict[str, Any]] = {"top_k": {"k": 20}, "ms_top_k": {"k": 20}, "random_k": {"k": 20}}


def system_of(name: str, world_size: int = 1, rank: int = 0) -> Any:
    return make(name, rank=rank, world_size=world_size, **OPTIONS.get(name, {}))


def normal(seed: int = 1) -> torch.Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed))


def mean_of(systems: list[Any], grads: list[torch.Tensor], step: int = 1, shapes: Shapes = SHAPES) -> list[Any]:
    size = len(systems)
    names = tuple(range(len(shapes)))
    talks = [
        one.mean(
            GradientBucket(values=grad, parameters=names, shapes=shapes),
            RankContext(rank=rank, world_size=size, ranks_per_node=1, seed=1, step=step),
        )
        for rank, (one, grad) in enumerate(zip(systems, grads, strict=True))
    ]
    return run_in_lockstep(talks, 1)


def is_sentence(text: str) -> bool:
    return "\n" not in text and text.count(": ") >= 1 and len(text) < 400


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize(
    ("values", "shapes", "said"),
    [
        (normal().to_sparse(), SHAPES, "a sparse gradient"),
        (normal().to(torch.complex64), SHAPES, "a complex gradient"),
        (torch.zeros(0), ((0, 3),), "must have at least one element"),
        (torch.zeros(0), (), "must have at least one element"),
        (normal()[:-1], SHAPES, "must be flat float32"),
        (normal().double(), SHAPES, "must be flat float32"),
        (normal().to(torch.int32), SHAPES, "must be flat float32"),
        (normal().view(25, 10), SHAPES, "must be flat float32"),
    ],
    ids=["sparse", "complex", "empty", "none", "short", "double", "whole", "matrix"],
)
def test_values_that_cannot_be_compressed_are_refused(name: str, values: Any, shapes: Shapes, said: str) -> None:
    with pytest.raises(BinsgdmError, match=said) as caught:
        mean_of([system_of(name)], [values], shapes=shapes)
    assert is_sentence(str(caught.value))


STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, float("nan"), float("inf"), 10**400, 10**5000, "x" * 3000, "a\nb", [], {}, (1,), b"1", 1j,
    torch.ones(2), torch.tensor(1), object, lambda: 1, {"a": 1}, "\x1b[2J",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name in SYSTEMS for option in SYSTEMS[name].options], ids=str
)
def test_an_option_of_another_type_is_refused_in_a_sentence_or_works(name: str, option: str) -> None:
    for value in STRANGE:
        options = ({} if option in ("k", "ratio") else OPTIONS.get(name, {})) | {option: value}
        try:
            system = make(name, rank=0, world_size=1, **options)
        except BinsgdmError as error:
            said = str(error)
        else:
            said = ""
        if said:
            assert is_sentence(said), said
            assert said.startswith(f"{name}: "), said
            continue
        assert mean_of([system], [normal()])[0].isfinite().all(), (option, value)


@pytest.mark.parametrize("argument", ["rank", "world_size", "ranks_per_node", "topology", "intra_node_dtype"])
def test_an_argument_of_another_type_is_refused_in_a_sentence(argument: str) -> None:
    topology = {} if argument == "topology" else {"topology": "hierarchical"}
    right = (0,) if argument == "rank" else (None,) if argument in ("topology", "intra_node_dtype") else ()
    for value in STRANGE:
        if any(value is one for one in right):
            continue
        with pytest.raises(BinsgdmError) as caught:
            make("qsgd", **{"rank": 0, "world_size": 2, "ranks_per_node": 1, **topology, argument: value})
        assert is_sentence(str(caught.value)), str(caught.value)
        assert str(caught.value).startswith(f"qsgd: {argument}: "), str(caught.value)


@pytest.mark.parametrize("option", ["rank", "world_size", "name"])
def test_an_option_with_the_name_of_an_argument_is_unknown_as_any_other(option: str) -> None:
    with pytest.raises(BinsgdmError, match=f"^power_sgd: {option}: unknown option"):
        check_options("power_sgd", {option: 4})


@pytest.mark.parametrize("name", [None, 4, ["qsgd"], ""])
def test_what_is_no_name_of_a_system_is_refused(name: Any) -> None:
    with pytest.raises(BinsgdmError, match=r"^system: .*: unknown"):
        make(name, rank=0, world_size=1)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", SYSTEMS)
def test_one_value_of_one_rank_that_is_not_finite_is_seen_on_all_and_leaves_nothing_behind(
    name: str, bad: float
) -> None:
    systems = [system_of(name, 3, rank) for rank in range(3)]
    mean_of(systems, [normal(seed) for seed in range(3)])
    broken = [normal(seed) for seed in range(3, 6)]
    broken[1][17] = bad
    results = mean_of(systems, broken, step=2)
    assert not results[0].isfinite().all()
    assert all(torch.equal(results[0].isfinite(), other.isfinite()) for other in results)
    assert all(one.isfinite().all() for one in mean_of(systems, [normal(seed) for seed in range(6, 9)], step=3))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_signs_of_a_fixed_scale_show_what_is_not_finite(bad: float) -> None:
    systems = [make("marsit", rank=rank, world_size=3, scale=0.5) for rank in range(3)]
    broken = [normal(seed) for seed in range(3)]
    broken[2][0] = bad
    assert all(one.isnan().all() for one in mean_of(systems, broken))


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("state", [{"nonsense": 1}, {"residuals": 3, "rank": 0, "world_size": 1}])
def test_a_state_of_another_system_is_refused(name: str, state: dict[str, Any]) -> None:
    with pytest.raises(BinsgdmError) as caught:
        system_of(name).load_state_dict(state)
    assert is_sentence(str(caught.value))


@pytest.mark.parametrize("name", [name for name, entry in SYSTEMS.items() if entry.has_feedback])
@pytest.mark.parametrize("saved", [(0, 2), (1, 3)], ids=["world size", "rank"])
def test_residuals_of_another_rank_or_world_start_from_zero_with_a_warning(name: str, saved: tuple[int, int]) -> None:
    rank, size = saved
    grads = [normal(seed) for seed in range(size)]
    systems = [system_of(name, size, number) for number in range(size)]
    mean_of(systems, grads)
    other = system_of(name, 3, 0)
    with pytest.warns(UserWarning, match=f"the state of rank {rank} of {size} on rank 0 of 3: residuals start from"):
        other.load_state_dict(copy.deepcopy(systems[rank].state_dict()))
    assert len(other.residuals) == 0


def changed(payload: Payload) -> dict[str, Payload]:
    """Return payloads that no compressor of these settings makes."""
    first, *rest = payload.tensors
    return {
        "shorter": Payload(tensors=(first[:-1], *rest)) if first.numel() else Payload(tensors=()),
        "fewer": Payload(tensors=payload.tensors[:-1]),
        "more": Payload(tensors=(*payload.tensors, first)),
        "another dtype": Payload(tensors=(first.double(), *rest)),
        "nothing": Payload(tensors=()),
    }


@pytest.mark.parametrize("how", ["shorter", "fewer", "more", "another dtype", "nothing"])
@pytest.mark.parametrize("name", [name for name in SYSTEMS if hasattr(system_of(name), "compressor")])
def test_a_payload_of_another_version_or_shape_is_refused(name: str, how: str) -> None:
    compressor, key = system_of(name).compressor, Key(seed=1)
    payload = changed(compressor.compress(normal(), SHAPES, key))[how]
    with pytest.raises(BinsgdmError, match=f"^{name}: a payload of ") as caught:
        compressor.decompress(payload, SHAPES, key)
    assert is_sentence(str(caught.value))


@pytest.mark.parametrize("make_bucket", [lambda: {"parameters": (1, 1)}, lambda: {"parameters": (1,)}])
def test_a_parameter_twice_or_without_a_shape_is_refused(make_bucket: Callable[[], dict[str, Any]]) -> None:
    with pytest.raises(BinsgdmError, match="for 2 shapes: must be as many; add some"):
        GradientBucket(values=torch.zeros(2), shapes=((1,), (1,)), **make_bucket())
