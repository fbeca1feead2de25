"""What gloo ranks do around an attached optimizer: detach, copies of the model, other optimizers, wrong arguments."""

import copy
import os
import pickle
import threading
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import binsgdm
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.parallel.ddp import attach_one_bit_adam
from binsgdm.parallel.ddp_hook import compress_gradients
from binsgdm.parallel.fsdp import attach_fsdp
from tests.helpers.launch import join, of_all

WORLD_SIZE = 2
TIMEOUT = timedelta(seconds=20)
WAYS: dict[str, dict[str, Any]] = {"BinSGDM": {}, "BinSGDM, overlap": {"overlap": True}, "1-bit Adam": {}}


def work(rank: int, folder: str) -> None:
    """Do all cases; rank 0 leaves in a file what all ranks had."""
    torch.set_num_threads(1)
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    join(rank, WORLD_SIZE, folder, TIMEOUT)
    results: dict[Any, Any] = {("detach", way): of_all(detached(rank, way)) for way in WAYS}
    results["one of two"] = of_all(one_of_two_detached(rank))
    results["leaks"] = {way: of_all(left_behind(rank, way)) for way in (*WAYS, "FSDP2")}
    results |= {("told", name): of_all(_told(case)) for name, case in cases(rank).items()}
    results["copies"] = of_all(copies(rank))
    results["types"] = {name: of_all(_told(case)) for name, case in wrong_types(rank == 1).items()}
    if rank == 0:
        torch.save(results, Path(folder) / "results.pt")
    dist.barrier()
    dist.destroy_process_group()


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


def detached(rank: int, way: str) -> dict[str, Any]:
    """Return what AdamW makes of a model after detach, and of one that nothing was attached to."""
    model = DistributedDataParallel(module(), bucket_cap_mb=0.0003)
    optimizer = attached(model, way)
    train(model, optimizer, rank)
    binsgdm.detach(optimizer)
    binsgdm.detach(optimizer)
    plain = DistributedDataParallel(copy.deepcopy(model.module), bucket_cap_mb=0.0003)
    found = {}
    for name, one in (("detached", model), ("plain", plain)):
        train(one, torch.optim.AdamW(one.parameters()), rank, steps=3)
        found[name] = [tensor.detach().clone() for p in one.parameters() for tensor in (p, p.grad)]
    binsgdm.check_replicas(model)
    again = attached(model, way)
    train(model, again, rank)
    binsgdm.check_replicas(model)
    return found


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


def left_behind(rank: int, way: str) -> tuple[int, int]:
    """Return by how much process groups and threads have become more after attach, a few steps and detach."""
    model: Any = module()
    mesh: Any = None
    if way == "FSDP2":
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("node", "local"))
        fully_shard(model, mesh=mesh["local"])
    else:
        model = DistributedDataParallel(model)
        backward(model, rank)
    for round_number in range(2):  # attached for the first time, some things are made once for all
        if round_number == 1:
            before = len(dist.distributed_c10d._world.pg_names), threading.active_count()
        if way == "FSDP2":
            optimizer = binsgdm.BinSGDM(model.parameters())
            attach_fsdp(optimizer, mesh)
        else:
            optimizer = attached(model, way)
        train(model, optimizer, rank)
        binsgdm.detach(optimizer)
    return len(dist.distributed_c10d._world.pg_names) - before[0], threading.active_count() - before[1]


def cases(rank: int) -> dict[str, Callable[[], object]]:
    """Return by name what scripts do, which is to be refused or to work."""
    return steps_of_others(rank) | after_detach(rank) | hooks(rank) | models(rank) | replicas(rank)


