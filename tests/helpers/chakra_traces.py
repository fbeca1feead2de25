"""Small Chakra traces: golden files, and nodes put together here."""

from pathlib import Path
from typing import Any

from simnet.traces import chakra_file
from simnet.traces.chakra_file import ChakraNode, ChakraTrace

GOLDEN = Path(__file__).parents[1] / "golden" / "chakra"
ALL_REDUCE, GATHER = 0, 3


def compute(key: int, *deps: int, micros: int = 10, name: str = "fwd", **attributes: Any) -> ChakraNode:
    return ChakraNode(
        id=key, name=name, type="COMP_NODE", data_deps=deps, duration_micros=micros, attributes=attributes
    )


def collective(key: int, *deps: int, comm_type: int = ALL_REDUCE, comm_size: int = 4096, **more: Any) -> ChakraNode:
    attributes = {"comm_type": comm_type, "comm_size": comm_size, **more}
    return ChakraNode(id=key, name="coll", type="COMM_COLL_NODE", data_deps=deps, attributes=attributes)


def trace(*nodes: ChakraNode, version: str = "0.0.4", **attributes: Any) -> ChakraTrace:
    return ChakraTrace(nodes=nodes, version=version, attributes=attributes)


def write(path: Path, *nodes: ChakraNode, **more: Any) -> Path:
    path.write_bytes(chakra_file.encode(trace(*nodes, **more)))
    return path
