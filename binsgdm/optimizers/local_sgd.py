"""Local SGD: parameters are averaged after some steps of any optimizer."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

from binsgdm.comm.transport import Sent
from binsgdm.compressors.base import check_choice, check_state, check_whole
from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.outer_settings import WIRE_DTYPES
from binsgdm.optimizers.outer_steps import averaged
from binsgdm.optimizers.wrapping import LocalStepsOptimizer


class LocalSGD(LocalStepsOptimizer):
    """Any optimizer whose parameters are averaged over all ranks after every few steps.

    A worker is a rank with a plain module, or the ranks of a node with a DDP module over the node's process group.

    Args:
        optimizer: of torch, with parameters that are equal on all ranks; its state is each worker's own.
        inner_steps: steps between two averages.
        wire_dtype: number format in which parameters travel: "fp32" or "bf16".
        group: the ranks that average; default all.
        timeout: of the collectives.
        on_sent: called with every collective that this rank takes part in.

    Raises:
        BinsgdmError: no optimizer of torch, a value out of range, or ranks that differ; on all ranks.

    Source: Stich, "Local SGD converges fast and communicates little", ICLR 2019, https://arxiv.org/abs/1805.09767, with
    any optimizer; Lin et al., ICLR 2020, https://arxiv.org/abs/1808.07217, with nodes as workers.

    Example:
        optimizer = binsgdm.LocalSGD(torch.optim.AdamW(model.parameters()), inner_steps=8)
    """

    def __init__(  # noqa: PLR0913
        self,
        optimizer: torch.optim.Optimizer,
        inner_steps: int = 8,
        *,
        wire_dtype: Literal["fp32", "bf16"] = "fp32",
        group: dist.ProcessGroup | None = None,
        timeout: timedelta | None = None,
        on_sent: Callable[[Sent], None] | None = None,
    ) -> None:
        refused = None
        try:
            check_whole("LocalSGD: inner_steps", inner_steps, low=1)
            check_choice("LocalSGD: wire_dtype", wire_dtype, WIRE_DTYPES)
        except BinsgdmError as error:
            refused = error
        settings = {"inner_steps": inner_steps, "wire_dtype": wire_dtype}
        super().__init__(
            optimizer, settings, refused, group=group, ranks_per_worker=1, timeout=timeout, on_sent=on_sent
        )
        self._inner_steps, self._wire_dtype = inner_steps, wire_dtype

    def _after_step(self) -> None:
        if self.num_steps % self._inner_steps == 0:
            self._check_ranks(event=0)
            self._transport.run(averaged(self.parameters, self._wire_dtype, self._member.world_size))

    def _outer_state(self) -> dict[str, Any]:
        return {}

    def _load_outer_state(self, state: Mapping[str, Any]) -> None:
        check_state("LocalSGD: outer state", state, ())
