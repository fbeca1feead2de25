"""The store of a world with one process: what another rank would set is missing at once, not after a time-out."""

from datetime import timedelta
from typing import Any, NoReturn

import torch.distributed as dist

from binsgdm.errors import BinsgdmError

_Store: Any = getattr(dist, "Store")  # noqa: B009 - torch has no types for it


class AloneStore(_Store):  # type: ignore[misc]
    """Keeps what this rank sets, and refuses to wait for what another one would.

    Args:
        world_size: ranks that count together with this one.
    """

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self._world_size = world_size
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        """Keep a value."""
        self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """Return a value that this rank has set.

        Raises:
            BinsgdmError: it has not.
        """
        if key not in self._values:
            self._refuse(key)
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """Add to a counter what all ranks add, so that nobody waits for the last one to arrive."""
        total = int(self._values.get(key, b"0")) + amount * self._world_size
        self._values[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a value if it is what is expected."""
        if self._values.get(key, expected.encode()) == expected.encode():
            self.set(key, desired)
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        """Tell whether all keys are set."""
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # noqa: ARG002
        """Refuse keys that are not set.

        Raises:
            BinsgdmError: one is not.
        """
        for key in keys:
            if key not in self._values:
                self._refuse(key)

    def delete_key(self, key: str) -> bool:
        """Forget a key."""
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    def set_timeout(self, timeout: timedelta) -> None:
        """Do nothing: nothing waits."""

    def _refuse(self, key: str) -> NoReturn:
        raise BinsgdmError(
            f"store.get({key!r}): another rank would set it, and a recording has none: leave out what ranks tell each "
            "other through the store"
        )