def steps_of_others(rank: int) -> dict[str, Callable[[], object]]:
    def another_optimizer(way: str) -> None:
        model = DistributedDataParallel(module())
        train(model, attached(model, way), rank)
        train(model, torch.optim.AdamW(model.parameters()), rank)

    def detach_after_a_refusal() -> None:
        model = DistributedDataParallel(module(), bucket_cap_mb=0.0003)
        optimizer = attached(model, "BinSGDM")
        train(model, optimizer, rank)
        another = torch.optim.AdamW(model.parameters())
        assert "call binsgdm.detach" in _told(lambda: train(model, another, rank))
        binsgdm.detach(optimizer)
        train(model, another, rank)

    def by_hand() -> None:
        model = DistributedDataParallel(module())
        attached(model, "BinSGDM")
        for number in range(2):
            backward(model, rank, number)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad)

    def in_other_ways() -> None:
        model = DistributedDataParallel(module())
        optimizer = attached(model, "BinSGDM")
        model.load_state_dict(model.state_dict())
        backward(model, rank)
        backward(model, rank)  # accumulated without no_sync
        optimizer.step()
        saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        backward(model, rank)  # a step left out
        backward(model, rank)
        model.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])  # back to where it was
        backward(model, rank)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for factor in (1.0, torch.inf, 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(1, 6)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
        binsgdm.check_replicas(model)

    return {
        **{f"another optimizer, {way}": lambda way=way: another_optimizer(way) for way in WAYS},
        "detach after a refusal": detach_after_a_refusal,
        "by hand": by_hand,
        "in other ways": in_other_ways,
    }


def after_detach(rank: int) -> dict[str, Callable[[], object]]:
    def steps(**options: Any) -> None:
        model = DistributedDataParallel(module())
        optimizer = attached(model, "BinSGDM", **options)
        train(model, optimizer, rank)
        binsgdm.detach(optimizer)
        train(model, optimizer, rank)

    def on_one_rank() -> None:
        model = DistributedDataParallel(module())
        optimizer = attached(model, "BinSGDM", timeout=timedelta(seconds=1))
        if rank == 1:
            binsgdm.detach(optimizer)

    return {
        "steps after detach": steps,
        "slices after detach": lambda: steps(average="gradients"),
        "detach on one rank": on_one_rank,
        "detach of none": lambda: binsgdm.detach(binsgdm.BinSGDM(module().parameters())),
    }


def hooks(rank: int) -> dict[str, Callable[[], object]]:
    def compress_after_attach() -> None:
        model = DistributedDataParallel(module())
        attached(model, "BinSGDM")
        compress_gradients(model, "qsgd")

    def attach_after_compress(way: str) -> None:
        model = DistributedDataParallel(module())
        compress_gradients(model, "qsgd")
        attached(model, way)

    def with_hook(register: Callable[[Any], None], way: str) -> None:
        model = DistributedDataParallel(module())
        register(model)
        if way in WAYS:
            attached(model, way)
        else:
            compress_gradients(model, way)

    def stock(model: Any) -> None:
        model.register_comm_hook(None, allreduce_hook)

    def built_in(model: Any) -> None:
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)

    return {
        "compress after attach": compress_after_attach,
        **{f"attach after compress, {way}": lambda way=way: attach_after_compress(way) for way in WAYS},
        "a hook, attach": lambda: with_hook(stock, "BinSGDM"),
        "a hook, compress": lambda: with_hook(stock, "qsgd"),
        "a built-in hook, attach": lambda: with_hook(built_in, "1-bit Adam"),
    }


def models(rank: int) -> dict[str, Callable[[], object]]:
    def attach_to(choose: Callable[[Any], Any], way: str = "BinSGDM") -> None:
        model = DistributedDataParallel(module())
        kind, attach = (OneBitAdam, attach_one_bit_adam) if way == "1-bit Adam" else (binsgdm.BinSGDM, binsgdm.attach)
        attach(kind(model.parameters()), choose(model))  # type: ignore[operator]

    def several() -> None:
        both = nn.ModuleList([DistributedDataParallel(module()) for _ in range(2)])
        optimizer = attached(both, "BinSGDM")
        for number in range(2):
            optimizer.zero_grad()
            for one in both:
                backward(one, rank, number)
            optimizer.step()
        binsgdm.check_replicas(both)

    def compiled() -> None:
        model: Any = torch.compile(DistributedDataParallel(module()), backend="eager")
        train(model, attached(model, "BinSGDM, overlap"), rank)
        binsgdm.check_replicas(model)

    return {
        "the module": lambda: attach_to(lambda model: model.module),
        "the module, 1-bit Adam": lambda: attach_to(lambda model: model.module, "1-bit Adam"),
        "another model": lambda: attach_to(lambda _: DistributedDataParallel(module())),
        "no model": lambda: attach_to(lambda _: 3),
        "several models": several,
        "compiled": compiled,
    }


def replicas(rank: int) -> dict[str, Callable[[], object]]:
    def of_dtypes(number: int) -> None:
        binsgdm.check_replicas(_of_dtypes(number if rank == 1 else -1))

    return {
        **{f"replicas {number}": lambda number=number: of_dtypes(number) for number in range(-1, len(DTYPES))},
        "replicas of other shapes": lambda: binsgdm.check_replicas(nn.Linear(3, 2 + rank)),
        "replicas of other dtypes": lambda: binsgdm.check_replicas(nn.Linear(3, 2).to(FLOATS[rank])),
        "replicas of more": lambda: binsgdm.check_replicas(nn.ParameterList([torch.zeros(2)] * (1 + rank))),
        "replicas of none": lambda: binsgdm.check_replicas(nn.ReLU()),
    }


FLOATS = (torch.float32, torch.bfloat16)
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
