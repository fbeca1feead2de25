"""What training scripts do around an attached optimizer: detach, copies of the model, other optimizers, wrong types."""

import copy
import pickle
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import binsgdm
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.parallel.ddp import attach_one_bit_adam
from binsgdm.parallel.fsdp import attach_fsdp
from tests.helpers.launch import of_all, rank_of_gloo

WORLD_SIZE = 2
TIMEOUT = timedelta(seconds=20)
WAYS: dict[str, dict[str, Any]] = {"BinSGDM": {}, "BinSGDM, overlap": {"overlap": True}, "1-bit Adam": {}}


def work(rank: int, folder: str) -> None:
    """Do all cases; rank 0 leaves in a file what all ranks had."""
    with rank_of_gloo(rank, WORLD_SIZE, folder, node=1, timeout=TIMEOUT) as results:
        results["one of two"] = of_all(one_of_two_detached(rank))
        results |= {("told", name): of_all(_told(case)) for name, case in cases(rank).items()}
        results["copies"] = of_all(copies(rank))
        results["types"] = {name: of_all(_told(case)) for name, case in wrong_types(rank == 1).items()}


def _told(case: Callable[[], object]) -> str:
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            case()
    except Exception as error:  # whatever a user would see
        return f"{type(error).__name__}: {error}"
    return "; ".join(str(one.message) for one in caught if "binsgdm" in one.filename or "BinSGDM" in str(one.message))


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))


def attached(model: nn.Module, way: str, **options: Any) -> Any:
    if way == "1-bit Adam":
        adam = OneBitAdam(model.parameters(), lr=0.01)
        attach_one_bit_adam(adam, model, **options)
        return adam
    optimizer = binsgdm.BinSGDM(model.parameters(), lr=0.01)
    binsgdm.attach(optimizer, model, **WAYS[way] | options)
    return optimizer


def backward(model: nn.Module, rank: int, number: int = 0) -> None:
    samples = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * number + rank))
    model(samples).square().mean().backward()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, steps: int = 2) -> None:
    for number in range(steps):
        optimizer.zero_grad()
        backward(model, rank, number)
        optimizer.step()


def one_of_two_detached(rank: int) -> list[bool]:
    """Return which gradients are averaged where one of two optimizers of a model was detached."""
    model, plain = DistributedDataParallel(module()), module()
    first, *others = list(model.parameters())
    stays, goes = binsgdm.BinSGDM([first]), binsgdm.BinSGDM(others)
    binsgdm.attach(stays, model)
    binsgdm.attach(goes, model)
    binsgdm.detach(goes)
    for one in (model, plain):
        backward(one, rank)
    return [not torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters(), strict=True)]


def cases(rank: int) -> dict[str, Callable[[], object]]:  # noqa: C901 - a function a case
    """Return by name what scripts do, which is to be refused or to work."""

    def ddp_attached(way: str = "BinSGDM", **options: Any) -> tuple[Any, Any]:
        model = DistributedDataParallel(module(), bucket_cap_mb=0.0003)
        return model, attached(model, way, **options)

    def detach_after_a_refusal() -> None:
        model, optimizer = ddp_attached()
        train(model, optimizer, rank)
        another = torch.optim.AdamW(model.parameters())
        assert "call binsgdm.detach" in _told(lambda: train(model, another, rank))
        binsgdm.detach(optimizer)
        train(model, another, rank)

    def by_hand() -> None:
        model, _ = ddp_attached()
        for number in range(2):
            backward(model, rank, number)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad)

    def steps_after_detach(**options: Any) -> None:
        model, optimizer = ddp_attached(**options)
        train(model, optimizer, rank)
        binsgdm.detach(optimizer)
        train(model, optimizer, rank)

    def detach_on_one_rank() -> None:
        _, optimizer = ddp_attached(timeout=timedelta(seconds=1))
        if rank == 1:
            binsgdm.detach(optimizer)

    def attach_to(choose: Callable[[Any], Any]) -> None:
        model = DistributedDataParallel(module())
        binsgdm.attach(binsgdm.BinSGDM(model.parameters()), choose(model))

    def built_in_hook() -> None:
        model = DistributedDataParallel(module())
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        attached(model, "1-bit Adam")

    def several() -> None:
        both = nn.ModuleList([DistributedDataParallel(module()) for _ in range(2)])
        optimizer = attached(both, "BinSGDM")
        for number in range(2):
            optimizer.zero_grad()
            for one in both:
                backward(one, rank, number)
            optimizer.step()
        binsgdm.check_replicas(both)

    floats = (torch.float32, torch.bfloat16)
    return {
        "detach after a refusal": detach_after_a_refusal,
        "by hand": by_hand,
        "steps after detach": steps_after_detach,
        "slices after detach": lambda: steps_after_detach(average="gradients"),
        "detach on one rank": detach_on_one_rank,
        "detach of none": lambda: binsgdm.detach(binsgdm.BinSGDM(module().parameters())),
        "the module": lambda: attach_to(lambda model: model.module),
        "another model": lambda: attach_to(lambda _: DistributedDataParallel(module())),
        "several models": several,
        "a built-in hook": built_in_hook,
        "replicas -1": lambda: binsgdm.check_replicas(_of_dtypes(-1)),
        **{
            f"replicas {number}": lambda number=number: binsgdm.check_replicas(_of_dtypes(number if rank else -1))
            for number in range(len(DTYPES))
        },
        "replicas of other dtypes": lambda: binsgdm.check_replicas(nn.Linear(3, 2).to(floats[rank])),
        "replicas of more": lambda: binsgdm.check_replicas(nn.ParameterList([torch.zeros(2)] * (1 + rank))),
        "replicas of none": lambda: binsgdm.check_replicas(nn.ReLU()),
    }


