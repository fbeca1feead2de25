"""Rows about what scripts do around a step: several optimizers, schedulers, closures, hooks, uneven inputs."""

import copy
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler
from torch.profiler import profile

import binsgdm
from tests.works.table import COLUMNS, Way, refused, row, row_elsewhere, works
from tests.works.training import (
    CAP_MB,
    STEPS,
    Training,
    batch,
    check_equal,
    check_moved,
    join,
    model,
    optimizer_of,
    plain,
    shared_folder,
    train,
)


@row("Another optimizer for some parameters")
def another_optimizer_for_some(way: Way) -> None:
    module = model()
    ddp = DistributedDataParallel(module, bucket_cap_mb=CAP_MB)
    optimizers: list[Any] = [optimizer_of(way, module[:4].parameters()), torch.optim.AdamW(module[4].parameters())]
    join(way, optimizers[0], ddp)
    train(ddp, *optimizers)
    check_moved(module)


@row("Another optimizer later, after `detach`")
def another_optimizer_after_detach(way: Way) -> None:
    training = Training(way).run()
    if training.exchange is None:
        binsgdm.detach(training.optimizer)
    else:
        training.exchange.detach()
    dense = DistributedDataParallel(copy.deepcopy(training.module), bucket_cap_mb=CAP_MB)
    for ddp in (training.ddp, dense):
        train(ddp, torch.optim.AdamW(ddp.parameters()))
    check_equal(training.parameters(), [parameter.detach() for parameter in dense.parameters()])


@row(
    "Another optimizer later, without `detach`",
    **dict.fromkeys(("binsgdm", "overlap", "adam"), refused("call binsgdm.detach")),
    hook=works("compressing goes on"),
)
def another_optimizer_without_detach(way: Way) -> None:
    training = Training(way).run()
    training.optimizer = torch.optim.AdamW(training.ddp.parameters())
    training.run()
    training.parameters()


@row("Two such optimizers of one model")
def two_optimizers(way: Way) -> None:
    module = model()
    ddp = DistributedDataParallel(module, bucket_cap_mb=CAP_MB)
    halves = [optimizer_of(way, half.parameters()) for half in (module[:2], module[2:])]
    for optimizer in halves[: 1 if way.column == "hook" else 2]:
        join(way, optimizer, ddp)
    train(ddp, *halves)
    check_moved(module)


@row("GAN: the generator's step inside `discriminator.no_sync()`")
def generator_and_discriminator(way: Way) -> None:
    torch.manual_seed(0)
    generator, discriminator = (Training(way, nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6))) for _ in "gd")
    for step in range(STEPS):
        discriminator.optimizer.zero_grad()
        with torch.no_grad():
            made = generator.ddp(batch(step))
        (discriminator.ddp(made).mean() - discriminator.ddp(batch(step, 1)).mean()).backward()
        discriminator.optimizer.step()
        generator.optimizer.zero_grad()
        with discriminator.ddp.no_sync():
            discriminator.ddp(generator.ddp(batch(step, 2))).mean().backward()
        generator.optimizer.step()
    for one in (generator, discriminator):
        one.parameters()


@row("GAN without it", overlap=works("with a warning: averages take in both losses"))
def generator_without_no_sync(way: Way) -> None:
    torch.manual_seed(0)
    generator, discriminator = (Training(way, nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 6))) for _ in "gd")
    for step in range(2):
        discriminator.optimizer.zero_grad()
        discriminator.ddp(generator.ddp(batch(step)).detach()).mean().backward()
        discriminator.optimizer.step()
        generator.optimizer.zero_grad()
        discriminator.ddp(generator.ddp(batch(step, 2))).mean().backward()
        generator.optimizer.step()
    for one in (generator, discriminator):
        one.parameters()


@row("`OneCycleLR`, which moves momentum, too")
def one_cycle(way: Way) -> None:
    training = Training(way)
    scheduler = lr_scheduler.OneCycleLR(training.optimizer, max_lr=0.01, total_steps=STEPS)
    for step in range(STEPS):
        training.step(step)
        scheduler.step()
    check_moved(training.module)


@row("`ReduceLROnPlateau` on a loss averaged over ranks")
def plateau(way: Way) -> None:
    training = Training(way)
    scheduler = lr_scheduler.ReduceLROnPlateau(training.optimizer, patience=0)
    for step in range(STEPS):
        training.step(step)
        loss = training.loss(step).detach()
        dist.all_reduce(loss)
        scheduler.step(loss + step)
    assert training.optimizer.param_groups[0]["lr"] < 0.01 or way.column == "hook"
    check_moved(training.module)


OPTIMIZERS = ("binsgdm", "overlap", "adam")


@row(
    "`ReduceLROnPlateau` on this rank's own loss",
    **dict.fromkeys(OPTIMIZERS, refused("lr of group 0 of rank 1: 0.001: must equal rank 0's 0.01")),
    hook=refused("check_replicas: 0.weight: ranks [1] differ"),
)
def plateau_on_a_local_metric(way: Way) -> None:
    training = Training(way)
    scheduler = lr_scheduler.ReduceLROnPlateau(training.optimizer, patience=0)
    for step in range(STEPS):
        training.step(step)
        scheduler.step(float(step if dist.get_rank() else -step))
    training.parameters()


@row("Closures: `step(closure)`")
def closures(way: Way) -> None:
    training = Training(way)
    for step in range(STEPS):

        def closure(step: int = step) -> float:
            training.backward(step)
            return float(step)

        assert training.optimizer.step(closure) == step
    check_equal(training.parameters(), plain(way))


