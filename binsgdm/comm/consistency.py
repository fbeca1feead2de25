"""What must be alike on all ranks: compared before an exchange begins, and in a message that every step sends anyway.

There each rank sends a checksum and its complement. The greatest of both over all ranks, byte by byte, tells every rank
whether all were equal. Only where they were not, a second round of messages carries what each rank has, in words.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from binsgdm.comm.arguments import check_group, check_module, group_of, replicated_in
from binsgdm.comm.failure import REPAIR, gloo_reason, store_barrier
from binsgdm.comm.groups import backend_of, is_nccl, ranks_in_order
from binsgdm.comm.messages import AllReduceMax, GroupName, Member, Message, Protocol, group_members
from binsgdm.errors import BinsgdmError

_CHECKSUM_BYTES = 8
_GREATEST = 255
_COMPLEMENT = bytes(range(_GREATEST, -1, -1))
_REPAIR = "no rank has moved: make it alike on all ranks, or load on all of them what belongs together"
_FACTOR = 1_000_003  # odd, so that no bit of a checksum is lost where another value is mixed in
_MODULUS = 65521  # the largest prime below 2^16, as in Adler-32
_CHUNK = 1 << 22  # elements widened to 64 bits at a time

PAIR_BYTES = 2 * _CHECKSUM_BYTES
NO_PAIR = bytes(PAIR_BYTES)
"""What a rank sends that has nothing to compare; it differs from no other."""
IS_NEW = b"\xff" * _CHECKSUM_BYTES + bytes(_CHECKSUM_BYTES)
"""What a rank sends instead of a pair that lets all ranks compare what they have: it may have changed on this one."""
CHECK_EVERY = 256
"""Steps from one comparison of parameters to the next, where no rank knows of a change."""
NUM_WRITES = 16
"""Writes in consecutive steps that are each looked at: a comparison reads all parameters."""


def pair(values: object) -> bytes:
    """Return a checksum of what must be alike on all ranks, by its `repr`, and the complement of it."""
    checksum = hashlib.blake2b(repr(values).encode(), digest_size=_CHECKSUM_BYTES).digest()
    return checksum + checksum.translate(_COMPLEMENT)


def differ(greatest: Sequence[int]) -> bool:
    """Tell whether two ranks had different checksums, by the greatest of their pairs, byte by byte.

    Example:
        >>> differ(pair(1)), differ(list(map(max, pair(1), pair(2)))), differ(list(map(max, pair(1), NO_PAIR)))
        (False, True, False)
    """
    halves = zip(greatest[:_CHECKSUM_BYTES], greatest[_CHECKSUM_BYTES:], strict=True)
    return any(byte + other > _GREATEST for byte, other in halves)


def mix_in(sent: torch.Tensor, first: int, scalars: Sequence[torch.Tensor]) -> None:
    """Let the pair that begins at `first` in a message (uint8) on a GPU cover numbers there, unread by the host."""
    middle, end = first + _CHECKSUM_BYTES, first + PAIR_BYTES
    checksum = sent[first:middle].clone().view(torch.int64)
    for scalar in scalars:
        checksum = checksum * _FACTOR + scalar.detach().reshape(1).to(torch.float64).view(torch.int64)
    sent[first:middle] = checksum.view(torch.uint8)
    sent[middle:end] = checksum.bitwise_not().view(torch.uint8)


class ComparisonSchedule:
    """When this rank is to ask all ranks for a comparison of what they hold alike.

    At first, every `CHECK_EVERY` steps, and where somebody else than a step has written to it. Who writes after every
    step, such as by a clamp, has the first `NUM_WRITES` of such a row looked at, then every `CHECK_EVERY` steps, and
    where the row ends: no write stays unseen, and none after a step without one waits.
    """

    def __init__(self) -> None:
        self._is_new = True
        self._left: list[int] | None = None
        self._num_steps = self._num_writes = 0  # of all steps, and of those in a row that were written before

    def is_due(self, tensors: Iterable[torch.Tensor], *counts: int) -> bool:
        """Tell whether to ask in this step, before it changes the tensors, or other counts that steps alone change."""
        former, length = self._left, self._num_writes
        self.note(tensors, *counts)
        self._num_steps += 1
        self._num_writes = length + 1 if former not in (None, self._left) else 0
        is_seen = 0 < self._num_writes <= NUM_WRITES or (not self._num_writes and length > NUM_WRITES)
        self._is_new |= is_seen or self._num_steps % CHECK_EVERY == 0
        return self._is_new

    def note(self, tensors: Iterable[torch.Tensor], *counts: int) -> None:
        """Take the tensors, which a step has changed, as they are."""
        self._left = [*counts, *(tensor._version for tensor in tensors)]

    def invalidate(self) -> None:
        """Ask until `compared`."""
        self._is_new = True

    def compared(self) -> None:
        """Note that all ranks hold the same."""
        self._is_new = False


@dataclass(frozen=True, kw_only=True)
class Alike:
    """A number that ranks of a group must have alike.

    Attributes:
        name: begins the sentence where they do not.
        value: of this rank, of 64 bits.
        group: whose ranks are compared, each with the first; None for a number that all are only to see.
        is_checksum: the value itself says nothing to a reader.
    """

    name: str
    value: int
    group: GroupName | None = "world"
    is_checksum: bool = False


def check_alike(where: str, numbers: Sequence[Alike], member: Member, device: torch.device, repair: str) -> Protocol:
    """Compare numbers, of the same names on all ranks, as a protocol; all raise the first that differs."""
    rows = yield from _numbers_of_all([number.value for number in numbers], member, device)
    for column, number in enumerate(numbers):
        for position, row in enumerate(rows):
            first = position if number.group is None else _first(number.group, position, member)
            theirs, wanted = row[column], rows[first][column]
            if theirs != wanted:
                shown = ("", "that") if number.is_checksum else (f": {theirs}", str(wanted))
                raise BinsgdmError(
                    f"{where}: {number.name} of rank {member.named(position)}{shown[0]}: must equal {shown[1]} of rank "
                    f"{member.named(first)}; {repair}"
                )
    return torch.tensor(rows, dtype=torch.int64, device="cpu")


def check_tensors_alike(  # noqa: PLR0913, PLR0917
    where: str,
    tensors: Mapping[str, torch.Tensor],
    member: Member,
    device: torch.device,
    repair: str,
    group: GroupName = "world",
) -> Protocol:
    """Compare tensors, at least one, bit for bit between the ranks of a group, as `check_alike` does numbers."""
    rows = yield from _numbers_of_all([int(checksum_of(tensors.values()).item())], member, device)
    if any(rows[position] != rows[_first(group, position, member)] for position in range(member.world_size)):
        sums = torch.cat([checksum_of([tensor]) for tensor in tensors.values()]).tolist()  # one read from a GPU
        numbers = [
            Alike(name=name, value=checksum, group=group, is_checksum=True)
            for name, checksum in zip(tensors, sums, strict=True)
        ]
        yield from check_alike(where, numbers, member, device, repair)
    return torch.tensor(rows, dtype=torch.int64, device="cpu")


def _first(group: GroupName, position: int, member: Member) -> int:
    return group_members(group, position, member.world_size, member.ranks_per_node)[0]


def _numbers_of_all(
    numbers: Sequence[int], member: Member, device: torch.device
) -> Generator[Message, torch.Tensor, list[list[int]]]:
    """Return numbers of 64 bits that every rank has, by position; all ranks must have as many."""
    if member.world_size == 1 or member.stands_for_all:
        return [list(numbers)] * member.world_size
    sent = torch.tensor([1, *numbers], dtype=torch.int64, device="cpu").view(torch.uint8)
    rows = yield from _rows_of_all(sent, member, device)
    # Where whoever drives the protocol answers with what this rank has sent, the others have sent nothing.
    return [row if is_sent else list(numbers) for is_sent, *row in rows.view(torch.int64).tolist()]


def _rows_of_all(
    row: torch.Tensor, member: Member, device: torch.device
) -> Generator[Message, torch.Tensor, torch.Tensor]:
    """Return the bytes of every rank, by position, on the CPU; as many of each."""
    # By maxima alone, each rank with zeros in the others' places: that message goes to all ranks that step together.
    rows = torch.zeros(member.world_size, row.numel(), dtype=torch.uint8, device=device)
    rows[member.rank] = row.to(device)
    greatest = yield AllReduceMax(sent=rows.view(-1))
    return greatest.cpu().view(member.world_size, -1)


def number_of(values: object) -> int:
    """Return a checksum of what has the same `repr` in every process, as a number of 64 bits."""
    return int.from_bytes(pair(values)[:_CHECKSUM_BYTES], "little", signed=True)


def refuse_together(
    where: str, member: Member, facts: Mapping[str, Any], *, refused: BinsgdmError | None, device: torch.device
) -> Protocol:
    """Raise on all ranks alike why they cannot go on, as a protocol that all ranks run once they know that one cannot.

    Args:
        where: begins the sentence.
        member: this rank, among all that run the protocol.
        facts: by name, what must be alike on all ranks; values that JSON has.
        refused: why this rank cannot go on anyway, which is raised on it.
        device: of the messages.
    """
    text = json.dumps([None if refused is None else str(refused), dict(facts)]).encode()
    lengths = yield from _numbers_of_all([len(text)], member, device)
    sent = torch.tensor(list(text.ljust(max(lengths)[0])), dtype=torch.uint8, device="cpu")
    texts = yield from _rows_of_all(sent, member, device)
    if refused is not None:
        raise refused
    ranks = [member.named(position) for position in range(member.world_size)]
    answers = [json.loads(bytes(encoded)) for encoded in texts.tolist()]
    _raise_what_differs(where, ranks, answers, f"; {_REPAIR}", repr)  # as NaN equals NaN there
    raise AssertionError("ranks that differ in nothing")


def _raise_what_differs(
    where: str,
    ranks: Sequence[int],
    answers: Iterable[tuple[str | None, Mapping[str, Any]]],
    repair: str = "",
    form: Callable[[Any], object] = lambda value: value,
) -> None:
    """Raise what the first rank to refuse has said, or with the first setting that differs.

    Args:
        where: begins the sentence.
        ranks: in which order they are compared.
        answers: why each refuses, if it does, and its settings by name.
        repair: ends the sentence.
        form: of settings, which is compared.
    """
    reasons, rows = zip(*answers, strict=True)
    for rank, reason in zip(ranks, reasons, strict=True):
        if reason is not None:
            raise BinsgdmError(f"{where}: rank {rank} refused: {reason}")
    for rank, theirs in zip(ranks, rows, strict=True):
        for name in dict.fromkeys([*rows[0], *theirs]):
            if form(rows[0].get(name)) != form(theirs.get(name)):
                raise BinsgdmError(
                    f"{where}: {name} of rank {rank}: {theirs.get(name)!r}: must equal rank {ranks[0]}'s "
                    f"{rows[0].get(name)!r}{repair}"
                )


# What all ranks were given, where they have come to no exchange yet


@dataclass(kw_only=True)
class CallArguments:
    """What a public function was given on this rank, while `agreed` looks at it.

    Attributes:
        settings: by name, that must be alike on all ranks; of values that can be pickled and compared.
        group: whose ranks are compared; None for all.
        device: of the tensors that will be exchanged.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    group: dist.ProcessGroup | None = None
    device: torch.device | None = None


