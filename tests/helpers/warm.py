"""Load the kernels: the server that ranks are forked from imports this, so that not every rank has to."""

import torch

from binsgdm.comm import RankContext, run_in_lockstep
from binsgdm.kernels import select
from binsgdm.optimizers.base import ParamState
from binsgdm.optimizers.settings import SCHEMES
from binsgdm.optimizers.worker import Worker

CONTEXT = RankContext(rank=0, world_size=1, ranks_per_node=1, seed=0, step=0)
SETTINGS = {"lr": 0.1, "weight_decay": 0.1, "beta": 0.5, "maximize": False}


def use_every_kernel() -> None:
    """Take a step of every scheme, with a parameter that has a gradient and one that has none."""
    values = [torch.zeros(8), torch.zeros(8)]
    values[0].grad = torch.ones(8)
    param_states = [ParamState(parameter=v, group=SETTINGS, state={n: torch.zeros(8) for n in "mb"}) for v in values]
    for scheme in SCHEMES:
        worker = Worker(param_states, context=CONTEXT, scheme=scheme, bucket_elements=16, kernels=select())
        worker.begin_step(1)
        signs = run_in_lockstep([worker.signs(worker.buckets[0])], 1)[0]
        worker.apply(worker.buckets[0], signs, [1, 1])
        worker.finite_check_flags()


use_every_kernel()
