"""Find, in a message that every step sends anyway, what differs between ranks and must not; and name it.

Each rank sends a checksum and its complement. The greatest of both over all ranks, byte by byte, tells every rank
whether all were equal. Only where they were not, a second round of messages carries what each rank has, in words.
"""

import hashlib
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from binsgdm.comm.messages import AllReduceMax, GroupName, Member, Message, Protocol, group_members
from binsgdm.comm.replicas import checksum_of
from binsgdm.errors import BinsgdmError

_CHECKSUM_BYTES = 8
_GREATEST = 255
_COMPLEMENT = bytes(range(_GREATEST, -1, -1))
_LENGTH_BYTES = 8
_REPAIR = "no rank has moved: make it alike on all ranks, or load on all of them what belongs together"
_FACTOR = 1_000_003  # odd, so that no bit of a checksum is lost where another value is mixed in

PAIR_BYTES = 2 * _CHECKSUM_BYTES
NO_PAIR = bytes(PAIR_BYTES)
"""What a rank sends that has nothing to compare; it differs from no other."""
IS_NEW = b"\xff" * _CHECKSUM_BYTES + bytes(_CHECKSUM_BYTES)
"""What a rank sends instead of a pair that lets all ranks compare what they have: it may have changed on this one."""
CHECK_EVERY = 256
"""Steps from one comparison of parameters to the next, where no rank knows of a change."""


def pair(values: object) -> bytes:
    """Return a checksum of what must be alike on all ranks, and its complement.

    Args:
        values: numbers, texts, lists and tuples of these: what has the same `repr` in every process.
    """
    checksum = hashlib.blake2b(repr(values).encode(), digest_size=_CHECKSUM_BYTES).digest()
    return checksum + checksum.translate(_COMPLEMENT)


def differ(greatest: Sequence[int]) -> bool:
    """Tell whether two ranks had different checksums.

    Args:
        greatest: of the pairs of all ranks, byte by byte.

    Example:
        >>> differ(pair(1)), differ(list(map(max, pair(1), pair(2)))), differ(list(map(max, pair(1), NO_PAIR)))
        (False, True, False)
    """
    halves = zip(greatest[:_CHECKSUM_BYTES], greatest[_CHECKSUM_BYTES:], strict=True)
    return any(one + other > _GREATEST for one, other in halves)


def mix_in(sent: torch.Tensor, first: int, scalars: Sequence[torch.Tensor]) -> None:
    """Let a pair that is part of a message on a GPU cover numbers there, which the host does not read.

    Args:
        sent: uint8, changed.
        first: where in it the pair begins.
        scalars: of one element each, on the same device.
    """
    checksum = sent[first : first + _CHECKSUM_BYTES].clone().view(torch.int64)
    for scalar in scalars:
        checksum = checksum * _FACTOR + scalar.detach().reshape(1).to(torch.float64).view(torch.int64)
    put(sent, first, checksum)


def put(sent: torch.Tensor, first: int, checksum: torch.Tensor) -> None:
    """Write a checksum, which may be on a GPU, and its complement into a message.

    Args:
        sent: uint8, changed.
        first: where in it the pair begins.
        checksum: int64, of one element.
    """
    middle, end = first + _CHECKSUM_BYTES, first + PAIR_BYTES
    sent[first:middle] = checksum.view(torch.uint8)
    sent[middle:end] = checksum.bitwise_not().view(torch.uint8)