@contextmanager
def agreed(where: str) -> Iterator[CallArguments]:
    """Look inside at what this rank was given; at the end all ranks go on, or all raise; every one must call it.

    Raises:
        BinsgdmError: on every rank, if one raised it inside, or settings differ from those of the first.
    """
    call, refused = CallArguments(), None
    try:
        yield call
    except BinsgdmError as error:  # which all ranks are to raise, so that none waits
        refused = error
    check_same_settings(where, call.settings, refused, call.group, call.device)


def check_same_settings(
    where: str,
    settings: Mapping[str, Any],
    refused: BinsgdmError | None = None,
    group: dist.ProcessGroup | None = None,
    device: torch.device | None = None,
) -> None:
    """Check that all ranks were given the same; every rank must call it.

    Args:
        where: begins the message.
        settings: by name; of values that can be pickled and compared.
        refused: why this rank cannot go on anyway; it calls nevertheless, so that no other waits for it.
        group: of all ranks; default that of torch.distributed.
        device: of the tensors that will be exchanged: over NCCL the settings travel through this GPU, too; default the
            current one.

    Raises:
        BinsgdmError: on every rank, if any refused (`refused` itself on such a rank) or differs from the first.
    """
    # Those of a rank that refuses are not compared, and may be anything.
    answer = (None, dict(settings)) if refused is None else (str(refused), {})
    answers: list[Any] = [None] * dist.get_world_size(group)
    if "gloo" not in backend_of(group, torch.device("cpu")):  # objects travel over NCCL, which would wait for ever
        store_barrier(where, group)
    # Without set_device all ranks of a node have the first GPU as the current one, which NCCL refuses.
    with torch.cuda.device(device if device is not None and device.type == "cuda" else -1):
        dist.all_gather_object(answers, answer, group=group)
    if refused is not None:
        raise refused
    _raise_what_differs(where, ranks_in_order(group), answers)


