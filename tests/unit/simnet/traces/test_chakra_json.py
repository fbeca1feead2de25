"""Chakra's traces in JSON: both forms are read, others are refused."""

import json

import pytest

from simnet.core.errors import SimnetError
from simnet.traces import chakra_json
from simnet.traces.chakra_node import ChakraTrace
from tests.helpers.chakra_traces import GOLDEN


def read(text: str) -> ChakraTrace:
    return chakra_json.parse(chakra_json.objects(text.encode(), "t"), "t")


def test_the_graph_of_the_feeder_is_read() -> None:
    graph = [
        {"Id": 0, "Name": "mm", "NodeType": 4, "is_cpu_op": False, "runtime": 5, "data_deps": []},
        {"Id": 1, "Name": "ar", "NodeType": 7, "is_cpu_op": False, "data_deps": [0], "comm_type": 0, "comm_size": 64},
    ]
    compute, sent = read(json.dumps({"workload_graph": graph})).nodes
    assert (compute.type, compute.duration_micros, compute.attributes) == ("COMP_NODE", 5, {"is_cpu_op": False})
    assert (sent.type, sent.data_deps, sent.attributes["comm_size"]) == ("COMM_COLL_NODE", (0,), 64)


def test_whole_numbers_are_text_in_protobufs_mapping() -> None:
    node = '{"id": "7", "type": "COMM_COLL_NODE", "dataDeps": ["3"], "attr": [{"name": "s", "uint64Val": "65536"}]}'
    (found,) = read('{"version": "0.0.4"}\n' + node).nodes
    assert (found.id, found.data_deps, found.attributes) == (7, (3,), {"s": 65536})


def test_json_is_told_from_protobuf() -> None:
    assert all(chakra_json.looks_like(path.read_bytes()) for path in GOLDEN.glob("*.json"))
    assert not any(chakra_json.looks_like(path.read_bytes()) for path in GOLDEN.glob("*.et"))
    assert not chakra_json.looks_like(b"{" + b"\n\x05" + b"a" * 122)  # a GlobalMetadata of 123 bytes begins so


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
    with pytest.raises(SimnetError) as caught:
        read(text)
    assert rule in str(caught.value)
