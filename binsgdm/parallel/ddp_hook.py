"""One DDP communication hook for every system of the registry: buckets go to a thread, means come back.

DDP forms its buckets anew after its first backward, in the order in which gradients became ready. Draws, pieces and
blocks depend on buckets, so a resumed run, whose DDP begins with the first form again, would go on with other numbers:
it exchanges in the buckets of the run that was saved.
"""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from binsgdm.comm import GroupName, RankContext, failure
from binsgdm.comm import groups as grouping
from binsgdm.comm.arguments import COMPRESSED, check_arguments, check_group, check_hook, group_of, replicated_in
from binsgdm.comm.consistency import agreed, check_same_settings, comparable
from binsgdm.comm.groups import Groups
from binsgdm.comm.thread import CommunicationThread
from binsgdm.comm.transport import Sent, Transport
from binsgdm.compressors.base import REPAIR, Averager, GradientBucket, Topology, check_state, check_whole
from binsgdm.compressors.registry import SYSTEMS, canonical, check_options, make
from binsgdm.compressors.topologies import IntraNodeDtype
from binsgdm.errors import BinsgdmError, listed, printable, shown
from binsgdm.kernels import streams
from binsgdm.kernels.profiler_stages import staged
from binsgdm.kernels.streams import Stream
from binsgdm.parallel.local_gradients import LocalGradients, average_foreign

_WHERE = "compress_gradients"
Layout = tuple[tuple[int, ...], ...]
"""The parameters of each bucket, by their numbers in the order of the model."""


def compress_gradients(  # noqa: PLR0913
    model: DistributedDataParallel,
    system: str,
    *,
    seed: int = 0,
    topology: Topology | None = None,
    intra_node_dtype: IntraNodeDtype | None = None,
    ranks_per_node: int | None = None,
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    on_sent: Callable[[Sent], None] | None = None,
    **options: Any,
) -> "GradientExchange":
    """Let a system average the gradients of a DDP model during backward; its ranks must call it before the first.

    Gradients are whatever the system makes of them: with "sign_sgd" they are +1 and -1. They are computed in fp32 and
    given back in their own dtype. A gradient that is not finite makes those of its bucket (or of its tensor, or block)
    not finite on every rank alike, so that a GradScaler skips the step everywhere. Clip after backward, when gradients
    are the averages that are alike on all ranks.

    A rank that cannot exchange a bucket (a sparse gradient, a residual of another model) raises its sentence in
    backward and closes its connections, so that the others raise in backward, too, with the same sentence, and do not
    wait. After that all ranks have to be started again. (Over NCCL the end of backward waits on the host for what was
    exchanged: only so can a rank learn that another one is gone.)

    Args:
        model: has no communication hook yet.
        system: a name in `binsgdm.SYSTEMS`; "int8" is "byte_grad".
        seed: of the draws, the same on all ranks.
        topology: among whom payloads travel (`binsgdm.compressors.topologies`): one of the system's `topologies`, by
            default what its authors run: the first, or, of "byte_grad" and "ms_top_k" on nodes of several ranks,
            "hierarchical", which sends 1 / ranks_per_node of the bytes between nodes.
        intra_node_dtype: of what travels inside a node with a hierarchical topology: "fp32" (default) or "bf16".
        ranks_per_node: consecutive ranks of the model that are on a node; default LOCAL_WORLD_SIZE from torchrun, of a
            part of all ranks those with equal rank // LOCAL_WORLD_SIZE, else all ranks of the model.
        group: the ranks that exchange; default the `process_group` of the model, whose ranks it must have.
        timeout: of the collectives; a rank that is gone is noticed after it.
        on_sent: called with every collective that this rank takes part in, from the thread that exchanges.
        options: of the system, such as bits=4.

    Returns:
        The exchange, whose state belongs into the checkpoint of its rank.

    Raises:
        BinsgdmError: no DDP model, complex parameters, an unknown system or option, a value out of range, or ranks that
            differ in any of it; on all ranks, also where one alone was given something wrong.

    Example:
        model = DistributedDataParallel(module)
        exchange = compress_gradients(model, "power_sgd", matrix_rank=2)
    """
    system = canonical(system)
    model = getattr(model, "_orig_mod", model)  # what torch.compile has wrapped
    models = replicated_in(model)
    members = group_of(models, group)
    ranks = grouping.ranks_of(members)
    with agreed(_WHERE) as call:
        call.group = members
        call.device = next((parameter.device for parameter in getattr(model, "parameters", tuple)()), None)
        _check_model(model)
        check_group(_WHERE, group, models)
        check_whole(f"{_WHERE}: seed", seed, low=0, high=2**64 - 1)
        check_arguments(_WHERE, ranks_per_node=ranks_per_node, timeout=timeout, on_sent=on_sent)
        local = grouping.node_size(ranks_per_node, members, default=len(ranks))
        check_options(system, options)  # here, too: an option may have the name of an argument of make
        end = make(
            system,
            rank=ranks.index(dist.get_rank()),
            world_size=len(ranks),
            ranks_per_node=local,
            topology=topology,
            intra_node_dtype=intra_node_dtype,
            **options,
        )
        call.settings = {
            "system": system,
            "seed": seed,
            "ranks_per_node": local,
            "topology": topology,
            "intra_node_dtype": intra_node_dtype,
            **options,
        }
        if SYSTEMS[system].needs_equal_threads:
            call.settings["torch.get_num_threads()"] = torch.get_num_threads()
    used = topology or SYSTEMS[system].default_topology(local)
    # Who goes on with others than a state was saved with does not go on bit for bit.
    saved = {"system": system, "seed": seed, "topology": used, **SYSTEMS[system].options, **options}
    groups = grouping.make(local, timeout, call.device, members)
    exchange = GradientExchange(model, end, groups, seed=seed, on_sent=on_sent, settings=saved)
    # Last: DDP takes one hook in its life, and a rank that refused before has none.
    model.register_comm_hook(exchange, exchange_bucket)
    setattr(model, COMPRESSED, exchange)
    return exchange