def check_same_tensors(
    where: str, named: Sequence[tuple[str, torch.Tensor]], repair: str, group: dist.ProcessGroup | None = None
) -> None:
    """Compare checksums of some tensors between all ranks of a group (default all); every one of them must call it.

    Raises:
        BinsgdmError: on every rank, beginning with `where`, if any differs.
    """
    ranks = ranks_in_order(group)
    if len(ranks) == 1:
        return
    kinds = {f"shape and dtype of {name}": (tuple(tensor.shape), str(tensor.dtype)) for name, tensor in named}
    device = named[0][1].device if named else torch.device("cpu")
    if is_nccl(group, device) or not backend_of(group, device):
        store_barrier(where, group)
    # One number for all kinds first: ranks that have other tensors would wait for more bytes than come.
    numbers = _of_all(torch.tensor([number_of(kinds)], device=device), group)
    if any(number != numbers[0] for number in numbers):
        check_same_settings(where, kinds, None, group)
    if not named:
        return
    by_rank = _of_all(torch.stack([_checksum(tensor.detach()) for _, tensor in named]), group)
    for (name, _), *of_ranks in zip(named, *by_rank, strict=True):
        other = [rank for rank, value in zip(ranks, of_ranks, strict=True) if value != of_ranks[0]]
        if other:
            raise BinsgdmError(
                f"{where}: {name}: ranks {other} differ from rank {ranks[0]}: parameters must be equal to the bit; "
                f"{repair}"
            )


