"""What the training scripts share: their flags, the start of the ranks, the loop, and training on images."""

import argparse
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import together
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import binsgdm


def flags(description: str | None, *, steps: int, batch: int, lr: dict[str, float], beta: float) -> Callable[..., Any]:
    """Return a parser of the command line; lr holds the default of each optimizer, found by the search."""
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--optimizer", choices=["binsgdm", "adam"], default="binsgdm")
    parser.add_argument("--lr", type=float, help=f"at the start; falls to 0 along a cosine (default {lr})")
    parser.add_argument("--beta", type=float, default=beta, help="decay of BinSGDM's averages (default %(default)s)")
    parser.add_argument("--beta2", type=float, default=0.999, help="decay of Adam's squares (default %(default)s)")
    parser.add_argument("--weight-decay", type=float, default=0.0, help="decoupled (default %(default)s)")
    parser.add_argument("--warmup", type=int, default=0, help="steps of linear warm-up (default %(default)s)")
    parser.add_argument("--steps", type=int, default=steps, help="(default %(default)s)")
    parser.add_argument("--batch", type=int, default=batch, help="samples of all ranks together (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, the batches and BinSGDM's draws")
    parser.add_argument("--topology", choices=["hierarchical", "flat"], default="hierarchical")
    parser.add_argument("--ranks-per-node", type=int, help="(default: LOCAL_WORLD_SIZE of torchrun)")
    parser.add_argument("--intra", choices=["fp32", "bf16", "one_bit"], default="fp32", help="inside a node")
    parser.add_argument("--average", choices=["updates", "gradients"], default="updates", help="inside a node")
    parser.add_argument("--overlap", action="store_true", help="exchange signs beside backward")
    parser.add_argument("--play-ranks", type=int, default=0, help="play this many ranks of BinSGDM in one process")
    parser.add_argument("--no-draw", action="store_true", help="of played ranks: move by lr u, not by lr Q(u)")
    parser.add_argument("--split", choices=["test", "validation"], default="test", help="what to evaluate on")
    parser.add_argument("--json", type=Path, help="write the result here")

    def parse(argv: list[str] | None = None) -> argparse.Namespace:
        options = parser.parse_args(argv)
        options.lr = lr[options.optimizer] if options.lr is None else options.lr
        return options

    return parse


@contextmanager
def ranks() -> Iterator[torch.device]:
    """Join the process group if torchrun started us; yield this rank's device."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    on_gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if "RANK" not in os.environ:
        yield device
        return
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def rank_and_world_size() -> tuple[int, int]:
    """Return this rank and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


Optimizer = torch.optim.Optimizer | together.LockStep


def optimizer_of(options: argparse.Namespace, model: torch.nn.Module) -> Optimizer:
    """Return the optimizer that the options name, attached to the process group if there is one."""
    if options.optimizer == "adam":
        return torch.optim.AdamW(
            model.parameters(), lr=options.lr, betas=(0.9, options.beta2), weight_decay=options.weight_decay
        )
    settings = {"lr": options.lr, "beta": options.beta, "weight_decay": options.weight_decay, "seed": options.seed}
    if options.play_ranks:
        make = together.binsgdm(draw=not options.no_draw, **settings)
        layout = {"num_ranks": options.play_ranks, "ranks_per_node": options.ranks_per_node or 1}
        return together.LockStep(model.parameters(), make, **layout)
    optimizer = binsgdm.BinSGDM(model.parameters(), **settings)
    binsgdm.attach(
        optimizer,
        model,
        topology=options.topology,
        intra_node_dtype=options.intra,
        average=options.average,
        overlap=options.overlap,
        ranks_per_node=options.ranks_per_node,
    )
    return optimizer


def share_of_lr(options: argparse.Namespace, step: int) -> float:
    """Return lr as a part of its peak after `step` steps: linear warm-up, then a cosine to 0.

    Example:
        >>> plan = argparse.Namespace(warmup=2, steps=12)
        >>> [round(share_of_lr(plan, step), 2) for step in (0, 1, 2, 7, 12)]
        [0.33, 0.67, 1.0, 0.5, 0.0]
    """
    if step < options.warmup:
        return float((step + 1) / (options.warmup + 1))
    return 0.5 + 0.5 * math.cos(math.pi * (step - options.warmup) / (options.steps - options.warmup))


def fit(  # noqa: PLR0913
    options: argparse.Namespace,
    *,
    model: torch.nn.Module,
    optimizer: Optimizer,
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    num_samples: int,
    evaluate: Callable[[], dict[str, float]],
) -> list[dict[str, float]]:
    """Train for `options.steps`; return about 10 evaluations by rank 0 along the way, the last one at the end.

    All ranks draw the same batch and take their share, so a run sees the same data with any number of ranks.
    """
    rank, world_size = rank_and_world_size()
    if options.batch % world_size:
        raise SystemExit(f"--batch {options.batch}: must be a multiple of the {world_size} ranks")
    draws = torch.Generator().manual_seed(options.seed)
    every = max(1, options.steps // 10)
    curve = []
    for step in range(1, options.steps + 1):
        model.train()
        batch = torch.randint(num_samples, (options.batch,), generator=draws)
        for group in optimizer.param_groups:
            group["lr"] = options.lr * share_of_lr(options, step - 1)
        optimizer.zero_grad()
        if isinstance(optimizer, together.LockStep):
            for played in range(options.play_ranks):
                loss_of(batch[played :: options.play_ranks]).backward()
                optimizer.take(played)
        else:
            loss_of(batch[rank::world_size]).backward()
        optimizer.step()
        if rank == 0 and (step % every == 0 or step == options.steps):
            model.eval()
            with torch.no_grad():
                curve.append({"step": step, **evaluate()})
    return curve


def train_on_images(
    options: argparse.Namespace,
    device: torch.device,
    *,
    network: Callable[[], torch.nn.Module],
    data: Callable[[str, torch.device], tuple[torch.Tensor, torch.Tensor]],
) -> dict[str, Any]:
    """Train once; return the options and the evaluations.

    Args:
        options: of the command line.
        device: of this rank.
        network: returns a new one, from images (N, 1, H, W) to scores (N, classes).
        data: returns images and labels (N) of a part of the set.
    """
    torch.manual_seed(options.seed)
    model = alone = network().to(device)
    if dist.is_initialized():
        model = DistributedDataParallel(alone)
    optimizer = optimizer_of(options, model)
    images, labels = data("train", device)
    held_images, held_labels = data(options.split, device)

    def loss_of(batch: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(images[batch]), labels[batch])

    def evaluate() -> dict[str, float]:
        scores = alone(held_images)
        accuracy = (scores.argmax(1) == held_labels).float().mean()
        return {"accuracy": accuracy.item(), "loss": functional.cross_entropy(scores, held_labels).item()}

    curve = fit(options, model=model, optimizer=optimizer, loss_of=loss_of, num_samples=len(images), evaluate=evaluate)
    binsgdm.check_replicas(model)
    return report(options, curve)


def report(options: argparse.Namespace, curve: list[dict[str, float]]) -> dict[str, Any]:
    """Print the last evaluation and write the result, on rank 0; return the result."""
    rank, world_size = rank_and_world_size()
    result = {**vars(options), "json": None, "ranks": world_size, "curve": curve}
    del result["json"]
    if rank == 0:
        last = ", ".join(f"{name} {value:.4g}" for name, value in curve[-1].items())
        print(f"{options.optimizer} on {world_size} ranks, lr {options.lr:g}, {options.split}: {last}")  # noqa: T201
        if options.json:
            options.json.write_text(json.dumps(result) + "\n")
    return result
