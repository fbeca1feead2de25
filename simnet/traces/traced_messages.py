"""What collectives of a trace say of their messages, in the words of torch's profiler.

Source: torch/csrc/distributed/c10d/ParamCommsUtils.hpp and torch/csrc/profiler/util.cpp (names and order of arguments).
"""

from collections.abc import Iterable
from typing import Any

from simnet.cluster.schedule import Group
from simnet.core.bounded_types import BYTES_PER_ELEMENT, Dtype
from simnet.traces.traced_work import TracedKernel

COLLECTIVES = {
    "all_reduce": "allreduce",
    "reduce_scatter": "_reduce_scatter_base",
    "all_gather": "_allgather_base",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "send_recv": "send",
}
_DTYPES: dict[Dtype | None, str] = {"fp32": "Float", "fp16": "Half", "bf16": "BFloat16"}
MOST_RANKS = 16_384
"""Ranks of a process group up to which the header of a trace lists them."""
_LISTED_RANKS = 30


class TracedGroups:
    """The process groups of a rank, numbered as torch.distributed numbers them: all ranks first."""

    def __init__(self, kernels: Iterable[TracedKernel], rank: int, world_size: int) -> None:
        """Number the groups in the order in which they are used.

        Args:
            kernels: what ran on the rank.
            rank: its number.
            world_size: ranks of all nodes.
        """
        self._rank, self._world_size = rank, world_size
        self._numbers: dict[tuple[int, int], int] = {(world_size, 1): 0}
        self._groups: list[Group | None] = [None]
        for kernel in kernels:
            if kernel.group is not None and _shape(kernel.group) not in self._numbers:
                self._numbers[_shape(kernel.group)] = len(self._groups)
                self._groups.append(kernel.group)

    def config(self) -> list[dict[str, Any]]:
        """Return the groups for the trace's header; those of very many ranks go without a list of them."""
        return [self._described(number, group) for number, group in enumerate(self._groups)]

    def _described(self, number: int, group: Group | None) -> dict[str, Any]:
        size = group.size if group else self._world_size
        known: dict[str, Any] = {
            "pg_name": str(number),
            "pg_desc": _description(group),
            "backend_config": "cuda:nccl",
            "pg_size": size,
        }
        return known | ({"ranks": self._ranks(group, size)} if size <= MOST_RANKS else {})

    def _ranks(self, group: Group | None, number: int) -> list[int]:
        if group is None:
            return list(range(number))
        first = group.group_id(self._rank)
        return [first + group.stride * position for position in range(number)]

    def arguments(self, kernel: TracedKernel, dtype: str) -> dict[str, Any]:
        """Return what a collective says of itself; messages that hold codes count bytes.

        Args:
            kernel: a collective.
            dtype: torch's name of the numbers that are sent.
        """
        span, group = kernel.span, kernel.group
        assert group is not None
        item, size = _ITEM_BYTES[dtype], max(group.size, 1)
        whole, part = round(span.message_bytes / item), round(span.message_bytes / item / size)
        number = self._numbers[_shape(group)]
        return {
            "Collective name": COLLECTIVES[span.name],
            "In msg nelems": part if span.name == "all_gather" else whole,
            "Out msg nelems": part if span.name == "reduce_scatter" else whole,
            "Group size": group.size,
            "dtype": dtype,
            "Process Group Name": str(number),
            "Process Group Description": _description(group if number else None),
            "Process Group Ranks": _text(self._ranks(group, min(size, _LISTED_RANKS)), size),
            "Algorithm": span.algorithm,
            "Message bytes": span.message_bytes,
        }


_ITEM_BYTES = {"Byte": 1, **{name: BYTES_PER_ELEMENT[dtype] for dtype, name in _DTYPES.items() if dtype}}


def torch_dtype(dtype: Dtype | None) -> str:
    """Return torch's name of a number format; codes are bytes."""
    return _DTYPES.get(dtype, "Byte")


def _shape(group: Group) -> tuple[int, int]:
    return group.size, group.stride


def _description(group: Group | None) -> str:
    if group is None:
        return "default_pg"
    if group.nodes == 1:
        return "within a node"
    return "between nodes" if group.members_per_node == 1 else "over nodes"


def _text(ranks: list[int], size: int) -> str:
    """Return ranks as torch writes them: of a long list the first ones."""
    return f"[{', '.join(map(str, ranks))}{', ...' if size > len(ranks) else ''}]"