DTYPES = [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex32, torch.complex64, torch.complex128, torch.uint8, torch.int16, torch.int64, torch.bool,
    torch.uint16, torch.uint32,
]  # fmt: skip


def _of_dtypes(changed: int) -> nn.Module:
    """Return a model with a parameter of each dtype, of which one has another last bit."""
    parameters = []
    for number, dtype in enumerate(DTYPES):
        octets = torch.arange(48, dtype=torch.uint8) % 2  # bits that every dtype may have
        octets[40] ^= number == changed
        parameters.append(nn.Parameter(octets.view(dtype), requires_grad=False))
    return nn.ParameterList(parameters)


def copies(rank: int) -> dict[str, Any]:
    """Return by kind of copy of an attached DDP model whether its gradients are averaged; then attach the copy."""
    found: dict[str, Any] = {}
    for way in WAYS:
        model = DistributedDataParallel(module())
        optimizer = attached(model, way)
        train(model, optimizer, rank)
        for name, take in {
            "deepcopy": copy.deepcopy,
            "pickle": lambda one: pickle.loads(pickle.dumps(one)),
            "AveragedModel": lambda one: AveragedModel(one).module,
        }.items():
            copied = take(model)
            model.zero_grad()
            with model.no_sync():
                backward(model, rank)
            backward(copied, rank)
            means = [torch.stack(of_all(p.grad)).mean(dim=0) for p in model.parameters()]
            is_averaged = all(torch.allclose(p.grad, q) for p, q in zip(copied.parameters(), means, strict=True))
            of_copy = attached(copied, way)
            train(copied, of_copy, rank)
            binsgdm.check_replicas(copied)
            binsgdm.detach(of_copy)
            found[f"{way}, {name}"] = is_averaged
        train(model, optimizer, rank)
        binsgdm.check_replicas(model)
    return found


def wrong_types(is_wrong: bool) -> dict[str, Callable[[], object]]:
    """Return by function and argument a call with an argument of another type on one rank alone."""
    parameter = [nn.Parameter(torch.zeros(3))]
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("node", "local"))
    sharded: Any = fully_shard(nn.Linear(4, 4), mesh=mesh["local"])

    def attach(optimizer: Any = None, **options: Any) -> None:
        binsgdm.attach(optimizer or binsgdm.BinSGDM(parameter), **options)

    def adam(optimizer: Any = None, **options: Any) -> None:
        attach_one_bit_adam(optimizer or OneBitAdam(parameter), **options)

    def fsdp(optimizer: Any = None, **options: Any) -> None:
        attach_fsdp(optimizer or binsgdm.BinSGDM(sharded.parameters()), **{"mesh": mesh} | options)

    values: dict[str, list[Any]] = {
        "optimizer": ["x", torch.optim.AdamW(parameter)],
        "model": ["x"],
        "topology": [3, ["flat"], None],
        "intra_node_dtype": [torch.bfloat16],
        "average": [True],
        "overlap": [1, "yes"],
        "bucket_cap_mb": ["25", None, float("nan"), float("inf"), True, -1],
        "ranks_per_node": ["1", 1.0, True, [1]],
        "mesh": ["cpu", [[0], [1]]],
        "timeout": [30, timedelta(0), "30 s"],
        "on_sent": ["print", 3],
    }
    takes = {
        attach: list(values),
        adam: ["optimizer", "model", "ranks_per_node", "timeout", "on_sent"],
        fsdp: ["optimizer", "bucket_cap_mb", "on_sent"],
    }
    found: dict[str, Callable[[], object]] = {}
    for call, names in takes.items():
        for name in names:
            for value in values[name]:
                options = {name: value} if is_wrong else {}
                key = f"{call.__name__}, {name}, {str(value)[:9]!r}"
                found[key] = lambda call=call, options=options: call(**options)  # type: ignore[misc]
    # Where the argument says which ranks compare, all have it wrong.
    for name, call in (("attach", attach), ("adam", adam)):
        found[f"{name}, group, 'x'"] = lambda call=call: call(group="x")  # type: ignore[misc]
    found["fsdp, mesh, 'x'"] = lambda: fsdp(mesh="x")
    found["check, model, 'x'"] = lambda: binsgdm.check_replicas("x")  # type: ignore[arg-type]
    found["detach, optimizer, 'x'"] = lambda: binsgdm.detach("x")  # type: ignore[arg-type]
    return found