def _check_model(model: object) -> None:
    if not isinstance(model, DistributedDataParallel):
        raise BinsgdmError(
            f"{_WHERE}: a {type(model).__name__}: must be a DistributedDataParallel model; wrap the module"
        )
    if getattr(model, COMPRESSED, None) is not None:
        raise BinsgdmError(f"{_WHERE}: a model with a system: must have none; wrap the module anew")
    check_hook(_WHERE, model, COMPRESSED)
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            raise BinsgdmError(f"{_WHERE}: {name}: sparse gradients: must be dense; build it with sparse=False")
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            raise BinsgdmError(f"{_WHERE}: {name}: complex: must be real; leave it out of the model")


class _DdpBucket:
    """A bucket that DDP waits for, until all of its parameters have their means."""

    def __init__(
        self, parameters: Sequence[int], buffer: torch.Tensor, future: "torch.futures.Future[torch.Tensor]"
    ) -> None:
        self._parameters, self._buffer, self._future = parameters, buffer, future
        self._means: dict[int, torch.Tensor] = {}

    def finish(self, mean: torch.Tensor) -> None:
        """Hand DDP the means of the whole bucket, flat."""
        self._future.set_result(mean.to(self._buffer.dtype))

    def take(self, parameter: int, mean: torch.Tensor) -> None:
        """Take the mean of one parameter; the last one ends DDP's wait."""
        self._means[parameter] = mean
        if len(self._means) == len(self._parameters):
            self.finish(torch.cat([self._means[number] for number in self._parameters]))

    def give_up(self) -> None:
        """End DDP's wait without means; nobody reads the values, as backward raises."""
        if not self._future.done():
            self._future.set_result(self._buffer)


