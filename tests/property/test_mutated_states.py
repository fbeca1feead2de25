"""Damaged states of every system: taken, and the run goes on; or refused in a sentence, and nothing has changed."""

import copy
import os
import random
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from hypothesis import settings

from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.comm.consistency import checksums
from binsgdm.comm.groups import Groups
from binsgdm.compressors.base import Averager, GradientBucket, Shapes
from binsgdm.compressors.registry import SYSTEMS, make
from binsgdm.errors import BinsgdmError
from binsgdm.parallel.ddp_hook import GradientExchange
from tests.helpers.mutations import damaged_data, places

NODES, LOCAL = 2, 2
WORLD_SIZE = NODES * LOCAL
SHAPES: Shapes = ((9, 7), (), (5,), (3, 2, 4))
NUMEL = 93
FORMS = [(name, topology) for name in SYSTEMS for topology in SYSTEMS[name].topologies]


def ends(name: str, topology: str) -> list[Averager]:
    """Return the ends of all ranks, with momentum where the system has any."""
    options: dict[str, Any] = dict(SYSTEMS[name].usual_options)
    if "momentum" in SYSTEMS[name].options and name != "random_k":
        options["momentum"] = 0.9
    if name in ("power_sgd", "grad_zip"):
        options["matrix_rank"] = 2
    return [
        make(name, rank=rank, world_size=WORLD_SIZE, ranks_per_node=LOCAL, topology=topology, **options)
        for rank in range(WORLD_SIZE)
    ]


def means(systems: list[Averager], step: int) -> list[torch.Tensor]:
    """Return what every rank gets in a step of drawn gradients."""
    generator = torch.Generator().manual_seed(step)
    protocols = [
        system.mean(
            GradientBucket(
                values=torch.randn(NUMEL, generator=generator), parameters=tuple(range(len(SHAPES))), shapes=SHAPES
            ),
            RankContext(rank=rank, world_size=WORLD_SIZE, ranks_per_node=LOCAL, seed=3, step=step),
        )
        for rank, system in enumerate(systems)
    ]
    return run_in_lockstep(protocols, LOCAL)


def states(name: str, topology: str) -> list[dict[str, Any]]:
    """Return the states of all ranks after two steps."""
    systems = ends(name, topology)
    for step in (1, 2):
        means(systems, step)
    return [system.state_dict() for system in systems]