@row("Step hooks")
def step_hooks(way: Way) -> None:
    training = Training(way)
    called: list[str] = []
    training.optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    training.optimizer.register_step_post_hook(lambda *_: called.append("after"))
    check_equal(training.run().parameters(), plain(way))
    assert called == ["before", "after"] * STEPS


@row("State-dict hooks")
def state_dict_hooks(way: Way) -> None:
    training = Training(way).run(range(2))
    training.optimizer.register_state_dict_post_hook(lambda _, state: {"of_a_library": state})
    saved = training.optimizer.state_dict()
    assert list(saved) == ["of_a_library"]
    other = optimizer_of(way, model().parameters())
    other.register_load_state_dict_pre_hook(lambda _, state: state["of_a_library"])
    seen: list[Any] = []
    other.register_load_state_dict_post_hook(seen.append)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # residuals of two ranks, for an optimizer alone
        other.load_state_dict(saved)
    assert seen == [other]
    key = {"adam": "exp_avg", "hook": "momentum_buffer"}.get(way.column, "m")
    states = [next(iter(one.state.values()))[key] for one in (training.optimizer, other)]
    assert torch.equal(*states)


@row(
    "A step left out by all ranks (loss spike)",
    overlap=works("with a warning: the averages take in the gradients of that step"),
)
def skipped_step(way: Way) -> None:
    training = Training(way)
    for step in range(STEPS):
        training.backward(step)
        if step != 1:
            training.optimizer.step()
    check_moved(training.module)


@row(
    "A group added later (gradual unfreezing)",
    **dict.fromkeys(("binsgdm", "overlap"), refused("add_param_group: after attach")),
    adam=refused("add_param_group after the first step"),
)
def added_parameters(way: Way) -> None:
    _unfreeze(way, attaches_anew=False)


@row("The same with `detach` before and attach after", adam=refused("add_param_group after the first step"))
def added_parameters_after_detach(way: Way) -> None:
    _unfreeze(way, attaches_anew=True)


def _unfreeze(way: Way, *, attaches_anew: bool) -> None:
    module = model()
    ddp = DistributedDataParallel(module, bucket_cap_mb=CAP_MB)
    optimizer = optimizer_of(way, module[4].parameters())
    exchange = join(way, optimizer, ddp)
    for step in range(STEPS):
        if step == 1:
            if attaches_anew and exchange is None:
                binsgdm.detach(optimizer)
            optimizer.add_param_group({"params": list(module[:4].parameters())})
            if attaches_anew and exchange is None:
                join(way, optimizer, ddp)
        ddp.zero_grad()
        ddp(batch(step)).square().mean().backward()
        optimizer.step()
    check_moved(module)


IN_A_THREAD = works("what runs beside backward is seen with `profile_all_threads`")
STAGES = {
    "binsgdm": {"update", "merge", "apply", "all_to_all inter_node", "all_gather inter_node", "finite_check world"},
    "overlap": {"update", "merge", "apply", "all_to_all inter_node", "all_gather inter_node", "finite_check world"},
    "adam": {"all_gather world", "all_reduce world", "all_to_all world"},
    "hook power_sgd": {"copy_gradients", "average_bucket", "all_reduce world"},
    "hook qsgd": {"copy_gradients", "average_bucket", "encode", "all_gather world", "decode"},
}


@row("`torch.profiler`: stages stand in traces as `binsgdm::...`", overlap=IN_A_THREAD, hook=IN_A_THREAD)
def profiler(way: Way) -> None:
    training = Training(way)
    in_threads = _ExperimentalConfig(profile_all_threads=way.column in ("overlap", "hook"))
    with profile(experimental_config=in_threads) as trace:
        training.run()
    check_equal(training.parameters(), plain(way))
    path = shared_folder(f"traces of {way}") / f"{dist.get_rank()}.json"
    trace.export_chrome_trace(str(path))
    text = path.read_text(encoding="utf-8")
    assert {one for one in STAGES[str(way)] if f'"name": "binsgdm::{one}"' not in text} == set()


@row(
    "Uneven inputs under `DDP.join()`",
    **dict.fromkeys(
        ("binsgdm", "overlap", "adam"), refused("a backward inside DDP.join(): a rank without batches takes")
    ),
    hook=refused("a backward inside DDP.join() that sends zeros for a rank without batches"),
)
def uneven_inputs(way: Way) -> None:
    training = Training(way)
    with training.ddp.join():
        training.run(range(2 + dist.get_rank()))


BY_A_LIBRARY = "test_a_training_by_a_library_ends_where_the_plain_loop_ends"
AFTER_PREPARE = works("joined after `prepare`, with `optimizer.optimizer` and the prepared model")
ON_TRAIN_START = works(
    "joined in `on_train_start`, with `self.optimizers().optimizer` and `self.trainer.strategy.model`"
)
ON_TRAIN_BEGIN = works(
    "joined in `on_train_begin` of a callback, with `trainer.optimizer.optimizer` and `trainer.model_wrapped`"
)
row_elsewhere(__name__, "lightning", "Lightning", BY_A_LIBRARY, **dict.fromkeys(COLUMNS, ON_TRAIN_START))
row_elsewhere(__name__, "accelerate", "Accelerate", BY_A_LIBRARY, **dict.fromkeys(COLUMNS, AFTER_PREPARE))
row_elsewhere(__name__, "transformers", "transformers' Trainer", BY_A_LIBRARY, **dict.fromkeys(COLUMNS, ON_TRAIN_BEGIN))