def check_replicas(model: torch.nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Compare checksums of every parameter between ranks; all of them must call it. Buffers are not compared.

    It moves 16 bytes a parameter, so it is cheap enough for every few hundred steps.

    Args:
        model: whose parameters must be equal.
        group: the ranks that hold the same; default the `process_group` of a DistributedDataParallel model, else all.
            Where parameters are sharded (FSDP2), the ranks that hold the same shard, one a node.

    Raises:
        BinsgdmError: on every rank, with the first parameter that differs and the ranks that differ from the first; or
            a rank is gone.
    """
    where = "check_replicas"
    if not dist.is_available() or not dist.is_initialized():
        return
    check_module(where, model)
    models = replicated_in(model)
    check_group(where, group, models)
    if group is None and any(hasattr(parameter, "to_local") for parameter in model.parameters()):
        raise BinsgdmError(
            f"{where}: sharded parameters (DTensor): ranks of a node hold different shards; give "
            "group=mesh.get_group(0), the ranks that hold the same"
        )
    repair = "look for a rank-dependent change outside the optimizer"
    try:
        check_same_tensors(where, list(model.named_parameters()), repair, group_of(models, group))
    except RuntimeError as error:
        if "gloo" not in str(error):
            raise
        raise BinsgdmError(  # of the user's own group, where nobody knows whose fault it is
            f"{where}: a rank is gone, or did not call it ({gloo_reason(error)}): every rank must call it; read there "
            f"why, and {REPAIR}"
        ) from error


def _of_all(values: torch.Tensor, group: dist.ProcessGroup | None) -> list[Any]:
    """Return what every rank has, as lists."""
    if not backend_of(group, values.device):  # parameters on the CPU, and NCCL alone
        values = values.to("cuda")
    theirs = [torch.empty_like(values) for _ in ranks_in_order(group)]
    dist.all_gather(theirs, values, group=group)
    rows: list[Any] = torch.stack(theirs).tolist()  # all at once: from a GPU every read is a wait
    return rows


# Checksums of tensors


def comparable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ranks have alike as `check_same_settings` takes it: checksums in the place of tensors by name."""
    return {name: checksums(value) if name == "factors" else value for name, value in values.items()}


def checksums(tensors: Mapping[Any, torch.Tensor]) -> list[tuple[str, tuple[int, ...], list[int]]]:
    """Return names, shapes and checksums of some tensors, for `check_same_settings`."""
    sums = [_checksum(tensor) for tensor in tensors.values()]
    if not sums:
        return []
    # One read from a GPU and not one each; some, such as AdamW's step, need not be on the device of the others.
    device = max((checksum.device for checksum in sums), key=lambda checksum: checksum.type != "cpu")
    rows = torch.stack([checksum.to(device) for checksum in sums]).tolist()
    return [(str(name), tuple(tensor.shape), row) for (name, tensor), row in zip(tensors.items(), rows, strict=True)]


def checksum_of(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return one int64 number (1) over the bits of all elements of some tensors, on their device; at least one."""
    sums = torch.stack([_checksum(tensor.detach()) for tensor in tensors]).view(-1)
    weights = torch.arange(1, 2 * sums.numel(), 2, device=sums.device)  # odd: none loses a bit
    return (sums * weights).sum().view(1)


def _checksum(values: torch.Tensor) -> torch.Tensor:
    """Return two int64 checksums over the bits of all elements, the same on all devices of a kind."""
    widths = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
    if hasattr(values, "to_local"):  # a DTensor
        values = values.to_local()
    # Of the bits, not the values: NaN equals NaN, and 0 differs from -0.
    bits = values.reshape(-1).contiguous().view(widths[values.element_size()])
    if bits.is_cpu:
        # zlib reads about a GB/s, many times what the sums below do, which a GPU is fast at.
        data = bits.numpy().data
        return torch.tensor([zlib.crc32(data), zlib.adler32(data)], dtype=torch.int64, device="cpu")
    sums = torch.zeros(2, dtype=torch.int64, device=bits.device)
    for first in range(0, bits.numel(), _CHUNK):
        some = bits[first : first + _CHUNK].to(torch.int64)
        # A plain sum does not see two exchanged elements; the weighted one does. int64 sums wrap, alike on all ranks.
        weights = torch.arange(first + 1, first + 1 + some.numel(), device=bits.device) % _MODULUS
        sums += torch.stack([some.sum(), (some * weights).sum()])
    return sums
