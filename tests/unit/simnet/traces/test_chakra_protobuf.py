"""Chakra's files are read as Chakra's own classes wrote them, and written as these read them."""

import math

import pytest

from simnet.core import protobuf
from simnet.core.errors import SimnetError
from simnet.traces import chakra_json, chakra_protobuf
from tests.helpers import chakra_traces
from tests.helpers.chakra_traces import GOLDEN

FILES = sorted(path.name for path in GOLDEN.glob("*.et"))


def read(name: str):
    return chakra_protobuf.parse((GOLDEN / name).read_bytes(), name)


def test_attributes_of_every_type_are_read() -> None:
    (node,) = read("all_types.0.et").nodes
    found = node.attributes
    assert (node.id, node.name, node.type) == (0, "METADATA_NODE", "METADATA_NODE")
    assert len(found) == 30
    assert (found["double"], found["double_list"]) == (1.2345, (1.2345, 2.3456))
    assert math.isclose(found["float"], 1.2345, rel_tol=1e-7)
    assert all(found[f"{kind}32"] == 12345 for kind in ("int", "uint", "fixed"))
    assert all(found[f"{kind}64"] == 9876543210 for kind in ("int", "uint", "fixed"))
    assert all(found[f"{kind}32"] == -12345 for kind in ("sint", "sfixed"))
    assert all(found[f"{kind}64_list"] == (9876543210, -1234567890) for kind in ("sint", "sfixed"))
    assert found["bool_list"] == (True, False) * 5
    assert (found["string"], found["string_list"][9], found["bytes"]) == ("12345", "12354", b"12345")


@pytest.mark.parametrize("name", ["all_types.0", "data_parallel.0", "pytorch.0", "exported.5"])
def test_a_trace_is_the_same_as_chakras_own_program_prints_it(name: str) -> None:
    where = f"{name}.json"
    printed = chakra_json.parse(chakra_json.objects((GOLDEN / where).read_bytes(), where), where)
    ours = read(f"{name}.et")
    assert (printed.version, printed.attributes, len(printed.nodes)) == (ours.version, ours.attributes, len(ours.nodes))
    for found, expected in zip(printed.nodes, ours.nodes, strict=True):
        for key, value in expected.attributes.items():
            same = found.attributes[key]
            assert same == pytest.approx(value, rel=1e-7) if isinstance(value, float) else True, key
        plain = ("id", "name", "type", "ctrl_deps", "data_deps", "start_time_micros", "duration_micros", "input_values")
        assert [getattr(found, key) for key in plain] == [getattr(expected, key) for key in plain]


def test_a_trace_that_is_written_is_read_back() -> None:
    nodes = (
        chakra_traces.compute(3, 1, 2, stream=0, part="forward", seconds=1e-7, is_cpu_op=False, tensor_size=2**40),
        chakra_traces.collective(2**63, 3, pg_name="1", group=0, message_bytes=1.5),
    )
    trace = chakra_traces.trace(*nodes, simnet_layout="{}")
    assert chakra_protobuf.parse(chakra_protobuf.encode(trace), "t") == trace


def test_a_file_that_is_cut_anywhere_is_refused_or_ends_with_a_whole_node() -> None:
    data = (GOLDEN / "pytorch.0.et").read_bytes()
    ends = {start for start, _ in protobuf.delimited(data)} | {0}
    refused = 0
    for end in range(1, len(data)):
        if end in ends:
            continue
        with pytest.raises(SimnetError, match=r"cut short or damaged at byte|no Chakra execution trace"):
            chakra_protobuf.parse(data[:end], "t")
        refused += 1
    assert refused > 1000


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
    with pytest.raises(SimnetError, match=rule):
        chakra_protobuf.parse(data, "t")
