"""Chakra's files are read as Chakra's own classes wrote them, in both forms, and written as these read them."""

import json
import math

import pytest

from simnet.core import protobuf
from simnet.traces import chakra_file
from simnet.traces.chakra_file import ChakraTrace
from tests.helpers import chakra_traces
from tests.helpers.chakra_traces import GOLDEN
from tests.helpers.refusals import refused


def read(name: str):
    return chakra_file.parse_protobuf((GOLDEN / name).read_bytes(), name)


def test_attributes_of_every_type_are_read() -> None:
    (node,) = read("all_types.0.et").nodes
    attributes = node.attributes
    assert (node.id, node.name, node.type) == (0, "METADATA_NODE", "METADATA_NODE")
    assert len(attributes) == 30
    assert (attributes["double"], attributes["double_list"]) == (1.2345, (1.2345, 2.3456))
    assert math.isclose(attributes["float"], 1.2345, rel_tol=1e-7)
    assert all(attributes[f"{kind}32"] == 12345 for kind in ("int", "uint", "fixed"))
    assert all(attributes[f"{kind}64"] == 9876543210 for kind in ("int", "uint", "fixed"))
    assert all(attributes[f"{kind}32"] == -12345 for kind in ("sint", "sfixed"))
    assert all(attributes[f"{kind}64_list"] == (9876543210, -1234567890) for kind in ("sint", "sfixed"))
    assert attributes["bool_list"] == (True, False) * 5
    assert (attributes["string"], attributes["string_list"][9], attributes["bytes"]) == ("12345", "12354", b"12345")


@pytest.mark.parametrize("name", ["all_types.0", "data_parallel.0", "pytorch.0", "exported.5"])
def test_a_trace_is_the_same_as_chakras_own_program_prints_it(name: str) -> None:
    where = f"{name}.json"
    printed = chakra_file.parse_json(chakra_file.json_objects((GOLDEN / where).read_bytes(), where), where)
    ours = read(f"{name}.et")
    assert (printed.version, printed.attributes, len(printed.nodes)) == (ours.version, ours.attributes, len(ours.nodes))
    for node, expected in zip(printed.nodes, ours.nodes, strict=True):
        for key, value in expected.attributes.items():
            same = node.attributes[key]
            assert same == pytest.approx(value, rel=1e-7) if isinstance(value, float) else True, key
        plain = ("id", "name", "type", "ctrl_deps", "data_deps", "start_time_micros", "duration_micros", "input_values")
        assert [getattr(node, key) for key in plain] == [getattr(expected, key) for key in plain]


def test_a_trace_that_is_written_is_read_back() -> None:
    nodes = (
        chakra_traces.compute(3, 1, 2, stream=0, part="forward", seconds=1e-7, is_cpu_op=False, tensor_size=2**40),
        chakra_traces.collective(2**63, 3, pg_name="1", group=0, message_bytes=1.5),
    )
    trace = chakra_traces.trace(*nodes, simnet_layout="{}")
    assert chakra_file.parse_protobuf(chakra_file.encode(trace), "t") == trace


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"\x80" * 30, "no Chakra execution trace"),
        (b"PK\x03\x04" + b"\0" * 200, "no Chakra execution trace"),
        (protobuf.behind_length(protobuf.encoded(1, 7)), "no Chakra execution trace: does not begin with its GlobalM"),
        (b"\0" + b"\xff" * 9 + b"\x7f", "damaged at byte 1"),
        (b"\0" + protobuf.behind_length(protobuf.encoded(1, b"id")), "damaged at byte 1"),
        (b"\0" + protobuf.behind_length(protobuf.encoded(3, 11)), "type: 11: Chakra has types 0 to 10"),
    ],
    ids=["varints", "zip", "node first", "huge length", "text as id", "type"],
)
def test_what_is_no_trace_is_refused(data: bytes, rule: str) -> None:
    with refused(rule):
        chakra_file.parse_protobuf(data, "t")


def read_json(text: str) -> ChakraTrace:
    return chakra_file.parse_json(chakra_file.json_objects(text.encode(), "t"), "t")


def test_the_graph_of_the_feeder_is_read() -> None:
    graph = [
        {"Id": 0, "Name": "mm", "NodeType": 4, "is_cpu_op": False, "runtime": 5, "data_deps": []},
        {"Id": 1, "Name": "ar", "NodeType": 7, "is_cpu_op": False, "data_deps": [0], "comm_type": 0, "comm_size": 64},
    ]
    compute, sent = read_json(json.dumps({"workload_graph": graph})).nodes
    assert (compute.type, compute.duration_micros, compute.attributes) == ("COMP_NODE", 5, {"is_cpu_op": False})
    assert (sent.type, sent.data_deps, sent.attributes["comm_size"]) == ("COMM_COLL_NODE", (0,), 64)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("{", "not JSON"),
        ('{"version": "0.0.4"} [1]', "list: must hold objects"),
        ('{"traceEvents": []}', "does not begin with its GlobalMetadata"),
        ('{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "a host trace of torch's ExecutionTraceObserver"),
        ('{"version": "0.0.4"} {"id": "x"}', "object 1: id: 'x': must be a whole number"),
        ('{"version": "0.0.4"} {"id": -1}', "must be a whole number from 0"),
        ('{"version": "0.0.4"} {"type": "COMP"}', "type: 'COMP': must be one of INVALID_NODE"),
        ('{"version": "0.0.4"} {"dataDeps": 5}', "dataDeps: 5: must be a list"),
        ('{"version": "0.0.4"} {"attr": {}}', "attr: {}: must be a list"),
        ('{"version": "0.0.4"} {"attr": [{"name": "a", "int64Val": "x"}]}', "a: 'x': must be a whole number"),
        ('{"version": "0.0.4"} {"attr": [{"name": "a", "int64List": 1}]}', "a: 1: must be an object with values"),
        ('{"version": "0.0.4"} {"attr": [{"name": "a", "int64Val": null}]}', "a: None: must be a number"),
        ('{"workload_graph": [5]}', "0: 5: must be an object with Id"),
        ('{"workload_graph": [{"Id": 1, "NodeType": "x"}]}', "type: 'x'"),
    ],
)
def test_other_json_is_refused(text: str, rule: str) -> None:
    with refused(rule):
        read_json(text)
