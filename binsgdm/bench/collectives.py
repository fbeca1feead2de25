"""Time the messages that strategies send: all_reduce of all ranks, and what a transport carries in every group."""

from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from binsgdm.bench.ranks import Ranks, guarded
from binsgdm.bench.record import Bench
from binsgdm.comm import AllGather, AllToAll, GroupName, Protocol
from binsgdm.comm.transport import Transport
from binsgdm.errors import BinsgdmError

MIN_BYTES, MAX_BYTES = 2**10, 2**26
DTYPES = {"uint8": torch.uint8, "float32": torch.float32}

Kind = tuple[str, GroupName, str]  # collective, group, dtype


def measure(
    bench: Bench, *, min_bytes: int = MIN_BYTES, max_bytes: int = MAX_BYTES, only: tuple[str, ...] = ()
) -> None:
    """Add every collective, group, dtype and every second power of two of bytes.

    Groups of one kind work at the same time: those of all nodes, or all rails between nodes. A message that would
    take longer than `stop_rule.max_seconds` for `stop_rule.min_repetitions` is followed by no longer one.

    Args:
        bench: where to, who takes part, at least two, and when to stop, for each.
        min_bytes: of the whole array, as nccl-tests counts it.
        max_bytes: likewise.
        only: collectives; default all.
    """
    ranks, stop_rule = bench.ranks, bench.stop_rule
    going = kinds(ranks, only)
    messages = [2**power for power in range(0, 41, 2) if min_bytes <= 2**power <= max_bytes]
    if not messages:
        raise BinsgdmError(f"--min-size {min_bytes}: no power of four from there to {max_bytes}; lower it")
    for part, message_bytes in bench.each(messages):
        calls = {kind: call(ranks, *kind, message_bytes) for kind in going}
        times = part.times({kind: function for kind, (function, _) in calls.items()})
        for (collective, group, dtype), values in times.items():
            size = group_size(ranks, group)
            bench.record.add(
                "collective", collective, values, group=group, group_size=size, dtype=dtype,
                message_bytes=calls[collective, group, dtype][1], num_groups=ranks.world_size // size,
            )  # fmt: skip
        # What takes too long at one size takes longer at the next.
        going = [kind for kind in going if median(times[kind]) * stop_rule.min_repetitions < stop_rule.max_seconds]
        if not going:
            break


def kinds(ranks: Ranks, only: tuple[str, ...] = ()) -> list[Kind]:
    """Return what there is to measure: groups of one rank send nothing."""
    if ranks.world_size < 2:
        raise BinsgdmError("collectives: needs two ranks; launch them with torchrun --nproc-per-node 2")
    groups: list[tuple[GroupName, str]] = [("world", "uint8"), ("inter_node", "uint8")]
    groups += [("intra_node", dtype) for dtype in DTYPES]
    offered: list[Kind] = [("all_reduce", "world", "float32")]
    offered += [
        (name, group, dtype)
        for name in ("all_to_all", "all_gather")
        for group, dtype in groups
        # A group of all ranks under another name is measured once.
        if group == "world" or 1 < group_size(ranks, group) < ranks.world_size
    ]
    return [kind for kind in offered if not only or kind[0] in only]


def group_size(ranks: Ranks, group: GroupName) -> int:
    """Return the ranks of each group of a kind."""
    return {"world": ranks.world_size, "intra_node": ranks.ranks_per_node, "inter_node": ranks.num_nodes}[group]


def call(
    ranks: Ranks, collective: str, group: GroupName, dtype: str, message_bytes: int
) -> tuple[Callable[[], object], int]:
    """Return a collective as a call, and the bytes of the whole array: at most `message_bytes`, divisible by ranks."""
    groups = ranks.groups
    assert groups is not None
    size, item_bytes = group_size(ranks, group), DTYPES[dtype].itemsize
    each = max(1, message_bytes // item_bytes // size)
    if collective == "all_reduce":
        values = torch.zeros(each * size, dtype=DTYPES[dtype], device=ranks.device)
        return lambda: guarded(lambda: dist.all_reduce(values, group=groups.world)), each * size * item_bytes
    transport = Transport(groups)
    sent = torch.zeros((size, each) if collective == "all_to_all" else each, dtype=DTYPES[dtype], device=ranks.device)
    message = (AllToAll if collective == "all_to_all" else AllGather)(group=group, sent=sent)

    def protocol() -> Protocol:
        return (yield message)

    return lambda: transport.run(protocol()), each * size * item_bytes


QUICK_BYTES, CARDS_BYTES = (2**10, 2**14), (MIN_BYTES, 2**28)  # the gradients of BERT-Base in bf16


def measure_cards(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add NCCL's collectives of all cards, over sizes; `seconds` for all."""
    least, most = QUICK_BYTES if quick else CARDS_BYTES
    num_sizes = len(range(least.bit_length(), most.bit_length() + 1, 2))
    measure(bench.within(seconds / num_sizes / len(kinds(bench.ranks))), min_bytes=least, max_bytes=most)
