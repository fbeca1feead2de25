"""Rows about what stands between backward and the step: precision, accumulation, clipping, unusual gradients."""

import torch
import torch.distributed as dist
from torch import nn

from tests.works.table import COLUMNS, Way, refused, row, works
from tests.works.training import STEPS, Training, check_equal, check_moved, model, plain


@row("Automatic mixed precision (autocast)")
def autocast(way: Way) -> None:
    training = Training(way)
    forward = training.ddp

    def cast(inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return forward(inputs).float()

    training.forward = cast
    check_moved(training.run().module)


@row("GradScaler", overlap=refused("BinSGDM: a GradScaler with overlap=True: scaled gradients were already sent"))
def grad_scaler(way: Way) -> None:
    training = Training(way)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)  # a power of two changes no bit of a gradient
    for step in range(STEPS):
        training.optimizer.zero_grad()
        scaler.scale(training.loss(step)).backward()
        scaler.step(training.optimizer)
        scaler.update()
    check_equal(training.parameters(), plain(way))


@row("Gradient accumulation under `no_sync()`")
def accumulation_with_no_sync(way: Way) -> None:
    training = Training(way)
    for step in range(STEPS):
        training.optimizer.zero_grad()
        with training.ddp.no_sync():
            (training.loss(step) / 2).backward()
        (training.loss(step) / 2).backward()  # twice the same half is the whole, to the bit
        training.optimizer.step()
    check_equal(training.parameters(), plain(way))


@row(
    "Clipping by norm after backward",
    binsgdm=works("clips this rank's own gradient"),
    adam=works("clips this rank's own gradient"),
    hook=works("clips the averages, alike on all ranks"),
    overlap=refused("BinSGDM: a gradient has changed since backward, with overlap=True"),
)
def clipping(way: Way) -> None:
    training = Training(way)
    norms = []
    for step in range(STEPS):
        training.backward(step)
        norms.append(nn.utils.clip_grad_norm_(training.ddp.parameters(), 0.01))
        training.optimizer.step()
    assert all(norm > 0.01 for norm in norms), "nothing was clipped"
    check_moved(training.module)


@row("Sparse gradients", **dict.fromkeys(COLUMNS, refused("sparse gradients: must be dense")))
def sparse_gradients(way: Way) -> None:
    torch.manual_seed(0)
    training = Training(way, nn.Sequential(nn.Embedding(9, 6, sparse=True), model()))
    training.forward = lambda inputs: training.ddp(inputs.abs().long().clamp(max=8)[:, 0])
    training.run()


@row("Sparse gradients on one rank", **dict.fromkeys(COLUMNS, refused("sparse gradients: must be dense")))
def sparse_gradients_on_one_rank(way: Way) -> None:
    torch.manual_seed(0)
    Training(way, nn.Sequential(nn.Embedding(9, 6, sparse=dist.get_rank() == 1), model()))
