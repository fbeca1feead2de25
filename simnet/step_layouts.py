"""A recorded step on other numbers of nodes and ranks than those that it was recorded on."""

from simnet.errors import SimnetError
from simnet.step_file import RecordedLayout, StepFile


def at_layout(step: StepFile, num_nodes: int, ranks_per_node: int, where: str) -> RecordedLayout:
    """Return what rank 0 does on a number of nodes and ranks.

    Args:
        step: the recordings.
        num_nodes: wanted nodes.
        ranks_per_node: wanted ranks of each.
        where: how messages call the file.

    Raises:
        SimnetError: the recordings do not tell.
    """
    for layout in step.recordings:
        if (layout.num_nodes, layout.ranks_per_node) == (num_nodes, ranks_per_node):
            return layout
    known = ", ".join(layout.text for layout in step.recordings)
    raise SimnetError(f"{where}: {num_nodes} x {ranks_per_node} ranks: recorded on {known}; record this layout, too")
