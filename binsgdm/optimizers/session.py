"""A step of BinSGDM: the exchange of all buckets, then the finite check, which decides whether the step counts."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from binsgdm.comm import AllReduceMax, GroupName, Member, Message, Protocol, RankContext, consistency
from binsgdm.comm.flat_buckets import FlatBucket
from binsgdm.comm.messages import run_as_if_alike
from binsgdm.errors import BinsgdmError
from binsgdm.kernels import Kernels, select
from binsgdm.kernels.keys import MAX_NUMEL
from binsgdm.optimizers.agreement import BYTES_PER_ELEMENT, MIB, Terms
from binsgdm.optimizers.base import Flag, ParamState, check_gradients
from binsgdm.optimizers.settings import COMMON, Rounding, Scheme
from binsgdm.optimizers.worker import REFUSED, Worker

_REPAIR = "no rank has moved: load on all ranks the parameters that belong together"
ONE_BUCKET = MAX_NUMEL  # for a rank alone, which gains nothing from several messages


class Session:
    """One rank's steps, inside `optimizer.step()`, in lock-step with the others.

    Attributes:
        member: this rank, and who carries its messages; by default it is alone.
        starts_in_backward: gradients leave before `optimizer.step()`, which is then too late to change them.
        compared_in: the group whose ranks have the same parameters.
    """

    starts_in_backward = False
    compared_in: GroupName = "world"

    def __init__(
        self,
        member: Member | None = None,
        scheme: Scheme = Scheme(topology="flat"),  # noqa: B008 - frozen
        bucket_elements: int = ONE_BUCKET,
    ) -> None:
        self.member = member or Member()
        self.scheme, self.bucket_elements = scheme, bucket_elements

    @property
    def layout(self) -> str:
        """In words, which elements this rank rounds where; what rounding lost belongs to it."""
        member, scheme = self.member, self.scheme
        is_one_bit = scheme.intra_node_dtype == "one_bit"
        if member.world_size == 1 and not is_one_bit:
            return "a rank alone"
        # With the rank: with the residual of another, both would round alike, and their errors would add up.
        rank = f"rank {member.rank} of {member.world_size}"
        cap_mb = f"bucket_cap_mb={self.bucket_elements * BYTES_PER_ELEMENT / MIB:.9g}"
        if scheme.topology == "flat":
            return f"{rank}, flat, {cap_mb}"
        return f"{rank}, {member.ranks_per_node} a node{', one_bit inside' * is_one_bit}, {cap_mb}"

    def reset(self, param_states: Sequence[ParamState], context: RankContext, kernels: Kernels) -> None:
        """Begin, or start over with other state; the context is this rank's in the coming step."""
        self.param_states = param_states
        self._groups = list({id(param_state.group): param_state.group for param_state in param_states}.values())
        self._comparisons = consistency.ComparisonSchedule()
        # First, since residuals begin with draws, whose loops are compiled in turn, too.
        if kernels.name == "cpu":
            dtypes = tuple(sorted({param_state.parameter.dtype for param_state in param_states}, key=str))
            rounding = param_states[0].group.get("rounding", "random")
            _compile_for(dtypes, rounding, self.scheme, context.ranks_per_node, context.num_nodes)
        self.worker = Worker(
            param_states,
            context=context,
            scheme=self.scheme,
            bucket_elements=self.bucket_elements,
            kernels=kernels,
            layout=self.layout,
        )

    def check_residuals(self, states: Sequence[Mapping[str, Any]], layout: str) -> None:
        """Refuse states of all parameters whose residuals are of this layout and cannot be."""
        if self.worker.residuals is not None and layout == self.layout:
            self.worker.residuals.check(states)

    @property
    def all_that_step(self) -> Member:
        """This rank among those that decide together whether a step counts."""
        return self.member

    def step_protocol(self, step: int, *, skip: Flag, refused: BinsgdmError | None = None) -> Protocol:
        """Take a step as a protocol, which returns whether parameters moved (a bool scalar, alike on all ranks).

        Args:
            step: its number, from 1.
            skip: the GradScaler of this rank found gradients that are not finite.
            refused: why this rank cannot take the step; it takes part, so that no other waits for it.
        """
        buckets = self.worker.begin_step(step)
        self.worker.skip_step_if(skip)
        refused = refused or self._refusal(self.worker.refresh) or self._refusal(self._check_gradients)
        # All signs are kept until the finite check: a parameter moves only if every gradient of every rank was finite,
        # and the last bucket may hold the first infinity.
        signs: list[torch.Tensor] = []
        for bucket in buckets:
            packed = yield from self.worker.signs(bucket)
            signs.append(packed)
        return (yield from self.check_and_apply(buckets, signs, self._terms(step, {}, refused)))

    def check_and_apply(self, buckets: Iterable[FlatBucket], signs: Iterable[torch.Tensor], terms: Terms) -> Protocol:
        """Move the parameters, unless flags of all ranks say that a gradient was not finite, or that ranks differ."""
        stop, has_gradient = yield from self.agree(terms)
        if not stop:
            for bucket, packed in zip(buckets, signs, strict=True):
                self.worker.apply(bucket, packed, has_gradient)
        self._comparisons.note(self._compared_parameters())
        return torch.tensor(not stop, device="cpu")

    def agree(
        self, terms: Terms, *, moves: bool = True
    ) -> Generator[Message, torch.Tensor, tuple[bool, Sequence[int]]]:
        """Return whether the step must not count, and which parameters had a gradient on some rank.

        A step that moves parameters compares them where one rank may have changed them.

        Raises:
            BinsgdmError: on all ranks, where one cannot take the step, or ranks differ in what must be alike.
        """
        # One message decides for all ranks, also where only one of them saw an infinity (or its GradScaler did): ranks
        # that decided alone would apply different numbers of steps and drift apart.
        flags = yield AllReduceMax(sent=self._flags(terms, moves=moves))
        stop, *rest = flags.tolist()
        has_gradient, pairs = rest[: len(self.param_states)], rest[len(self.param_states) :]
        settings, state = pairs[: consistency.PAIR_BYTES], pairs[consistency.PAIR_BYTES :]
        member, device = self.all_that_step, self.worker.device
        if member.world_size == 1:
            return bool(stop), has_gradient
        if stop == REFUSED or consistency.differ(settings):
            self._comparisons.invalidate()
            # What the host does not read before it must is what it may not have known.
            refused = terms.refused or (terms.refusal_of_gpu() if stop == REFUSED else None)
            yield from replace(terms, refused=refused).refuse_together(member, device)
        if any(state):
            self._comparisons.invalidate()
            named = {f"parameter {number}": parameter for number, parameter in enumerate(self.worker.parameters)}
            group = self.compared_in
            yield from consistency.check_tensors_alike(terms.where, named, member, device, _REPAIR, group)
            self._comparisons.compared()
        return bool(stop), has_gradient

    def _terms(self, step: int, facts: Mapping[str, Any], refused: BinsgdmError | None = None) -> Terms:
        return Terms(where=f"BinSGDM: step {step}", groups=self._groups, names=COMMON, facts=facts, refused=refused)

    def _refusal(self, check: Callable[[], None]) -> BinsgdmError | None:
        """Return what a check finds wrong on this rank, which then takes part in the step without gradients."""
        try:
            check()
        except BinsgdmError as error:
            if self.all_that_step.world_size == 1:
                raise
            self.worker.refuse()
            return error
        return None

    def _check_gradients(self) -> None:
        check_gradients("BinSGDM", self.worker.parameters)

    def _flags(self, terms: Terms, *, moves: bool) -> torch.Tensor:
        if self.all_that_step.world_size == 1:
            return self.worker.finite_check_flags()
        is_due = moves and self._comparisons.is_due(self._compared_parameters())
        appended = terms.pair() + (consistency.IS_NEW if is_due else consistency.NO_PAIR)
        flags = self.worker.finite_check_flags(is_refused=terms.refused is not None, appended=appended)
        if on_gpu := terms.settings_on_gpu():
            consistency.mix_in(flags, 1 + len(self.param_states), on_gpu)
            # A setting on a GPU is refused there: to look at it, the host would wait.
            are_numbers = torch.stack([((scalar >= 0) & scalar.isfinite()).all() for scalar in on_gpu]).all()
            flags[0] = torch.where(are_numbers, flags[0], REFUSED)
        return flags

    def _compared_parameters(self) -> Sequence[torch.Tensor]:
        """Return the parameters whose changes between steps are looked for."""
        return self.worker.parameters

    def close(self) -> None:
        """Take no part any more."""


