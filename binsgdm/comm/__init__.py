"""What ranks send each other, who carries it, and the 1-bit all-reduce."""

from binsgdm.comm.messages import (
    AllGather,
    AllReduceMax,
    AllReduceSum,
    AllToAll,
    GroupName,
    Member,
    Message,
    Protocol,
    RankContext,
    SendRecv,
    group_members,
    refusal,
    run_in_lockstep,
    without_messages,
)
from binsgdm.comm.one_bit import flat, hierarchical, hierarchical_one_bit, piece_start, slice_start

__all__ = [
    "AllGather",
    "AllReduceMax",
    "AllReduceSum",
    "AllToAll",
    "GroupName",
    "Member",
    "Message",
    "Protocol",
    "RankContext",
    "SendRecv",
    "flat",
    "group_members",
    "hierarchical",
    "hierarchical_one_bit",
    "piece_start",
    "refusal",
    "run_in_lockstep",
    "slice_start",
    "without_messages",
]