def alike(one: Any, other: Any) -> bool:
    """Tell whether two states are equal to the bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


NUM = int(os.environ.get("SIMNET_MUTATIONS", min(settings.default.max_examples // 3, 30)))
SEED = int(os.environ.get("SIMNET_SEED", "1"))
EXCHANGED = [("qsgd", "hierarchical"), ("grad_zip", "all_reduce"), ("top_k", "hierarchical_scatter_reduce")]
STATEFUL = [form for form in FORMS if states(*form)[0]]


@cache
def whole(name: str, topology: str) -> list[dict[str, Any]]:
    return states(name, topology)


def other_tensors(tensor: torch.Tensor, rng: random.Random) -> Any:
    """Return what may stand in a damaged file in place of a tensor."""
    broken = tensor.clone()
    broken.view(-1)[rng.randrange(broken.numel())] = rng.choice([torch.nan, torch.inf, -torch.inf])
    return rng.choice(
        [
            broken, tensor[:-1], tensor[:0], tensor[None], tensor.view(-1, 1), tensor.double(), tensor.half(),
            tensor.to(torch.int32), tensor.bool(), tensor.to(torch.complex64), tensor.to_sparse(), tensor.to("meta"),
            tensor.tolist(), tensor.numpy(), torch.tensor(1.0), torch.nn.Parameter(tensor), tensor * 3, 0.5,
        ]
    )  # fmt: skip


def damaged_state(state: dict[str, Any], rng: random.Random) -> Any:
    """Return a copy with one to three values damaged."""
    if rng.random() < 0.5 or not any(is_whole(value_at(state, path)) for path in places(state)):
        return damaged_data(state, rng)
    state = copy.deepcopy(state)
    for _ in range(rng.choice((1, 1, 2))):
        path = rng.choice([path for path in places(state) if is_whole(value_at(state, path))])
        value_at(state, path[:-1])[path[-1]] = other_tensors(value_at(state, path), rng)
    return state


def value_at(data: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def is_whole(value: Any) -> bool:
    is_plain = isinstance(value, torch.Tensor) and value.dtype == torch.float32 and value.layout == torch.strided
    return is_plain and value.dim() > 0 and value.numel() > 0 and not value.is_meta and not value.requires_grad


def is_sentence(text: str) -> bool:
    return text.isprintable() and text.count(": ") >= 2 and "; " in text and len(text) < 500


def told(form: tuple[str, str], rank: int, state: Any) -> Iterator[str]:
    """Load a damaged state on one rank and go on, as a resumed run does; yield what is wrong with the answer."""
    systems = ends(*form)
    states = [*whole(*form)]
    states[rank] = state
    for number, (system, one) in enumerate(zip(systems, states, strict=True)):
        before = system.state_dict()
        try:
            system.load_state_dict(one)
        except BinsgdmError as error:
            if not is_sentence(str(error)):
                yield f"no sentence: {error}"
            if number != rank:
                yield f"the whole state of rank {number} is refused: {error}"
            if not alike(system.state_dict(), before):
                yield f"refused, but taken in part: {error}"
            return
    if not differ(systems):  # else the first exchange refuses
        yield from after_a_step(systems)


def after_a_step(systems: list[Averager]) -> Iterator[str]:
    """Yield what is wrong with a step."""
    try:
        results = means(systems, 3)
    except BinsgdmError as error:
        if not is_sentence(str(error)):
            yield f"no sentence: {error}"
        return
    if not all(torch.equal(one, results[0]) for one in results):
        yield "replicas differ"
    if not results[0].isfinite().all():
        yield "gradients that are not finite"


class Model:
    """As much of a DDP model as an exchange looks at before its first backward."""

    process_group = None

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        return (torch.nn.Parameter(torch.zeros(1)) for _ in range(5))


def exchange(name: str, topology: str, **others: Any) -> GradientExchange:
    """Return the exchange of rank 0."""
    alone: Any = None
    groups = Groups(
        world=alone, intra_node=alone, inter_node=alone, rank=0, world_size=WORLD_SIZE, ranks_per_node=LOCAL
    )
    model: Any = Model()
    settings = {"system": name, "seed": 3, "topology": topology, **others}
    return GradientExchange(model, ends(name, topology)[0], groups, seed=3, on_sent=None, settings=settings)


def state_of_exchange(name: str, topology: str) -> dict[str, Any]:
    state = exchange(name, topology).state_dict()
    return state | {"step": 3, "layout": [[4, 2], [3], [1, 0]], "system": whole(name, topology)[0]}


def differ(systems: list[Averager]) -> bool:
    """Tell whether ranks of a common group have other values of what they must have alike."""
    found: dict[int, list[Any]] = {}
    for rank, system in enumerate(systems):
        values = system.common_values()
        group = 0 if system.common_group == "world" else rank % 2
        compared = {name: checksums(value) if name == "factors" else value for name, value in values.items()}
        found.setdefault(group, []).append(compared)
    return any(one != members[0] for members in found.values() for one in members)


@pytest.mark.parametrize("form", STATEFUL, ids="-".join)
def test_a_damaged_state_is_refused_in_a_sentence_or_the_run_goes_on(form: tuple[str, str]) -> None:
    for number in range(NUM):
        seed = f"{'-'.join(form)} {SEED} {number}"
        rng = random.Random(seed)
        rank = rng.randrange(WORLD_SIZE)
        state = damaged_state(whole(*form)[rank], rng)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = list(told(form, rank, state))
        except Exception as error:
            raise AssertionError(f"{seed}: {state!r:.2000}") from error
        assert not found, f"{seed}: {found[0]}: {state!r:.2000}"


@pytest.mark.parametrize("form", EXCHANGED, ids="-".join)
def test_a_damaged_state_of_an_exchange_is_refused_whole_or_taken(form: tuple[str, str]) -> None:
    for number in range(4 * NUM):
        seed = f"{'-'.join(form)} exchange {SEED} {number}"
        state = damaged_state(state_of_exchange(*form), random.Random(seed))
        one = exchange(*form)
        before, said = one.state_dict(), ""
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                one.load_state_dict(state)
            except BinsgdmError as error:
                said = str(error)
        after = one.state_dict()
        assert not said or (is_sentence(said) and alike(before, after)), f"{seed}: {said}: {state!r:.2000}"
        assert all(str(one.message).isprintable() and len(str(one.message)) < 500 for one in warned), seed
        numbers = [number for bucket in after["layout"] or () for number in bucket]
        assert set(numbers) <= set(range(5)), seed
        assert len(set(numbers)) == len(numbers), seed
        assert after["step"] >= 1, seed


def test_the_state_of_another_system_is_refused_and_of_other_settings_taken_with_a_warning() -> None:
    state = state_of_exchange("top_k", "gather")
    with pytest.raises(BinsgdmError, match="a state of system 'top_k': must be of 'one_bit_sgd'"):
        exchange("one_bit_sgd", "gather").load_state_dict(state)
    with pytest.warns(UserWarning, match="a state of ratio=unknown: the run goes on, but not bit for bit"):
        exchange("top_k", "gather", ratio=0.5).load_state_dict(state)
    former = {"step": 3, "system": state["system"]}
    with pytest.warns(UserWarning, match="without a layout"):
        exchange("top_k", "gather").load_state_dict(former)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_a_state_of_another_form_is_refused_or_starts_anew(form: tuple[str, str]) -> None:
    foreign = [
        None, 3, "x", [], [("rank", 0)], torch.ones(3), {"state": {}, "param_groups": []}, {1: 2},
        {f"layer.{number}.weight": torch.ones(2) for number in range(300)},
    ]  # fmt: skip
    for state in foreign:
        system = ends(*form)[0]
        with pytest.raises(BinsgdmError) as caught:
            system.load_state_dict(state)  # type: ignore[arg-type]
        assert is_sentence(str(caught.value)), str(caught.value)
