"""The measurement file: what reads it needs no torch, and refuses what is wrong in one sentence with file and place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simnet.calibration.measurement_file import FORMAT, read
from tests.helpers.refusals import refused

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "reference" / "files.md"
LABELS: dict[str, dict[str, Any]] = {
    "kernel merge": {"num_elements": 1024, "dtype": "uint8", "kernels": "cpu", "num_vectors": 2},
    "model optimizer": {"model": "mlp_4m", "batch": 8, "dtype": "float32", "optimizer": "adamw"},
    "model gradient_ready": {
        "model": "mlp_4m", "batch": 8, "dtype": "float32", "tensor": "0.weight", "num_elements": 5, "order": 0,
    },
    "training step": {
        "model": "mlp_4m", "batch": 8, "strategy": "all_reduce", "topology": "", "intra_node_dtype": "", "overlap": 1,
        "bucket_cap_mb": 25, "average": "", "rounding": "",
    },
    "interference backward_alone": {"model": "mlp_4m", "batch": 8, "collective": "all_reduce"},
    "optimizer_step step": {"optimizer": "adamw", "num_elements": 1024, "num_tensors": 2},
    "memory peak": {"optimizer": "adamw", "num_elements": 1024, "num_tensors": 2},
}  # fmt: skip


def example() -> dict[str, Any]:
    """Return the example of the page."""
    text = PAGE.read_text(encoding="utf-8")
    return json.loads(text.split("```json")[1].split("```")[0])


def whole() -> dict[str, Any]:
    """Return a document with every kind."""
    document = example()
    for both, labels in LABELS.items():
        kind, _, name = both.partition(" ")
        document["series"].append(
            {"kind": kind, "name": name, "setup": 0, "unit": "s", "labels": dict(labels), "values": [0.5, 1]}
        )
    return document


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Return what puts the last of `path` in the place that the others lead to; `...` takes away what is there."""
    *places, last, value = path

    def change(document: Any) -> None:
        for place in places:
            document = document[place]
        document[last] = value
        if value is ...:
            del document[last]

    return change


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    return put(*path, ...)


VALUES = ("series", 0, "values")
SERIES = ("series", 0)
LABEL = ("series", 0, "labels")
SETUP = ("setups", 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (put("what", "shopping list"), "what: 'shopping list': must be 'simnet measurements'"),
        (drop("what"), "what: None: must be"),
        (put("format", FORMAT + 1), f"format: {FORMAT + 1}: this version reads up to {FORMAT}; update simnet"),
        (put("format", 0), "format: 0: must be a number from 1 on"),
        (put("format", "1"), "format: '1': write a whole number without quotes"),
        (put("created", "yesterday"), "created: 'yesterday': must be a date in ISO 8601"),
        (drop("command"), "command: missing; add command = "),
        (put("extra", 1), "unknown key 'extra'."),
        (put("hardware", "cores", 0), "hardware.cores: 0: must be a whole number of at least 1"),
        (put("software", None), "software: None: write a table with the keys "),
        (put("setups", []), "series.0.setup: 0: there are 0 setups"),
        (put(*SETUP, "num_nodes", 0), "setups.0.num_nodes: 0: must be a whole number of at least 1"),
        (put(*SETUP, "ranks_on_machine", 5), "setups.0.ranks_on_machine: 5: there are 4 ranks"),
        (put(*SETUP, "nic_bytes_per_s", 0), "setups.0.nic_bytes_per_s: 0: must be a number above 0"),
        (put("series", []), "series: is empty"),
        (put(*SERIES, "setup", 1), "series.0.setup: 1: there are 1 setups"),
        (put(*SERIES, "kind", "collectives"), "series.0.kind: 'collectives': unknown. Did you mean 'collective'?"),
        (put(*SERIES, "unit", "ms"), "series.0.unit: 'ms': unknown. "),
        (put(*SERIES, "name", "alltoall"), "series.0.name: 'alltoall': unknown collective. Did you mean 'all"),
        (put(*SERIES, "name", ""), "series.0.name: '': unknown collective."),
        (drop(*LABEL, "num_groups"), "series.0.labels.num_groups: missing") ,
        (put(*LABEL, "group", 4), "series.0.labels.group: 4: write a name in quotes"),
        (put(*LABEL, "group", "node"), "series.0.labels.group: 'node': unknown. Did you mean 'intra_node'"),
        (put(*LABEL, "group_size", "4"), "series.0.labels.group_size: '4': write a whole number"),
        (put(*LABEL, "message_bytes", -8), "series.0.labels.message_bytes: -8: must be a whole number of at least 1"),
        (put(*LABEL, "more", [1]), "series.0.labels.more: [1]: write "),
        (put(*LABEL, "options", "bits4"), "series.0.labels.options: 'bits4': write a table of options, such as"),
        (drop("series", 1, "labels", "num_vectors"), "series.1.labels.num_vectors: missing"),
        (put(*VALUES, []), "series.0.values: is empty"),
        (put(*VALUES, 1, "fast"), "series.0.values.1: 'fast': write a number without quotes"),
        (put(*VALUES, 1, -0.5), "series.0.values.1: -0.5: must be above 0"),
        (put(*VALUES, 0, 1e-300), "series.0.values.0: 1e-300: must be above 0"),
        (put(*VALUES, 0, 1e300), "series.0.values.0: 1e+300: must be at most 1e+09 s"),
        (put(*VALUES, 0, float("nan")), "series.0.values.0: nan: must be finite"),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_refused_with_the_place(change, said, tmp_path):
    document, path = whole(), tmp_path / "m.json"
    change(document)
    path.write_text(json.dumps(document))
    with refused(start=f"{path}: {said}"):
        read(path)


@pytest.mark.slow
def test_a_file_that_was_cut_off_anywhere_is_refused(tmp_path):
    data = json.dumps(whole()).encode()
    path = tmp_path / "m.json"
    for end in range(len(data)):
        path.write_bytes(data[:end])
        with refused(start=f"{path}: not JSON: "):
            read(path)
