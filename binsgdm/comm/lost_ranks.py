"""Find out which rank is lost, after a collective over gloo has failed.

gloo says that a connection closed or that nothing came in time, but not whose fault that is: most ranks whose
connections close have themselves failed because of another. So a rank whose collective failed signs in at the store,
and looks who does not: a process of this host that has ended or is stopped is known at once, the others are waited for.
The first to find out leaves it in the store, so that all say the same.
"""

import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from binsgdm.comm.groups import Groups, store_key
from binsgdm.comm.stores import StoreError, ask, is_kept_by_rank_0

T = TypeVar("T")

LONGEST_WAIT_S = 10.0  # for ranks that may not have noticed yet, since they compute
SHORTEST_POLL_S, LONGEST_POLL_S = 0.01, 0.2
_WORDS = {"ended": "gone", "stopped": "stopped"}


class Home(NamedTuple):
    """Where a rank lives: its host (0 if unknown), its process, and when that began, in ticks of the host's clock."""

    host: int
    pid: int
    start: int


@dataclass(frozen=True, kw_only=True)
class Company:
    """The ranks of an exchange, as they knew each other when it began.

    Attributes:
        name: of this exchange in the store, used by no other.
        rank: global, of this process.
        homes: of all ranks, by global rank.
        wait_s: for how long at most to wait for ranks that may not have noticed.
    """

    name: str
    rank: int
    homes: Mapping[int, Home]
    wait_s: float

    def sign_in(self) -> None:
        """Note that a collective failed on this rank, so that no other takes this one for lost."""
        with suppress(StoreError):
            self._ask(lambda store: store.set(self._key(self.rank), "here"))

    def find(self) -> str:
        """Return who is lost, in a clause such as "rank 2 is gone".

        Every rank that has signed in calls it, and closes its connections before, so that others notice.
        """
        try:
            found = self._search()
        except StoreError:
            return self._search_without_store()
        if self.rank == 0 and is_kept_by_rank_0():
            with suppress(StoreError):
                self._let_others_read(found)
        return found

    def _search(self) -> str:
        for waited_s in _polls(self.wait_s):
            found, missing = self._ask(self._look)
            found = found or self._clause(missing, is_over=waited_s >= self.wait_s)
            if found:
                break
        return self._ask(lambda store: self._publish(store, found))

    def _look(self, store: Any) -> tuple[str, list[int]]:
        """Return what another rank has found, or else who has not signed in."""
        if store.check([f"{self.name}/found"]):
            return store.get(f"{self.name}/found").decode(), []
        return "", [rank for rank in self._others if not store.check([self._key(rank)])]

    def _publish(self, store: Any, clause: str) -> str:
        """Leave what was found for the others; return what the first to find out has left."""
        if not store.check([f"{self.name}/found"]):
            store.set(f"{self.name}/found", clause)
        found: str = store.get(f"{self.name}/found").decode()
        return found

    def _clause(self, missing: Sequence[int], *, is_over: bool) -> str:
        """Return who is lost of those that have not signed in; empty where that cannot be told yet."""
        if not missing:
            return "no rank is gone, but the connection of two of them"
        states = {rank: state_of(self.homes[rank]) for rank in missing}
        for state, word in _WORDS.items():
            if ranks := [rank for rank in missing if states[rank] == state]:
                return f"{_named(ranks)} {word} ({_processes(self.homes[rank] for rank in ranks)})"
        # Of a single rank on another host nothing more can be learnt: its connections closed, or it let the time pass.
        if is_over or (len(missing) == 1 and states[missing[0]] == "unknown"):
            return f"{_named(missing)} gone, or did not take this step"
        return ""

    def _search_without_store(self) -> str:
        """Return who is lost where the store does not answer, which as a rule is in the process of rank 0."""
        had_store = [0] if is_kept_by_rank_0() and 0 in self._others else []
        clause = ""
        for waited_s in _polls(self.wait_s):
            clause = self._clause(had_store or self._others, is_over=waited_s >= self.wait_s)
            if clause:
                break
        return clause if self.has_lost_store else f"{clause}, and the store of torch.distributed does not answer"

    def _let_others_read(self, found: str) -> None:
        """Stay until the others have signed in, and so read: the store ends with this process."""
        lost = {int(number) for number in re.findall(r"\d+", found.partition("(")[0])}
        for waited_s in _polls(self.wait_s):
            states = {rank: state_of(self.homes[rank]) for rank in self._others if rank not in lost}
            keys = [self._key(rank) for rank, state in states.items() if state not in _WORDS]
            if waited_s >= self.wait_s or not keys or ask(partial(_have, keys=keys)):
                break
        time.sleep(LONGEST_POLL_S)  # between a sign-in and the look that follows

    def _ask(self, question: Callable[[Any], T]) -> T:
        """Ask the store, unless it is known to be lost.

        Raises:
            StoreError: it is.
        """
        if self.has_lost_store:
            raise StoreError
        return ask(question)

    @property
    def has_lost_store(self) -> bool:
        """Whether the store is in a process of this host that has ended, or is stopped and would never answer."""
        return is_kept_by_rank_0() and 0 in self.homes and state_of(self.homes[0]) in _WORDS

    @property
    def _others(self) -> list[int]:
        return [rank for rank in self.homes if rank != self.rank]

    def _key(self, rank: int) -> str:
        return f"{self.name}/{rank}"


