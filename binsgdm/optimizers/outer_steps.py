"""One worker's outer steps, as protocols with the other workers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from binsgdm.comm import AllGather, AllReduceSum, Protocol, RankContext
from binsgdm.compressors.base import REPAIR, Averager, GradientBucket, check_state, check_stateless
from binsgdm.compressors.registry import make
from binsgdm.compressors.topologies import among_nodes, node_context
from binsgdm.errors import BinsgdmError, shown
from binsgdm.kernels.functional import divided
from binsgdm.optimizers.fragments import Fragment, cut, flattened, write_into
from binsgdm.optimizers.outer_settings import WIRE_DTYPES, OuterSettings

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class WireMean(Averager):
    """The mean of what all ranks give, all-reduced in a number format."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def mean(self, bucket: GradientBucket, context: RankContext) -> Protocol:
        """Return the mean; see `binsgdm.compressors.base.Averager`."""
        total = yield AllReduceSum(group="world", sent=bucket.values.to(self._dtype))
        return divided(total.to(torch.float32), context.world_size)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take nothing."""
        check_stateless("the mean", state)


class OuterSteps:
    """One rank's end of DiLoCo: which fragment is exchanged when, its mean over workers, and the outer step.

    Args:
        parameters: of the model on this rank, which are changed.
        settings: the same on all ranks.
        rank: this rank.
        world_size: all ranks.
        ranks_per_worker: consecutive ranks that train as one worker, and share the outer state.

    Attributes:
        fragments: with their outer state.
        system: what averages.

    Source: Douillard et al., 2023, https://arxiv.org/abs/2311.08105; fragments and overlap: Douillard et al.,
    "Streaming DiLoCo with overlapping communication", 2025, https://arxiv.org/abs/2501.18512. Differs: fragments are
    tensors that follow each other, of about as many elements, not layers far apart.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        settings: OuterSettings,
        *,
        rank: int,
        world_size: int,
        ranks_per_worker: int,
    ) -> None:
        self._settings = settings
        self._rank, self._world_size, self._ranks_per_worker = rank, world_size, ranks_per_worker
        pieces = cut([one.numel() for one in parameters], settings.fragments)
        self.fragments = [
            Fragment(number, [parameters[one] for one in piece], rank % ranks_per_worker, ranks_per_worker)
            for number, piece in enumerate(pieces)
        ]
        self.system = _system(settings, rank // ranks_per_worker, world_size // ranks_per_worker)

    def starting(self, step: int) -> Fragment | None:
        """Return the fragment whose exchange starts after a step, counted from 1; None where none does."""
        between = self._settings.steps_between
        return None if step % between else self.fragments[(step // between - 1) % len(self.fragments)]

    def ending(self, step: int) -> Fragment | None:
        """Return the fragment whose exchange ends after a step; None where none does."""
        started = step - self._settings.overlap_steps
        return self.starting(started) if started > 0 else None

    def mean(self, fragment: Fragment, bucket: GradientBucket, step: int) -> Protocol:
        """Return the mean of the pseudo-gradients that workers have after a step."""
        context = RankContext(
            rank=self._rank,
            world_size=self._world_size,
            ranks_per_node=self._ranks_per_worker,
            seed=self._settings.seed,
            step=-(-step // self._settings.inner_steps),
            bucket=fragment.number,
        )
        return among_nodes(self.system.mean(bucket, node_context(context)))

    def finish(self, fragment: Fragment, mean: torch.Tensor) -> Protocol:
        """Take the outer step, gather the new parameters in the worker, and write them.

        Raises:
            BinsgdmError: they are not finite; on all ranks alike, and nothing has changed.
        """
        outer, momentum = fragment.stepped(mean, self._settings)
        whole = outer
        if self._ranks_per_worker > 1:
            whole = (yield AllGather(group="intra_node", sent=outer, is_read_by_host=True)).reshape(-1)
        check_finite("DiLoCo", whole)
        fragment.outer, fragment.momentum = outer, momentum
        fragment.write(whole, self._settings.share)
        return whole

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of outer state and residuals; each rank saves its own."""
        return {"fragments": [one.state_dict() for one in self.fragments], "system": self.system.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned.

        Raises:
            BinsgdmError: it is no such state; then nothing is taken.
        """
        check_state("DiLoCo: outer state", state, ("fragments", "system"))
        given = state["fragments"]
        if not isinstance(given, list) or len(given) != len(self.fragments):
            raise BinsgdmError(
                f"DiLoCo: fragments of the state: {shown(given)}: must be {len(self.fragments)}; {REPAIR}"
            )
        checked = [fragment.checked(one) for fragment, one in zip(self.fragments, given, strict=True)]
        self.system.load_state_dict(state["system"])
        for fragment, one in zip(self.fragments, checked, strict=True):
            fragment.outer, fragment.momentum = one["outer"], one["momentum"]


def _system(settings: OuterSettings, worker: int, num_workers: int) -> Averager:
    if settings.exchange in WIRE_DTYPES:
        return WireMean(DTYPES[settings.exchange])
    name, options = settings.system
    return make(name, rank=worker, world_size=num_workers, **options)


def averaged(parameters: Sequence[torch.Tensor], wire_dtype: str, world_size: int) -> Protocol:
    """Set the parameters of all ranks to their mean, in one message.

    Raises:
        BinsgdmError: it is not finite; on all ranks alike, and nothing has changed.
    """
    sent = flattened(parameters).to(DTYPES[wire_dtype])
    total = yield AllReduceSum(group="world", sent=sent, may_overwrite=True, is_read_by_host=True)
    mean = divided(total.to(torch.float32), world_size)
    check_finite("LocalSGD", mean)
    write_into(parameters, mean)
    return mean


def check_finite(where: str, values: torch.Tensor) -> None:
    """Refuse parameters that all ranks would go on with."""
    if not bool(values.isfinite().all()):
        raise BinsgdmError(
            f"{where}: an exchange that gives parameters that are not finite: those of each worker must be; lower lr, "
            "and go on from a checkpoint"
        )