class _Item(NamedTuple):
    """A bucket to exchange.

    Attributes:
        context: of its draws.
        gradients: returns them, or raises why this rank cannot exchange them.
        finish: hands over their means, flat.
        sources: the streams that they were written on.
    """

    context: RankContext
    gradients: Callable[[], GradientBucket]
    finish: Callable[[torch.Tensor], None]
    sources: Collection[Stream]


def _whole(gradients: GradientBucket | BinsgdmError) -> GradientBucket:
    """Return the gradients of a bucket of DDP."""
    if isinstance(gradients, BinsgdmError):
        raise gradients
    gradients.keep()  # made on a stream of backward, and freed while this one reads them
    return gradients


class _Arrived(NamedTuple):
    """The gradient of one parameter, flat fp32, the bucket of DDP that waits for its mean, and where it was written."""

    values: torch.Tensor
    shape: tuple[int, ...]
    waiting: _DdpBucket
    source: Stream


_Parts = dict[int, _Arrived]
"""By parameter, in the order of a bucket."""


def _joined(parts: _Parts) -> GradientBucket:
    """Return gradients that came in other buckets of DDP, one after the other."""
    values = [arrived.values for arrived in parts.values()]
    on_device = streams.of(values[0].device)
    on_device.keep(on_device.current(), *values)
    return GradientBucket(
        values=torch.cat(values), parameters=tuple(parts), shapes=tuple(arrived.shape for arrived in parts.values())
    )


def _share_out(parts: _Parts, mean: torch.Tensor) -> None:
    """Hand each parameter's mean to the bucket of DDP that waits for it."""
    means = torch.split(mean, [arrived.values.numel() for arrived in parts.values()])
    for (parameter, arrived), part in zip(parts.items(), means, strict=True):
        arrived.waiting.take(parameter, part)


class _Regrouping:
    """The gradients of one backward on their way from DDP's buckets to those of a layout, which leave in order."""

    def __init__(self, layout: Layout) -> None:
        self._layout, self._next = layout, 0
        self._arrived: dict[int, _Arrived] = {}

    def is_next(self, parameters: Sequence[int]) -> bool:
        """Tell whether a bucket of DDP is the next of the layout, as it is; it leaves then without a copy."""
        is_it = not self._arrived and self._next < len(self._layout) and self._layout[self._next] == tuple(parameters)
        self._next += is_it
        return is_it

    def add(self, bucket: GradientBucket, waiting: _DdpBucket, source: Stream) -> Iterator[tuple[int, _Parts]]:
        """Take a bucket of DDP, and yield the buckets of the layout that are complete, with their numbers."""
        if strange := sorted(map(str, set(bucket.parameters) - self._left())):
            raise BinsgdmError(f"{_FOREIGN}, not {_in_words(strange)} of the model; {_LOAD_OTHER}")
        parts = torch.split(bucket.values, bucket.numels)
        for number, part, shape in zip(bucket.parameters, parts, bucket.shapes, strict=True):
            self._arrived[number] = _Arrived(part, shape, waiting, source)  # type: ignore[index]
        while self._next < len(self._layout) and all(number in self._arrived for number in self._layout[self._next]):
            yield self._next, {number: self._arrived.pop(number) for number in self._layout[self._next]}
            self._next += 1

    def check_done(self) -> None:
        """Refuse the end of a backward that has left gradients behind."""
        if self._next < len(self._layout):
            missing = _in_words(sorted(self._left()))
            raise BinsgdmError(f"{_FOREIGN}, also {missing}, without a gradient in the model; {_LOAD_OTHER}")

    def _left(self) -> set[int]:
        """Return the parameters whose gradients have not come."""
        return {number for numbers in self._layout[self._next :] for number in numbers} - set(self._arrived)


_FOREIGN = f"{_WHERE}: a state whose buckets have other parameters"
_LOAD_OTHER = (
    "load the state of the same model with the same parameters trained, or without its layout (None), where draws are "
    "others and residuals go on"
)


def _in_words(numbers: Iterable[object]) -> str:
    names = list(numbers)
    return f"parameter {names[0]}" if len(names) == 1 else f"parameters {listed(names)}"


