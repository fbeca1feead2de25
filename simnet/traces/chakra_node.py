"""The nouns of a Chakra execution trace, whatever its form: nodes, attributes, types, versions.

Source: MLCommons Chakra, schema/protobuf/et_def.proto, and the attributes that its converters and feeder use.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from simnet.core.errors import SimnetError, shown

Plain = float | bool | str | bytes
AttributeValue = Plain | tuple[Plain, ...]
Attributes = Mapping[str, AttributeValue]

NODE_TYPES = (
    "INVALID_NODE", "METADATA_NODE", "MEM_LOAD_NODE", "MEM_STORE_NODE", "COMP_NODE", "COMM_SEND_NODE",
    "COMM_RECV_NODE", "COMM_COLL_NODE", "STORAGE_NODE", "BATCH_NODE", "CHECKPOINT_NODE",
)  # fmt: skip
"""By their number in the schema."""
COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter_block", "barrier",
)  # fmt: skip
"""CollectiveCommType by its number in the schema, in simnet's words."""
VERSIONS = ("0.0.4", "1.0.0")
"""Of the schema: both have the same messages. Earlier ones had other fields, and no metadata in front."""
LAYOUT_ATTRIBUTE = "simnet_layout"
"""Attribute of a trace in which simnet's export keeps what Chakra has no field for: groups, streams, steps."""
REPAIR = "make the trace again"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChakraNode:
    """A node of an execution trace.

    Attributes:
        id: unique in its trace.
        name: for people.
        type: one of `NODE_TYPES`.
        ctrl_deps: what called it.
        data_deps: what must have ended.
        start_time_micros: when it started [us].
        duration_micros: how long it took [us].
        input_values: its inputs as text.
        attributes: by name.
    """

    id: int
    name: str = ""
    type: str = NODE_TYPES[0]
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_time_micros: int = 0
    duration_micros: int = 0
    input_values: str = ""
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ChakraTrace:
    """The execution trace of one rank.

    Attributes:
        nodes: in the order of the file.
        version: of the schema; "" where the trace does not say it.
        attributes: of the trace, by name.
    """

    nodes: tuple[ChakraNode, ...]
    version: str = ""
    attributes: Attributes = field(default_factory=dict)


def check_version(trace: ChakraTrace, where: str) -> None:
    """Check that a trace is of a version of the schema that is read.

    Raises:
        SimnetError: it is not.
    """
    schema = str(trace.attributes.get("schema", ""))
    given = trace.version or schema.partition("chakra.")[2]
    if (given or schema) and given not in VERSIONS:
        raise SimnetError(
            f"{where}: version: {shown(given or schema)}: read are Chakra's schemas {' and '.join(VERSIONS)}; "
            "make the trace with a converter of one of these"
        )


def check_nodes(trace: ChakraTrace, where: str) -> None:
    """Check that the numbers of nodes are unique, and that there are some.

    Raises:
        SimnetError: they are not.
    """
    if not trace.nodes:
        raise SimnetError(f"{where}: has no node; {REPAIR}")
    seen: set[int] = set()
    for node in trace.nodes:
        if node.id in seen:
            raise SimnetError(f"{where}: node {node.id}: comes twice; {REPAIR}")
        seen.add(node.id)


def node_type(number: int, where: str) -> str:
    """Return a type of node by its number in the schema.

    Raises:
        SimnetError: there is none.
    """
    if not 0 <= number < len(NODE_TYPES):
        raise SimnetError(f"{where}: type: {number}: Chakra has types 0 to {len(NODE_TYPES) - 1}; {REPAIR}")
    return NODE_TYPES[number]