def _have(store: Any, keys: Sequence[str]) -> bool:
    return bool(store.check(list(keys)))


def introduce(groups: Groups) -> Company:
    """Let the ranks of an exchange know each other; all of them call it at the same point, over gloo.

    Raises:
        RuntimeError: from torch: a rank is gone already.
    """
    group = groups.all_that_step
    mine = torch.tensor([*_home(), secrets.randbits(62)])
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(theirs, mine, group=group)
    rows = [one.tolist() for one in theirs]
    ranks = dist.get_process_group_ranks(group)
    return Company(
        name=f"binsgdm/lost/{rows[0][-1]:x}",
        rank=dist.get_rank(),
        homes={rank: _checked(Home(*row[:-1])) for rank, row in zip(ranks, rows, strict=True)},
        wait_s=_wait_s(groups),
    )


def strangers(groups: Groups) -> Company:
    """Return the ranks of an exchange where they have not come to know each other."""
    return Company(
        name=store_key("lost", groups.all_that_step.group_name),
        rank=dist.get_rank(),
        homes={rank: Home(0, 0, 0) for rank in dist.get_process_group_ranks(groups.all_that_step)},
        wait_s=_wait_s(groups),
    )


def _wait_s(groups: Groups) -> float:
    return min(LONGEST_WAIT_S, groups.timeout.total_seconds())


def state_of(home: Home) -> str:
    """Tell of a process whether it is "running", "stopped" or "ended"; "unknown" on another host."""
    if home.host == 0 or home.host != _host():
        return "unknown"
    found = _stat(home.pid)
    if found is None or found[1] != home.start or found[0] in "ZX":
        return "ended"
    return "stopped" if found[0] in "Tt" else "running"


def _home() -> Home:
    """Return where this process lives."""
    found = _stat(os.getpid())
    return Home(_host() if found else 0, os.getpid(), found[1] if found else 0)


def _checked(home: Home) -> Home:
    """Return a home of this host only where its process can be seen, which it cannot in every container."""
    return home if state_of(home) != "ended" else Home(0, home.pid, home.start)


def _host() -> int:
    """Return a number of this boot of this host, and of its numbering of processes; 0 where there is no /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        return int.from_bytes(
            blake2b(boot + bytes(Path("/proc/self/ns/pid").readlink()), digest_size=7).digest(), "big"
        )
    except OSError:
        return 0


def _stat(pid: int) -> tuple[str, int] | None:
    """Return the state and the start of a process of this host; None if there is none."""
    try:
        # The name of the program stands in parentheses before them, and may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[19])


def _polls(limit_s: float) -> Iterable[float]:
    """Yield how much time has passed [s], after pauses that grow, until the limit has."""
    start, pause_s, waited_s = time.monotonic(), SHORTEST_POLL_S, 0.0
    while True:
        yield waited_s
        if waited_s >= limit_s:
            return
        time.sleep(pause_s)
        pause_s = min(1.5 * pause_s, LONGEST_POLL_S)
        waited_s = time.monotonic() - start


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} is" if len(ranks) == 1 else f"ranks {list(ranks)} are"


def _processes(homes: Iterable[Home]) -> str:
    numbers = [str(home.pid) for home in homes]
    return f"process {numbers[0]}" if len(numbers) == 1 else f"processes {', '.join(numbers)}"