def checked_layout(layout: object, num_parameters: int) -> Layout:
    """Return the layout of a state; refuse other types, a parameter twice, or one that the model does not have."""
    where = f"{_WHERE}: layout of the state"
    if not isinstance(layout, list | tuple) or not all(
        isinstance(bucket, list | tuple) and bucket for bucket in layout
    ):
        raise BinsgdmError(f"{where}: {shown(layout)}: must be lists of parameters; load what state_dict() returned")
    numbers = [number for bucket in layout for number in bucket]
    for number in numbers:
        check_whole(where, number, low=0, high=num_parameters - 1)
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise BinsgdmError(f"{where}: parameter {twice} twice: each is in one bucket; load what state_dict() returned")
    return tuple(tuple(bucket) for bucket in layout)


class GradientExchange:
    """One rank's end of a system at work in DDP.

    Buckets are exchanged in DDP's order, which is the same on all ranks, by one thread, on process groups of its own.
    After a state was loaded they are those of the run that was saved, whatever DDP's are.

    Attributes:
        system: with its state.
        step: of the coming backward, from 1; draws and periods count by it.
    """

    def __init__(  # noqa: PLR0913
        self,
        model: DistributedDataParallel,
        system: Averager,
        groups: Groups,
        *,
        seed: int,
        on_sent: Callable[[Sent], None] | None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.system = system
        # As text: a checkpoint that is loaded with weights_only takes no other objects.
        self._settings = {
            name: value if isinstance(value, str) else shown(value) for name, value in (settings or {}).items()
        }
        self.step = 1
        self._numbers = {parameter: number for number, parameter in enumerate(model.parameters())}
        self._layout: Layout | None = None  # of the state that was loaded
        self._regrouping: _Regrouping | None = None
        self._waiting: list[_DdpBucket] = []  # of this backward
        self._seen: list[tuple[int, ...]] = []
        self._num_backwards = 0
        self._plain = LocalGradients(model)  # of which none stays local
        self._is_detached = False
        self._seed = seed
        # It alone holds the groups: connections close, and the others notice, when it lets go of them. None after that.
        self._transport: Transport | None = Transport(groups, on_sent, _WHERE)
        self._member = self._transport.member()
        self._is_state_checked = False
        self._thread: CommunicationThread[_Item] | None = None
        self._stream: Stream = None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        # A copied or unpickled DDP model has a reducer without a hook, and so no exchange.
        return type(None), ()

    def state_dict(self) -> dict[str, Any]:
        """Return step, layout of buckets, settings and state of the system; each rank saves its own, between two steps.

        The layout is None after the first backward alone: DDP forms its buckets anew after that.
        """
        layout = self._layout or (tuple(self._seen) if self._num_backwards > 1 else None)
        state = self.system.state_dict()
        return {"step": self.step, "layout": layout, "settings": dict(self._settings), "system": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a copy of what `state_dict` returned on this rank; every rank must, before its first backward.

        The first backward compares what all ranks must have alike (the step, the layout, factors) and refuses on all
        ranks. From then on buckets are those of the saved run, so that it goes on bit for bit. A state of other options
        or another seed is taken with a warning.

        Raises:
            BinsgdmError: it is no such state, or that of another system; or backward has run already. Nothing is taken.
        """
        if self._is_state_checked:
            raise BinsgdmError(
                f"{_WHERE}: a state after the first backward: must be loaded before, on all ranks; wrap the "
                "module anew, compress and load again"
            )
        former: dict[str, Any] = {"layout": None, "settings": self._settings}  # saved neither
        saved = former | dict(state) if isinstance(state, Mapping) else state
        check_state(_WHERE, saved, ("layout", "settings", "step", "system"))
        check_whole(f"{_WHERE}: step of the state", saved["step"], low=1, high=2**32 - 1)
        layout = None if saved["layout"] is None else checked_layout(saved["layout"], len(self._numbers))
        others = self._other_settings(saved["settings"])
        self.system.load_state_dict(saved["system"])
        self.step, self._layout = saved["step"], layout
        if others:
            warnings.warn(
                f"{_WHERE}: a state of {', '.join(others)}: the run goes on, but not bit for bit",
                stacklevel=2,
            )
        if layout is None and self.step > 1:
            warnings.warn(
                f"{_WHERE}: a state of step {self.step} without a layout, saved after one backward or by a "
                "former version: the run goes on, but not bit for bit, as draws follow buckets",
                stacklevel=2,
            )

    def _other_settings(self, saved: object) -> list[str]:
        """Return what a state was saved with, where that is not what this exchange was given."""
        if not isinstance(saved, Mapping) or not all(isinstance(text, str) for text in (*saved, *saved.values())):
            raise BinsgdmError(f"{_WHERE}: settings of the state: must be texts by name; {REPAIR}")
        settings = self._settings
        if saved.get("system") != settings.get("system"):
            raise BinsgdmError(
                f"{_WHERE}: a state of system {shown(saved.get('system'))}: must be of "
                f"{settings.get('system')!r}; compress with the system that was saved"
            )
        others = [name for name in {**settings, **saved} if saved.get(name) != settings.get(name)]
        return [printable(f"{name}={saved.get(name, 'unknown')}")[:60] for name in others[:5]]

    def detach(self) -> None:
        """Let DDP average the gradients from the next backward on, as without a system; every rank must call it.

        The state stays readable. DDP takes one hook in its life: for another system wrap the module anew.
        """
        self._is_detached = True
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close(f"{_WHERE}: detach")

    def start(self, bucket: dist.GradBucket) -> "torch.futures.Future[torch.Tensor]":  # type: ignore[name-defined]
        """Hand a bucket to the thread; the future will hold the mean, in the bucket's dtype."""
        if self._is_detached:
            return average_foreign(self._plain, bucket)
        if self._transport is None:
            self._finish()  # raises what has failed, if that was a bucket of this backward
            raise BinsgdmError(f"{_WHERE}: an exchange failed before, and ranks may differ; {failure.REPAIR}")
        device = bucket.buffer().device
        future = streams.of(device).future()
        # In this order: whoever reads the copy waits for all that was enqueued before the submission.
        try:
            thread = self._thread or self._begin(device)
            for item in self._items(bucket, future):
                thread.submit(item, item.sources)
            # DDP numbers buckets from 0 in each backward; the last one ends the step.
            if bucket.is_last():
                if self._regrouping is not None:
                    self._regrouping.check_done()
                self.step += 1
                self._num_backwards += 1
        except (RuntimeError, BinsgdmError) as error:
            # Too little memory for the copy, or buckets that do not fit: no item is there that could fail.
            self._abort(str(error).splitlines()[0])
            raise
        return future

    def _begin(self, device: torch.device) -> "CommunicationThread[_Item]":
        """Begin a backward."""
        # DDP has no hook for the end of backward; autograd runs this callback when backward is done, as DDP's own
        # reducer does.
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        except RuntimeError as error:
            raise BinsgdmError(_JOINED) from error
        self._stream = self._stream or streams.of(device).make()
        self._regrouping = None if self._layout is None else _Regrouping(self._layout)
        self._seen, self._waiting = [], []
        self._thread = CommunicationThread("binsgdm-compress", device, self._exchange, self._on_failure, self._stream)
        return self._thread

    def _items(self, bucket: Any, future: "torch.futures.Future[torch.Tensor]") -> Iterator[_Item]:
        """Yield what can be exchanged now that a bucket of DDP is there."""
        numbers = tuple(self._numbers[parameter] for parameter in bucket.parameters())
        gradients = _gradients(bucket, numbers)
        waiting = _DdpBucket(numbers, bucket.buffer(), future)
        here = streams.of(bucket.buffer().device).current()
        self._seen.append(numbers)
        self._waiting.append(waiting)
        regrouping, context = self._regrouping, self._member.context(seed=self._seed, step=self.step)
        if isinstance(gradients, BinsgdmError) or regrouping is None or regrouping.is_next(numbers):
            yield _Item(replace(context, bucket=bucket.index()), partial(_whole, gradients), waiting.finish, {here})
            return
        for index, parts in regrouping.add(gradients, waiting, here):
            sources = {arrived.source for arrived in parts.values()}
            yield _Item(replace(context, bucket=index), partial(_joined, parts), partial(_share_out, parts), sources)

    def _exchange(self, item: _Item) -> None:
        item.finish(self._mean(item))

    @staged("average_bucket")
    def _mean(self, item: _Item) -> torch.Tensor:
        transport = self._transport
        assert transport is not None  # a broken exchange runs no items
        if not self._is_state_checked:
            self._check_same_state(transport, item.context.step)
        bucket = item.gradients()
        if not bucket.values.numel():
            return bucket.values
        return transport.run(self.system.mean(bucket, item.context))

    def _on_failure(self, _: _Item, error: BaseException) -> None:
        """Tell the others why there is no mean, and end DDP's wait for it; nobody reads the value: backward raises."""
        self._abort(str(error) or type(error).__name__)
        for waiting in list(self._waiting):
            waiting.give_up()

    def _check_same_state(self, transport: Transport, step: int) -> None:
        """Check once, before the first exchange, that all ranks have alike what must be alike."""

        def compare(settings: Mapping[str, Any], group: GroupName) -> None:
            transport.guarded(
                lambda: check_same_settings(f"{_WHERE}: state", settings, group=transport.group(group)),
                f"the comparison of states in {group}",
            )

        # Checked at the first exchange and not on loading: only then have all ranks loaded, and all are
        # at the same call.
        compared, group = comparable(self.system.common_values()), self.system.common_group
        compare({"step": step, "layout": self._layout} | (compared if group == "world" else {}), "world")
        if group != "world":
            compare(compared, group)
        self._is_state_checked = True

    def _abort(self, reason: str) -> None:
        """Tell the others, and drop all that holds connections."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort(reason)

    def _finish(self) -> None:
        """Wait for the buckets of this backward, and raise its error, which DDP itself would not show."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        thread.finish()
        if self._transport is not None:
            try:  # over NCCL: where the user's own code reads a result, a lost rank would block it
                self._transport.wait("the exchange of gradients")
            except BinsgdmError as error:
                self._abort(str(error))
                raise


@staged("copy_gradients")
def _gradients(bucket: Any, numbers: tuple[int, ...]) -> GradientBucket | BinsgdmError:
    """Return the gradients, or the error for which there are none; the thread raises it when it is their turn."""
    gradients = bucket.gradients()
    for gradient in (bucket.buffer(), *gradients):
        if gradient.is_sparse or gradient.is_complex():
            kind = "sparse" if gradient.is_sparse else "complex"
            return BinsgdmError(
                f"{_WHERE}: a {kind} gradient of shape {tuple(gradient.shape)}: must be dense and real; use a dense "
                "layer, such as Embedding(sparse=False)"
            )
    return GradientBucket(
        # A copy: DDP reuses the memory of its bucket, and the thread reads the values later.
        values=torch.cat([gradient.reshape(-1) for gradient in gradients]).to(torch.float32),
        parameters=numbers,
        shapes=tuple(tuple(parameter.shape) for parameter in bucket.parameters()),
    )


_JOINED = (
    f"{_WHERE}: a backward inside DDP.join() that sends zeros for a rank without batches: most systems take "
    "them for gradients; give all ranks as many batches"
)


def exchange_bucket(
    state: GradientExchange,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP looks at name and annotation
) -> torch.futures.Future[torch.Tensor]:  # not as text, which DDP refuses
    """Hand a bucket of DDP to an exchange: the hook that `register_comm_hook` takes."""
    return state.start(bucket)