class ComparisonSchedule:
    """When this rank is to ask all ranks for a comparison of what they hold alike.

    At first, after a change that no step has made, and every `CHECK_EVERY` steps.
    """

    def __init__(self) -> None:
        self._is_new = True
        self._has_changed = False
        self._versions: list[int] | None = None
        self._num_steps, self._num_since_change = 0, CHECK_EVERY  # the first change is looked at at once

    def is_due(self, tensors: Iterable[torch.Tensor]) -> bool:
        """Tell whether to ask in this step, before it changes the tensors."""
        self._num_steps, self._num_since_change = self._num_steps + 1, self._num_since_change + 1
        if self._versions is not None and self._versions != [one._version for one in tensors]:
            self._has_changed = True
        # Who changes parameters after every step, such as by a clamp, has them compared after some of these.
        if self._has_changed and self._num_since_change >= CHECK_EVERY:
            self._num_since_change, self._has_changed, self._is_new = 0, False, True
        return self._is_new or self._num_steps % CHECK_EVERY == 0

    def note(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take the tensors, which a step has changed, as they are."""
        self._versions = [one._version for one in tensors]

    def expect(self) -> None:
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
    """Compare numbers between ranks, as a protocol that all ranks run with the same names in the same order.

    Raises:
        BinsgdmError: on all ranks, with the first number that differs.
    """
    rows = yield from numbers_of_all([one.value for one in numbers], member, device)
    for column, one in enumerate(numbers):
        for position, row in enumerate(rows):
            first = position if one.group is None else _first(one.group, position, member)
            theirs, wanted = row[column], rows[first][column]
            if theirs != wanted:
                shown = ("", "that") if one.is_checksum else (f": {theirs}", str(wanted))
                raise BinsgdmError(
                    f"{where}: {one.name} of rank {member.named(position)}{shown[0]}: must equal {shown[1]} of rank "
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
    """Compare tensors, at least one, bit for bit between the ranks of a group, as a protocol that all ranks run.

    Raises:
        BinsgdmError: on all ranks, with the first tensor that differs.
    """
    rows = yield from numbers_of_all([int(checksum_of(tensors.values()).item())], member, device)
    if any(rows[position] != rows[_first(group, position, member)] for position in range(member.world_size)):
        sums = torch.cat([checksum_of([one]) for one in tensors.values()]).tolist()  # one read from a GPU
        numbers = [
            Alike(name=name, value=one, group=group, is_checksum=True) for name, one in zip(tensors, sums, strict=True)
        ]
        yield from check_alike(where, numbers, member, device, repair)
    return torch.tensor(rows, dtype=torch.int64, device="cpu")


def _first(group: GroupName, position: int, member: Member) -> int:
    return group_members(group, position, member.world_size, member.ranks_per_node)[0]


def numbers_of_all(
    mine: Sequence[int], member: Member, device: torch.device
) -> Generator[Message, torch.Tensor, list[list[int]]]:
    """Return numbers of 64 bits that every rank has, by position; all ranks must have as many."""
    if member.world_size == 1 or member.stands_for_all():
        return [list(mine)] * member.world_size
    own = torch.tensor([1, *mine], dtype=torch.int64, device="cpu").view(torch.uint8)
    rows = torch.zeros(member.world_size, own.numel(), dtype=torch.uint8, device=device)
    rows[member.rank] = own.to(device)
    all_rows = yield AllReduceMax(sent=rows.view(-1))
    found = all_rows.cpu().view(member.world_size, -1).view(torch.int64).tolist()
    # Where whoever drives the protocol answers with what this rank has sent, the others have sent nothing.
    return [row if is_sent else list(mine) for is_sent, *row in found]


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

    Raises:
        BinsgdmError: always: `refused`, or with the first rank that refused, or with the first fact that differs.
    """
    text = json.dumps([None if refused is None else str(refused), dict(facts)]).encode()
    texts = yield from _gathered(text, member, device)
    if refused is not None:
        raise refused
    found = [json.loads(one) for one in texts]
    for position, (reason, _) in enumerate(found):
        if reason is not None:
            raise BinsgdmError(f"{where}: rank {member.named(position)} refused: {reason}")
    raise _difference(where, member, [theirs for _, theirs in found])


def _difference(where: str, member: Member, found: Sequence[Mapping[str, Any]]) -> BinsgdmError:
    """Return the error that names what differs first."""
    first = found[0]
    for position, theirs in enumerate(found):
        for name in dict.fromkeys([*first, *theirs]):
            if repr(first.get(name)) != repr(theirs.get(name)):  # NaN equals NaN
                return BinsgdmError(
                    f"{where}: {name} of rank {member.named(position)}: {theirs.get(name)!r}: must equal rank "
                    f"{member.named(0)}'s {first.get(name)!r}; {_REPAIR}"
                )
    raise AssertionError("ranks that differ in nothing")


def _gathered(text: bytes, member: Member, device: torch.device) -> Generator[Message, torch.Tensor, list[bytes]]:
    """Return the texts of all ranks, by position."""
    # By maxima alone, each rank with zeros in the others' places: that message goes to all ranks that step together.
    length = torch.tensor(list(len(text).to_bytes(_LENGTH_BYTES, "big")), dtype=torch.uint8, device=device)
    # Byte by byte the greatest of all lengths, so no length exceeds it.
    lengths = yield AllReduceMax(sent=length)
    size = int.from_bytes(bytes(lengths.tolist()), "big")
    rows = torch.zeros(member.world_size, size, dtype=torch.uint8, device=device)
    rows[member.rank, : len(text)] = torch.tensor(list(text), dtype=torch.uint8, device=device)
    all_rows = yield AllReduceMax(sent=rows.view(-1))
    return [bytes(row).rstrip(b"\0") for row in all_rows.view(member.world_size, size).tolist()]