@cache
def _compile_for(
    dtypes: tuple[torch.dtype, ...], rounding: Rounding, scheme: Scheme, ranks_per_node: int, num_nodes: int
) -> None:
    """Compile all that steps with such parameters need, by a step on a few elements; see `compile_in_turn`."""
    world_size = num_nodes * ranks_per_node
    context = RankContext(rank=0, world_size=world_size, ranks_per_node=ranks_per_node, seed=0, step=1)
    group: dict[str, Any] = {"lr": 0.0, "weight_decay": 0.0, "maximize": False, "beta": 0.9, "rounding": rounding}

    def param_state(dtype: torch.dtype) -> ParamState:
        parameter = torch.nn.Parameter(torch.zeros(1, dtype=dtype, device="cpu"))
        parameter.grad = torch.zeros_like(parameter)
        state = {name: torch.zeros(1, device="cpu") for name in ("m", "b")}
        return ParamState(parameter=parameter, group=group, state=state)

    def step(worker: Worker) -> Protocol:
        """Exchange and apply all buckets; `Session` also asks all ranks whether the step counts."""
        signs = torch.empty(0)
        for bucket in worker.begin_step(1):
            signs = yield from worker.signs(bucket)
            worker.apply(bucket, signs, [1] * len(worker.parameters))
        return signs

    @torch.no_grad()
    def rehearse() -> None:
        worker = Worker(
            [param_state(dtype) for dtype in dtypes],
            context=context,
            scheme=scheme,
            bucket_elements=len(dtypes),
            kernels=select("cpu"),
        )
        run_as_if_alike(step(worker), context)  # the other ranks send what this one does

    from binsgdm.kernels.first_use import compile_in_turn  # which needs numba

    compile_in_turn(rehearse)
