"""A DDP communication hook that leaves the gradients of some optimizers alone; DDP keeps the rest of its duties."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import ref

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from binsgdm.comm.arguments import LOCAL
from binsgdm.errors import BinsgdmError

_JOINED = (
    "a backward inside DDP.join(): a rank without batches takes no steps, and the others would wait for it; "
    "give all ranks as many batches"
)


class OwnParameters:
    """What one optimizer, which is not kept alive, has of DDP models, and whether it still steps.

    Args:
        optimizer: whose gradients stay local.
        parameters: that it has.
        tell: called with a sentence for the other ranks where this one refuses.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor], tell: Callable[[str], object]
    ) -> None:
        self.name = type(optimizer).__name__
        self.parameters = list(parameters)
        self._tell = tell
        self._versions: list[int] = []
        self._is_expected = True
        # A skipped step counts, too. Loading a state goes with loading parameters, to go back for example.
        self._handles = [
            optimizer.register_step_pre_hook(self._expect_changes),
            optimizer.register_load_state_dict_post_hook(self._expect_changes),
        ]

    def close(self) -> None:
        """Watch no longer."""
        for handle in self._handles:
            handle.remove()

    def check_steps(self) -> None:
        """Look at the parameters at the beginning of a backward in which DDP leaves their gradients alone.

        If they have changed since the last one, and not in a step of the optimizer, the backward ends with an error.
        """
        versions = [parameter._version for parameter in self.parameters]
        has_changed = not self._is_expected and versions != self._versions
        self._versions, self._is_expected = versions, False
        if has_changed:
            sentence = (
                f"{self.name}: parameters have changed since the last backward, but not in its step(): their "
                "gradients are each rank's own, so what another optimizer makes of them differs between ranks; go back "
                "to a checkpoint, and call binsgdm.detach(optimizer) on all ranks before another takes over"
            )
            self._tell(sentence)
            queue: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback

            def fail() -> None:
                raise BinsgdmError(sentence)

            # At the end of this backward, when DDP has done its part: a model is of use again after detach. Twice: DDP
            # queues its own end of backward between the first bucket and the last.
            queue(lambda: queue(fail))

    def _expect_changes(self, *_: Any) -> None:
        self._is_expected = True


class LocalGradients:
    """Which gradients of a DDP model stay local. A copy of it, as in a copy of the model, knows of none.

    Attributes:
        group: among whose ranks DDP averages the others.
        owners: what optimizers have of the model.
        kept_local: the parameters of all of them, whose gradients stay local.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self.model, self.group = ref(model), model.process_group
        self.owners: list[OwnParameters] = []
        self.kept_local: set[torch.Tensor] = set()

    def take(self, *owners: OwnParameters) -> None:
        """Let these be all."""
        self.owners = list(owners)
        self.kept_local = {parameter for owner in owners for parameter in owner.parameters}

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # A copied or unpickled DDP model makes a reducer without a hook, so it averages all gradients, as any model
        # that nothing was attached to.
        return type(None), ()


def keep_gradients_local(models: Sequence[DistributedDataParallel], owner: OwnParameters) -> None:
    """Leave an optimizer's gradients alone from the next backward on; others are averaged, as without it.

    The hook stays as long as the model.
    """
    for model in models:
        state: LocalGradients | None = getattr(model, LOCAL, None)
        if state is None:
            state = LocalGradients(model)
            # DDP still broadcasts parameters and buffers, and averages the gradients of other optimizers; only what it
            # would do with these gradients is replaced. One hook for all optimizers of a model, since DDP takes only
            # one.
            model.register_comm_hook(state, average_foreign)
            setattr(model, LOCAL, state)
        state.take(*state.owners, owner)


def average_again(models: Iterable[DistributedDataParallel], owner: OwnParameters) -> None:
    """Let DDP average an optimizer's gradients from the next backward on."""
    owner.close()
    for model in models:
        state: LocalGradients | None = getattr(model, LOCAL, None)
        if state is not None:
            state.take(*(other for other in state.owners if other is not owner))


def average_foreign(
    state: LocalGradients,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks at name and annotation
) -> torch.futures.Future[torch.Tensor]:
    """Hand the bucket back, with the gradients of other optimizers' parameters averaged over the model's ranks."""
    if bucket.index() == 0:
        model = state.model()
        if state.owners and model is not None and model._join_config.enable:
            raise BinsgdmError(f"{state.owners[0].name}: {_JOINED}")
        for owner in state.owners:
            owner.check_steps()
    if bucket.buffer().is_sparse:
        raise BinsgdmError(
            f"attach: a sparse gradient of shape {tuple(bucket.buffer().shape)} in a model that attach was called on: "
            "must be dense; use a dense layer, such as Embedding(sparse=False)"
        )
    pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
    foreign = [gradient for parameter, gradient in pairs if parameter not in state.kept_local]
    if not foreign:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future
    if not state.kept_local:
        return allreduce_hook(state.group, bucket)
    # Divided before the sum, as DDP does, so that a sum of large gradients does not overflow.
    flat = torch.cat([gradient.reshape(-1) for gradient in foreign]) / state.group.size()
    done = dist.all_reduce(flat, group=state.group, async_op=True).get_future()

    # DDP expects the whole bucket back, so averages are copied into it once they have arrived.
    def copy_back(averaged: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        values = averaged.value()[0]
        for gradient, part in zip(foreign, torch.split(values, [g.numel() for g in foreign]), strict=True):
            gradient.copy_(part.view_as(gradient))
        buffer: torch.Tensor = bucket.buffer()
        return buffer

    averaged: torch.futures.Future[torch.Tensor] = done.then(copy_back)
    return averaged
