"""How the ranks agree on the signs that all of them apply."""

from dataclasses import dataclass
from typing import Literal, get_args

from binsgdm.errors import BinsgdmError

Topology = Literal["hierarchical", "flat"]
IntraNode = Literal["fp32", "bf16", "one_bit"]
Average = Literal["updates", "gradients"]


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """How the ranks agree on the signs.

    Attributes:
        topology: average inside nodes first, or treat all ranks alike.
        intra_node_dtype: what travels inside a node (hierarchical only).
        average: what is averaged inside a node (hierarchical only).
    """

    topology: Topology = "hierarchical"
    intra_node_dtype: IntraNode = "fp32"
    average: Average = "updates"

    def __post_init__(self) -> None:
        dtype, average = self.intra_node_dtype, self.average
        given = {"topology": self.topology, "intra_node_dtype": dtype, "average": average}
        for (name, value), kind in zip(given.items(), (Topology, IntraNode, Average), strict=True):
            if value not in get_args(kind):
                known = ", ".join(map(repr, get_args(kind)))
                raise BinsgdmError(f"attach: {name}={value!r}: unknown: give one of {known}; see help(binsgdm.attach)")
        for name, value in (("intra_node_dtype", dtype), ("average", average)):
            if self.topology == "flat" and value not in ("fp32", "updates"):
                raise BinsgdmError(f"attach: {name}={value!r}: has no effect with topology='flat'; drop one of them")
        if (dtype, average) == ("one_bit", "gradients"):
            raise BinsgdmError(
                "attach: average='gradients': needs intra_node_dtype='fp32' or 'bf16'; one bit is drawn from an update"
            )


SCHEMES = (
    Scheme(),
    Scheme(intra_node_dtype="bf16"),
    Scheme(intra_node_dtype="one_bit"),
    Scheme(average="gradients"),
    Scheme(average="gradients", intra_node_dtype="bf16"),
    Scheme(topology="flat"),
)
