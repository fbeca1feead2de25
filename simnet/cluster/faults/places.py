"""Places of a cluster as faults name them."""

from collections.abc import Sequence

from simnet.cluster.hardware import LinkId

NICS = ("nic_tx", "nic_rx")


def check_places(what: str, places: Sequence[int], number: int) -> None:
    """Refuse places that are not there, or are named twice.

    Args:
        what: what they are: "node".
        places: their numbers, from 0.
        number: how many the cluster has.

    Raises:
        ValueError: the sentence, what was given and the rule.
    """
    several = {"leaf": "leaves"}.get(what, f"{what}s")
    if len(set(places)) < len(places):
        raise ValueError(f"{several} {list(places)}: name each {what} once")
    if places and max(places) >= number:
        there = f"{several} 0 to {number - 1}" if number > 1 else f"{what} 0 alone"
        raise ValueError(f"{what} {max(places)}: the cluster has {there}")


def is_nic_of(link: LinkId, nodes: Sequence[int]) -> bool:
    """Tell whether a link is a NIC of one of these nodes, or of any where none is named."""
    return link.kind in NICS and (not nodes or link.place in nodes)
