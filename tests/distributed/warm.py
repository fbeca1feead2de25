"""Load the kernels in the server that ranks are forked from, so that not every rank has to."""

from typing import Any, get_args

import torch

from binsgdm.exchange import Place, run_together
from binsgdm.kernels import select
from binsgdm.worker import Scheme, Slot, Worker

PLACE = Place(rank=0, world_size=1, ranks_per_node=1, seed=0, step=0)
SETTINGS = {"lr": 0.1, "weight_decay": 0.1, "beta": 0.5, "maximize": False}


def use_every_kernel() -> None:
    """Take a step of every scheme, with a parameter that has a gradient and one that has none."""
    values = [torch.zeros(8), torch.zeros(8)]
    values[0].grad = torch.ones(8)
    slots = [Slot(parameter=v, group=SETTINGS, state={n: torch.zeros(8) for n in "mb"}) for v in values]
    for scheme in get_args(Scheme):
        worker = Worker(slots, place=PLACE, scheme=scheme, bucket_elements=16, kernels=select())
        worker.begin(1)
        worker.signs(worker.buckets[0], lambda talk, worker=worker: _finish(worker, talk))
        worker.flags()


def _finish(worker: Worker, talk: Any) -> torch.Tensor:
    signs = run_together([talk], 1)[0]
    worker.apply(worker.buckets[0], signs, [1, 1])
    return signs


if __name__ == "warm":  # as the server of `launch` imports it; pytest, looking for doctests, uses a longer name
    use_every_kernel()
