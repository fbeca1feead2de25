"""BinSGDM of several ranks in one process: the distribution of `binsgdm` on that many ranks, not its bits.

A search over settings needs many runs, and a run of four gloo ranks costs three to four times the processor time of the
same batch in one process. The final runs use `binsgdm` itself.
"""

from typing import Any

import torch


class BinSGDMTogether(torch.optim.Optimizer):
    """Take the gradients of one rank after the other, then step as BinSGDM does after its hierarchical exchange.

    Args:
        params: the one copy of the parameters that all ranks would hold.
        lr: by how much an element moves in a step.
        beta: decay of both averages.
        weight_decay: decoupled.
        draw: move by lr Q(u); else by lr u, which no exchange of one bit could do, to tell what the draws cost.
        num_ranks: how many ranks to play.
        ranks_per_node: ranks whose u are averaged before the first draw.
        seed: of the draws.
    """

    def __init__(  # noqa: PLR0913
        self,
        params: Any,
        *,
        lr: float,
        beta: float,
        weight_decay: float,
        draw: bool,
        num_ranks: int,
        ranks_per_node: int,
        seed: int,
    ) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "weight_decay": weight_decay})
        self.parameters = self.param_groups[0]["params"]
        self.shape = (num_ranks // ranks_per_node, ranks_per_node, sum(p.numel() for p in self.parameters))
        self.m, self.b, self.gradients = (torch.zeros(self.shape).flatten(0, 1) for _ in range(3))
        self.draw = draw
        self.draws = torch.Generator().manual_seed(seed + 1)

    def take(self, rank: int) -> None:
        """Note the gradients as those of a rank, then clear them."""
        self.gradients[rank] = torch.cat([p.grad.flatten() for p in self.parameters])
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update the averages of all ranks, agree on signs in both stages, move every element by lr."""
        group = self.param_groups[0]
        self.m.lerp_(self.gradients, 1 - group["beta"])
        self.b.lerp_(self.gradients.abs(), 1 - group["beta"])
        u = torch.where(self.b > 0, self.m / self.b, 0.0)
        signs = self._drawn(u.view(self.shape).mean(1))
        if len(signs) > 1:
            signs = self._drawn(signs.mean(0))
        moves = (group["lr"] * signs).flatten().split([p.numel() for p in self.parameters])
        for parameter, move in zip(self.parameters, moves, strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(move.view_as(parameter))

    def _drawn(self, u: torch.Tensor) -> torch.Tensor:
        if not self.draw:
            return u
        up = torch.rand(u.shape, generator=self.draws) < (1 + u) / 2
        return torch.where(up, 1.0, -1.0)