CHANGED = "parameters have changed since the last backward, but not in its step(): their gradients are each rank's own"


def test_after_detach_of_one_of_two_optimizers_only_its_gradients_are_averaged(results):
    assert results["one of two"] == [[False, True, True, True]] * WORLD_SIZE


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("detach after a refusal", ""),
        ("by hand", f"BinsgdmError: BinSGDM: {CHANGED}"),
        ("steps after detach", "BinSGDM: a step after detach, on averages of this rank's own gradients: ranks of one"),
        ("slices after detach", "BinsgdmError: BinSGDM: averages of slices for 1 ranks a node of 2, bucket_cap_mb=25:"),
        ("detach of none", ""),
        ("a built-in hook", "BinsgdmError: attach_one_bit_adam: a model with the communication hook Builtin"),
        ("the module", "BinsgdmError: attach: model: a Sequential: must be the DistributedDataParallel model, not its"),
        ("another model", "BinsgdmError: attach: model: it does not have parameter 0 of the optimizer: must have all"),
        ("several models", ""),
        ("replicas of other dtypes", "BinsgdmError: check_replicas: shape and dtype of weight of rank 1: ((2, 3), "),
        ("replicas of more", "BinsgdmError: check_replicas: shape and dtype of 1 of rank 1: ((2,), 'torch.float32'):"),
        ("replicas of none", ""),
        ("replicas -1", ""),
    ],
)
def test_all_ranks_are_told_alike_what_does_not_go_together_and_the_rest_works(case, said, results):
    for told in results["told", case]:
        assert told.startswith(said)
        assert bool(told) == bool(said)
        assert "\n" not in told
    if CHANGED in said:
        assert "call binsgdm.detach(optimizer) on all ranks" in told


def test_a_rank_that_waits_for_the_others_to_detach_names_those_that_did_not_come(results):
    first, second = results["told", "detach on one rank"]
    assert not first
    assert second.startswith("BinsgdmError: detach: rank 0 did not come within 1 s: every rank must call it")


def test_a_bit_that_differs_is_seen_in_parameters_of_every_dtype(results):
    for number, dtype in enumerate(DTYPES):
        for told in results["told", f"replicas {number}"]:
            assert told.startswith(f"BinsgdmError: check_replicas: {number}: ranks [1] differ from rank 0: "), dtype


def test_a_copy_of_an_attached_ddp_model_averages_gradients_until_it_is_attached_itself(results):
    for found in results["copies"]:
        assert len(found) == 3 * len(WAYS)
        assert all(found.values()), found


def test_an_argument_of_another_type_is_told_to_all_ranks_in_a_sentence_that_names_function_and_argument(results):
    functions = {"attach": "attach", "adam": "attach_one_bit_adam", "fsdp": "attach_fsdp", "check": "check_replicas"}
    assert len(results["types"]) > 50
    for case, told in results["types"].items():
        function, argument = case.split(", ")[:2]
        for rank, said in enumerate(told):
            assert said.startswith(f"BinsgdmError: {functions.get(function, function)}: "), case
            assert f" {argument}=" in said or f" {argument}: " in said, case
            assert "must be" in said or "unknown: give one of" in said, case
            assert "\n" not in said, case
            assert ("rank 1 refused: " in said) == (rank == 0 and said != told[1]), case
