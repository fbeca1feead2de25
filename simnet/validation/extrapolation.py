"""How far a predicted row may be off since it lies beyond the numbers of nodes that its calibration was fitted on."""

from dataclasses import replace
from functools import partial

from simnet.validation.published_rows import PublishedRow
from simnet.validation.study import Study


def with_range(study: Study) -> Study:
    """Return a study whose rows beyond the fitted numbers of nodes have the range that a calibration gives them."""
    return replace(study, known_range=partial(known_range, study))


def known_range(study: Study, row: PublishedRow) -> tuple[float, float]:
    """Return the factors between which the value of a row lies, at 90 %, for the growing intervals of the network.

    Args:
        study: its fitted calibration has `by_nodes`, of its own, of its libraries, or both.
        row: one of its rows.
    """
    return study.calibrated_range(row, is_wanted=_is_of_bandwidth)


def _is_of_bandwidth(key: str) -> bool:
    """Tell whether the key of an interval is of the bandwidth between nodes, plain or of a library."""
    return key.startswith(("inter_node.", "libraries.")) and key.endswith(".efficiency")
