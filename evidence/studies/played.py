"""BinSGDM's equations in plain torch, for all ranks at once, with more settings than `binsgdm` has.

What an exploration tries must be cheap to add and need not be fast on a wire: here a setting is a line, and no bit is
packed. `binsgdm` has what helped; `tests/unit/studies/test_played.py` holds the settings that both have to each other.

Shape letters: R ranks, K nodes, P parts with momenta of their own (ranks, or nodes where gradients are averaged inside
a node), N elements of all parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from binsgdm.kernels.functional import ratio

Rounding = Literal["shaped", "second_order", "random", "none", "tensor_scale"]


@dataclass(frozen=True, kw_only=True)
class Form:
    """How the gradients of all ranks become one update.

    Attributes:
        rounding: of the node's mean: "shaped" keeps what it lost, "second_order" weighs the last two losses as a
            sigma-delta modulator of second order does, "random" draws, "none" does not round (which no message of one
            bit can carry), "tensor_scale" sends the mean magnitude of each tensor beside the signs, in place of gain
            and clip.
        merge_rounding: of the mean of the nodes' signs; as `rounding` if None.
        gain: factor of u before it is clipped to [-1, 1].
        final_gain: of the last step, to which the gain moves along a line; None keeps it.
        mean_u: the gain is chosen in each step so that the mean of |gain u| is this; None takes `gain`.
        beta_b: decay of b; None takes beta.
        nesterov: u looks ahead: beta m + (1 - beta) g in place of m.
        average: "updates" or "gradients" inside a node.
        clips_ranks: each rank clips its gain u, before the node averages them; else the node clips the mean alone.
        agreed_b: nodes average b, for each "element" (4 bytes an element) or its mean over a "tensor" (4 bytes a
            tensor).
        squares: b is the root of a mean of squares, as Adam's.
        keeps_b: an element whose gradient is 0 keeps its b, so that its u decays.
        is_dithered: residuals start uniform in their range; else at 0.
    """

    rounding: Rounding = "shaped"
    merge_rounding: Rounding | None = None
    gain: float = 2.0
    final_gain: float | None = None
    mean_u: float | None = None
    beta: float = 0.9
    beta_b: float | None = 0.99
    nesterov: bool = True
    average: Literal["updates", "gradients"] = "gradients"
    clips_ranks: bool = False
    agreed_b: Literal["element", "tensor"] | None = None
    squares: bool = False
    keeps_b: bool = False
    is_dithered: bool = True


class Played:
    """All ranks of BinSGDM in a form, which move one model, in a training of so many steps."""

    def __init__(  # noqa: PLR0913
        self,
        parameters: Sequence[nn.Parameter],
        form: Form,
        *,
        num_ranks: int,
        ranks_per_node: int,
        steps: int,
        seed: int,
        weight_decay: float = 0.0,
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": 0.0}]
        self._parameters = list(parameters)
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self._form, self._ranks_per_node, self._steps, self._decay = form, ranks_per_node, steps, weight_decay
        self._num_nodes = num_ranks // ranks_per_node
        self._draws = torch.Generator().manual_seed(seed)
        numel, parts = sum(self._sizes), self._num_nodes if form.average == "gradients" else num_ranks
        self._m, self._b = torch.zeros(parts, numel), torch.zeros(parts, numel)
        self._first = _Place(form.rounding, self._start(self._num_nodes, numel), self._sizes, self._draws)
        self._merge = _Place(form.merge_rounding or form.rounding, self._start(1, numel), self._sizes, self._draws)
        self._step = 0

    @torch.no_grad()
    def step(self, gradients: Tensor) -> None:
        """Move the parameters by the gradients (R, N) of all ranks."""
        self._step += 1
        update = self._first(self._node_updates(gradients))
        # A node alone has nothing to merge.
        update = self._merge(update.mean(0, keepdim=True)) if self._num_nodes > 1 else update
        lr = self.param_groups[0]["lr"]
        for parameter, piece in zip(self._parameters, update[0].split(self._sizes), strict=True):
            parameter.mul_(1 - lr * self._decay).sub_(piece.view_as(parameter), alpha=lr)

    def _start(self, *shape: int) -> Tensor:
        if not self._form.is_dithered or self._form.rounding == "tensor_scale":
            return torch.zeros(shape)
        return torch.rand(shape, generator=self._draws) * 2 - 1

    def _node_updates(self, gradients: Tensor) -> Tensor:
        """Return what each node rounds (K, N)."""
        form = self._form
        if form.average == "gradients":
            gradients = _means_in_nodes(gradients, self._ranks_per_node)
        u = self._u(gradients)
        if form.clips_ranks:
            u = u.clamp(-1 / form.gain, 1 / form.gain)
        if form.average == "updates":
            u = _means_in_nodes(u, self._ranks_per_node)
        if form.rounding == "tensor_scale":
            return u
        gain = form.gain
        if form.mean_u is not None:
            gain = form.mean_u / max(1e-12, float(u.abs().mean()))
        elif form.final_gain is not None:
            gain += (form.final_gain - form.gain) * (self._step - 1) / self._steps
        return (u * gain).clamp_(-1, 1)

    def _u(self, g: Tensor) -> Tensor:
        """Update the momenta of all parts; return their u (P, N), which its gain has not met yet."""
        form, m, b = self._form, self._m, self._b
        beta, beta_b = form.beta, form.beta if form.beta_b is None else form.beta_b
        m.mul_(beta).add_(g, alpha=1 - beta)
        new_b = b * beta_b + (g.square() if form.squares else g.abs()) * (1 - beta_b)
        self._b = b = torch.where(g == 0, b, new_b) if form.keeps_b else new_b
        # Both averages start at 0: with two decays the ratio would begin too large.
        m, b = m / (1 - beta**self._step), b / (1 - beta_b**self._step)
        m = m * beta + g * (1 - beta) if form.nesterov else m
        b = b.sqrt() if form.squares else b
        if form.agreed_b == "element":
            b = b.mean(0, keepdim=True).expand_as(b)
        elif form.agreed_b == "tensor":
            pieces = b.split(self._sizes, dim=1)
            b = torch.cat([piece * (piece.mean() / piece.mean(1, keepdim=True)) for piece in pieces], dim=1)
        return ratio(m, b)


class _Place:
    """One of the two places where values are rounded, with what rounding has lost there so far."""

    def __init__(self, rounding: Rounding, residual: Tensor, sizes: Sequence[int], draws: torch.Generator) -> None:
        self._rounding, self._residual, self._sizes, self._draws = rounding, residual, sizes, draws
        self._before = torch.zeros_like(residual)

    def __call__(self, values: Tensor) -> Tensor:
        """Round values in [-1, 1] to one bit an element."""
        if self._rounding == "none":
            return values
        if self._rounding == "random":
            return _signs(values - (torch.rand(values.shape, generator=self._draws) * 2 - 1))
        if self._rounding == "second_order":
            wanted = values + 2 * self._residual - self._before
            self._before = self._residual
        else:
            wanted = values + self._residual
        rounded = _signs(wanted)
        if self._rounding == "tensor_scale":
            pieces = wanted.abs().split(list(self._sizes), dim=1)
            means = [piece.mean(1, keepdim=True).expand_as(piece) for piece in pieces]
            rounded = rounded * torch.cat(means, dim=1)
        # A modulator of second order is stable for small inputs only.
        self._residual = (wanted - rounded).clamp_(-2, 2) if self._rounding == "second_order" else wanted - rounded
        return rounded


def _signs(values: Tensor) -> Tensor:
    return torch.where(values >= 0, 1.0, -1.0)


def _means_in_nodes(values: Tensor, ranks_per_node: int) -> Tensor:
    return values.view(-1, ranks_per_node, values.shape[1]).mean(1)
