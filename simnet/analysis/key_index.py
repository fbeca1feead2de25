"""Where things are by their key: a hash table of 24 bytes a slot, since a million keys in a dict take 200 MB."""

import hashlib
from array import array

_DIGEST = 16
# Part of the slots that may be taken: beyond, keys crowd.
_FULL = 2 / 3
_NOWHERE = -1


class KeyPlaces:
    """A place, 0 or more, for each of many keys; of a key only a hash of 128 bits is kept.

    Example:
        >>> places = KeyPlaces()
        >>> places["a"] = 7
        >>> places.get("a"), places.get("b"), len(places)
        (7, None, 1)
    """

    def __init__(self, num_slots: int = 1024) -> None:
        """Make an empty table.

        Args:
            num_slots: how many there are at first, a power of 2.
        """
        self._count = 0
        self._places = array("q", [_NOWHERE]) * num_slots
        self._digests = bytearray(_DIGEST * num_slots)

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> int | None:
        """Return the place of a key; None if it has none."""
        place = self._places[self._slot(_digest(key))]
        return None if place == _NOWHERE else place

    def __setitem__(self, key: str, place: int) -> None:
        self._set(_digest(key), place)
        if self._count > _FULL * len(self._places):
            self._grow()

    def _set(self, digest: bytes, place: int) -> None:
        slot = self._slot(digest)
        self._count += self._places[slot] == _NOWHERE
        self._places[slot] = place
        self._digests[slot * _DIGEST : (slot + 1) * _DIGEST] = digest

    def _slot(self, digest: bytes) -> int:
        """Return the slot that has a hash, or else the free one that it goes to."""
        mask = len(self._places) - 1
        slot = int.from_bytes(digest[:8], "little") & mask
        while self._places[slot] != _NOWHERE and self._digests[slot * _DIGEST : (slot + 1) * _DIGEST] != digest:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        larger = KeyPlaces(2 * len(self._places))
        for slot, place in enumerate(self._places):
            if place != _NOWHERE:
                larger._set(bytes(self._digests[slot * _DIGEST : (slot + 1) * _DIGEST]), place)
        self._places, self._digests = larger._places, larger._digests


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=_DIGEST).digest()
