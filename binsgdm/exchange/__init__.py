"""What ranks send each other, who carries it, and the 1-bit all-reduce."""

from binsgdm.exchange.messages import (
    AllGather,
    AllReduce,
    AllToAll,
    Conversation,
    GroupName,
    Largest,
    Member,
    Message,
    Place,
    Shift,
    group_members,
    run_together,
)
from binsgdm.exchange.one_bit import flat, hierarchical, hierarchical_gradients, hierarchical_one_bit, slice_start

__all__ = [
    "AllGather",
    "AllReduce",
    "AllToAll",
    "Conversation",
    "GroupName",
    "Largest",
    "Member",
    "Message",
    "Place",
    "Shift",
    "flat",
    "group_members",
    "hierarchical",
    "hierarchical_gradients",
    "hierarchical_one_bit",
    "run_together",
    "slice_start",
]
