"""Nodes on one Linux machine: network namespaces behind a switch, with NICs of a set bandwidth.

The names here are what a script needs that runs programs in a lab.
"""

from evidence.lab.lab import Lab
from evidence.lab.plan import LabSpec
from simnet.core.units import Bandwidth

__all__ = ["Bandwidth", "Lab", "LabSpec"]
