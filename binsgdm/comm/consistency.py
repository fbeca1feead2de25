"""Find, in a message that every step sends anyway, what differs between ranks and must not; and name it.

Each rank sends a checksum and its complement. The greatest of both over all ranks, byte by byte, tells every rank
whether all were equal. Only where they were not, a second round of messages carries what each rank has, in words.
"""

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch

from binsgdm.comm.messages import AllReduceMax, Member, Message, Protocol
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
