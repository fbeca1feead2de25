"""The measurement file: what reads it needs no torch, and refuses what is wrong in one sentence with file and place."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from simnet.calibrate.measurement_file import FORMAT, read
from simnet.commands.main import cli
from simnet.errors import SimnetError

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "reference" / "measurement-file.md"
LABELS: dict[str, dict[str, Any]] = {
    "kernel merge": {"num_elements": 1024, "dtype": "uint8", "kernels": "cpu", "num_vectors": 2},
    "model optimizer": {"model": "mlp_4m", "batch": 8, "dtype": "float32", "optimizer": "adamw"},
    "model gradient_ready": {
        "model": "mlp_4m", "batch": 8, "dtype": "float32", "tensor": "0.weight", "num_elements": 5, "order": 0,
    },
    "training step": {
        "model": "mlp_4m", "batch": 8, "strategy": "all_reduce", "topology": "", "intra_node_dtype": "", "overlap": 1,
        "bucket_cap_mb": 25,
    },
    "interference backward_alone": {"model": "mlp_4m", "batch": 8, "collective": "all_reduce"},
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


def written(folder: Path, document: object) -> Path:
    path = folder / "m.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    """Return what `read` says of a file."""
    with pytest.raises(SimnetError) as caught:
        read(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    return said.removeprefix(f"{path}: ")


def test_the_example_of_the_page_and_every_kind_are_read(tmp_path):
    found = read(written(tmp_path, whole()))
    assert found.series[0].values == (0.0259, 0.0261)
    assert found.setups[found.series[0].setup].world_size == 4
    assert [f"{series.kind} {series.name}" for series in found.series[1:]] == list(LABELS)


def put(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Return what puts the last of `path` in the place that the others lead to."""
    *places, last, value = path

    def change(document: Any) -> None:
        for place in places:
            document = document[place]
        document[last] = value

    return change


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    *places, last = path

    def change(document: Any) -> None:
        for place in places:
            document = document[place]
        del document[last]

    return change


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
        (drop("format"), "format: None: must be"),
        (put("created", "yesterday"), "created: 'yesterday': must be a date in ISO 8601"),
        (drop("command"), "command: missing; add command = "),
        (put("extra", 1), "unknown key 'extra'."),
        (put("hardware", "cores", 0), "hardware.cores: 0: must be a whole number of at least 1"),
        (put("hardware", "memory_bytes", -1), "hardware.memory_bytes: -1: must be a whole number of at least 1"),
        (put("hardware", "num_gpus", -1), "hardware.num_gpus: -1: must be a whole number of at least 0"),
        (put("software", None), "software: None: write a table with the keys "),
        (put("setups", []), "series.0.setup: 0: there are 0 setups"),
        (put(*SETUP, "num_nodes", 0), "setups.0.num_nodes: 0: must be a whole number of at least 1"),
        (put(*SETUP, "ranks_on_machine", 5), "setups.0.ranks_on_machine: 5: there are 4 ranks"),
        (put(*SETUP, "nic_bytes_per_s", 0), "setups.0.nic_bytes_per_s: 0: must be a number above 0"),
        (put("series", []), "series: is empty"),
        (put(*SERIES, "setup", 1), "series.0.setup: 1: there are 1 setups"),
        (put(*SERIES, "setup", -1), "series.0.setup: -1: there are 1 setups"),
        (put(*SERIES, "kind", "collectives"), "series.0.kind: 'collectives': unknown. Did you mean 'collective'?"),
        (put(*SERIES, "unit", "ms"), "series.0.unit: 'ms': unknown. "),
        (put(*SERIES, "name", "alltoall"), "series.0.name: 'alltoall': unknown collective. Did you mean 'all"),
        (put(*SERIES, "name", ""), "series.0.name: '': unknown collective."),
        (put("series", 1, "name", ""), "series.1.name: '': unknown kernel."),
        (drop(*LABEL, "num_groups"), "series.0.labels.num_groups: missing") ,
        (put(*LABEL, "group", 4), "series.0.labels.group: 4: write a name in quotes"),
        (put(*LABEL, "group", "node"), "series.0.labels.group: 'node': unknown. Did you mean 'intra_node'"),
        (put(*LABEL, "group_size", "4"), "series.0.labels.group_size: '4': write a whole number"),
        (put(*LABEL, "group_size", 4.5), "series.0.labels.group_size: 4.5: write a whole number"),
        (put(*LABEL, "message_bytes", -8), "series.0.labels.message_bytes: -8: must be a whole number of at least 1"),
        (put(*LABEL, "more", [1]), "series.0.labels.more: [1]: write "),
        (put(*LABEL, "group_size", True), "series.0.labels.group_size: True: write "),
        (put(*LABEL, "options", "bits4"), "series.0.labels.options: 'bits4': write a table of options, such as"),
        (put(*LABEL, "options", 4), "series.0.labels.options: 4: write a table of options, such as"),
        (drop("series", 1, "labels", "num_vectors"), "series.1.labels.num_vectors: missing"),
        (put("series", 4, "labels", "bucket_cap_mb", "25"), "series.4.labels.bucket_cap_mb: '25': write a number"),
        (put(*VALUES, []), "series.0.values: is empty"),
        (put(*VALUES, 3.0), "series.0.values: 3.0: write a list in brackets"),
        (put(*VALUES, 1, "fast"), "series.0.values.1: 'fast': write a number without quotes"),
        (put(*VALUES, 1, None), "series.0.values.1: None: write a number without quotes"),
        (put(*VALUES, 1, -0.5), "series.0.values.1: -0.5: must be above 0"),
        (put(*VALUES, 0, 0.0), "series.0.values.0: 0.0: must be above 0"),
        (put(*VALUES, 0, 1e-300), "series.0.values.0: 1e-300: must be above 0"),
        (put(*VALUES, 0, 1e300), "series.0.values.0: 1e+300: must be at most 1e+09 s"),
        (put(*VALUES, 0, float("nan")), "series.0.values.0: nan: must be finite"),
        (put(*VALUES, 0, float("inf")), "series.0.values.0: inf: must be finite"),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_refused_with_the_place(change, said, tmp_path):
    document = whole()
    change(document)
    assert refusal(written(tmp_path, document)).startswith(said)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON: Expecting value"),
        (b"[]", "[]: write a table with the keys what, format"),
        (b"\x1f\x8b\x08", "not JSON: not UTF-8 text (byte 1)"),
        (b'{"what": "\xff"}', "not JSON: not UTF-8 text (byte 10)"),
        (b'{"other": ' + b"[" * 100_000, "nested deeper than 50 levels"),
        (json.dumps(example()).replace("0.0259", "1e999").encode(), "series.0.values.0: inf: must be finite"),
        (json.dumps(example()).encode() + b"}", "not JSON: Extra data"),
    ],
)
def test_bytes_that_are_no_measurement_file_are_refused(data, said, tmp_path):
    path = tmp_path / "m.json"
    path.write_bytes(data)
    assert refusal(path).startswith(said)


def test_a_file_that_was_cut_off_anywhere_is_refused(tmp_path):
    data = json.dumps(whole()).encode()
    path = tmp_path / "m.json"
    for end in range(len(data)):
        path.write_bytes(data[:end])
        assert refusal(path).startswith("not JSON: "), end


def test_a_place_that_holds_no_file_is_refused(tmp_path):
    assert "Is a directory" in refusal(tmp_path)
    assert "No such file" in refusal(tmp_path / "none.json")
    assert "null byte" in refusal(Path("m\0.json"))


def test_labels_of_former_versions_are_read_as_the_present_ones(tmp_path):
    text = json.dumps(whole())
    assert '"num_groups"' in text
    assert '"intra_node_dtype"' in text
    (tmp_path / "new.json").write_text(text)
    (tmp_path / "old.json").write_text(text.replace("num_groups", "lanes").replace("intra_node_dtype", "intra"))
    assert read(tmp_path / "old.json") == read(tmp_path / "new.json")


@given(place=st.integers(0, len(json.dumps(whole())) - 1), byte=st.integers(0, 255))
def test_a_file_with_one_other_byte_is_read_or_refused(place, byte, tmp_path_factory):
    data = bytearray(json.dumps(whole()).encode())
    data[place] = byte
    path = tmp_path_factory.getbasetemp() / "flipped.json"
    path.write_bytes(data)
    with suppress(SimnetError):
        read(path)


class TestWriting:
    @pytest.fixture(autouse=True)
    def _needs_torch(self) -> None:
        pytest.importorskip("torch")

    def test_what_is_recorded_is_what_is_read(self, tmp_path):
        found = read(record().path(tmp_path))
        assert found.format == FORMAT
        assert found.series[0].values == (1.0, 2.0)
        assert found.setups[0].nic_bytes_per_s == 125e6
        assert found.setups[0].world_size == 1
        assert found.hardware.cores >= 1
        assert found.software.torch

    @pytest.mark.parametrize("mode", [0o600, 0o640])
    def test_a_file_that_is_replaced_keeps_its_mode(self, mode, tmp_path):
        path = tmp_path / "m.json"
        path.write_text("old", encoding="utf-8")
        path.chmod(mode)
        record().path(tmp_path)
        assert path.read_text(encoding="utf-8") != "old"
        assert path.stat().st_mode & 0o777 == mode

    def test_a_failed_write_leaves_the_old_file_and_nothing_else(self, tmp_path, monkeypatch):
        from binsgdm.errors import BinsgdmError
        from binsgdm.measure import record as recording

        path = tmp_path / "m.json"
        path.write_text("old", encoding="utf-8")

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(recording.os, "fsync", full)
        with pytest.raises(BinsgdmError, match=r"m\.json: cannot be written \(No space left on device\)"):
            recording.write_whole(path, "new")
        assert path.read_text(encoding="utf-8") == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_writer_that_is_killed_leaves_a_whole_file(self, tmp_path):
        path = tmp_path / "m.json"
        code = (
            "import sys, json; from pathlib import Path; from binsgdm.measure.record import write_whole\n"
            "text = json.dumps(list(range(300_000)))\n"
            "while True: write_whole(Path(sys.argv[1]), text); print(flush=True)\n"
        )
        with subprocess.Popen([sys.executable, "-c", code, str(path)], cwd=ROOT, stdout=subprocess.PIPE) as writer:
            for _ in range(4):
                assert writer.stdout is not None
                writer.stdout.readline()
            writer.kill()
        assert len(json.loads(path.read_text(encoding="utf-8"))) == 300_000

    def test_an_empty_record_is_refused(self, tmp_path):
        from binsgdm.errors import BinsgdmError

        with pytest.raises(BinsgdmError, match="nothing was measured"):
            record(empty=True).path(tmp_path)


class record:  # noqa: N801 - reads as a function
    """A record of one process with one series."""

    def __init__(self, *, empty: bool = False) -> None:
        from binsgdm.measure import ranks
        from binsgdm.measure.record import Record

        with ranks.joined() as alone:
            self._record = Record(alone, nic_bytes_per_s=125e6, network="none")
        if not empty:
            self._record.add("kernel", "copy", [1.0, 2.0], num_elements=8, dtype="float32", kernels="torch")

    def path(self, folder: Path) -> Path:
        path = folder / "m.json"
        self._record.write(path)
        return path


class TestTiming:
    """Needs torch, as all that measures; no clock is looked at."""

    @pytest.fixture(autouse=True)
    def _needs_torch(self) -> None:
        pytest.importorskip("torch")

    @pytest.mark.parametrize(
        ("count", "low", "high"), [(6, 1, 6), (8, 1, 8), (9, 2, 8), (20, 6, 15), (25, 8, 18), (100, 40, 61)]
    )
    def test_the_interval_of_the_median_is_that_of_the_tables_of_order_statistics(self, count, low, high):
        from binsgdm.measure.timing import interval_of_median

        assert interval_of_median([float(n) for n in range(1, count + 1)]) == (low, high)

    def test_few_samples_have_no_interval(self):
        from binsgdm.measure.timing import relative_error

        assert relative_error([1.0] * 5) == float("inf")
        assert relative_error([1.0] * 6) == 0

    def test_a_steady_thing_stops_at_the_least_repetitions_and_an_unsteady_one_at_the_most(self):
        import torch

        from binsgdm.measure.timing import StopRule, interleave

        taken: list[str] = []

        class Alone:
            device = torch.device("cpu")

            def barrier(self) -> None:
                pass

            def slowest(self, seconds):
                return list(seconds)

        def trial(name, times):
            def once():
                taken.append(name)
                return [times[len(taken) % len(times)], 7.0]

            return once

        trials = {"steady": trial("steady", [1e-6]), "unsteady": trial("unsteady", [1e-6, 5e-6, 25e-6])}
        stop_rule = StopRule(relative_error=0.01, min_repetitions=8, max_repetitions=30, max_seconds=1.0)
        found = interleave(trials, stop_rule, Alone())
        assert 8 <= len(found["steady"]) < 14
        assert len(found["unsteady"]) == 30
        assert all(row[1] == 7.0 for rows in found.values() for row in rows)
        assert taken[:20] != sorted(taken[:20])


class TestCommand:
    @pytest.fixture(autouse=True)
    def _needs_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("torch")
        monkeypatch.delenv("RANK", raising=False)

    def run(self, *args: object):
        return CliRunner().invoke(cli, ["measure", *map(str, args)], prog_name="simnet")

    @pytest.mark.parametrize("name", ["kernels", "model", "collectives", "training", "interference"])
    def test_every_command_has_help_with_an_example(self, name):
        result = self.run(name, "--help")
        assert result.exit_code == 0
        assert "Example:\n" in result.stdout
        assert "-o, --output" in result.stdout

    def test_kernels_are_measured_into_a_file(self, tmp_path):
        path = tmp_path / "k.json"
        result = self.run("kernels", "--max-size", 2048, "--max-repetitions", 8, "-o", path)
        assert result.exit_code == 0, result.output
        found = read(path)
        named = {series.name for series in found.series}
        assert {"update_", "update_quantize_pack_", "quantize_pack", "merge", "mean_", "unpack_apply_"} <= named
        assert {"adamw", "copy", "gather", "cast_fp32_bf16", "cast_bf16_fp32"} <= named
        assert {series.labels["num_elements"] for series in found.series if series.name == "copy"} == {1024, 2048}
        assert all(len(series.values) >= 8 for series in found.series)
        assert f"wrote {path}: {len(found.series)} series" in result.stderr
        assert "update_quantize_pack_ num_elements=2048" in result.stdout

    def test_a_model_has_every_gradient_in_the_order_of_backward(self, tmp_path):
        path = tmp_path / "m.json"
        result = self.run("model", "--model", "mlp_200k", "--max-repetitions", 8, "-o", path)
        assert result.exit_code == 0, result.output
        found = read(path)
        ready = [series.labels for series in found.series if series.name == "gradient_ready"]
        assert [labels["order"] for labels in ready] == list(range(8))
        assert sum(int(labels["num_elements"]) for labels in ready) == 199_946
        assert {labels["shape"] for labels in ready} == {"10x256", "10", "256x256", "256"}
        assert str(ready[0]["tensor"]).startswith("6.")
        assert str(ready[-1]["tensor"]).startswith("0.")
        optimizers = {series.labels["optimizer"] for series in found.series if series.name == "optimizer"}
        assert optimizers == {"adamw", "binsgdm"}

    def test_a_model_of_the_users_own_is_found_where_he_stands(self, tmp_path, monkeypatch):
        (tmp_path / "my_model_for_a_test.py").write_text(
            "import torch\ndef tiny(batch):\n"
            "    return torch.nn.Linear(4, 2), torch.randn(batch, 4), lambda output: output.square().mean()\n"
            "def wrong(batch):\n    return torch.nn.Linear(4, 2)\n",
            encoding="utf-8",
        )
        monkeypatch.chdir(tmp_path)
        done = self.run("training", "--model", "my_model_for_a_test:tiny", "--max-repetitions", 8)
        assert done.exit_code == 0, done.output
        assert {series.name for series in read(tmp_path / "measurements.json").series} == {
            "step", "forward", "backward", "optimizer",
        }  # fmt: skip
        wrong = self.run("training", "--model", "my_model_for_a_test:wrong", "-o", "other.json")
        assert (wrong.exit_code, wrong.stdout) == (2, "")
        assert wrong.stderr.startswith("simnet: --model my_model_for_a_test:wrong: returned Linear: must return")
        assert not (tmp_path / "other.json").exists()

    @pytest.mark.parametrize(
        ("args", "said"),
        [
            (["kernels", "--min-size", "0"], "'0': write a whole number above 0, at most 2^39, such as 65536"),
            (["kernels", "--max-size", "2^39"], "--max-size 549755813888: needs"),
            (["kernels", "--max-size", "512"], "--min-size 1024: no power of two from there to 512"),
            (["kernels", "--kernels", "triton"], "kernels: 'triton': "),
            (["model", "--model", "mlp_4"], "--model 'mlp_4': unknown; write module:function, or one of mlp_4m"),
            (["model", "--model", "no.such:thing"], "--model 'no.such:thing': cannot be imported"),
            (["collectives"], "collectives: needs two ranks; launch them with torchrun --nproc-per-node 2"),
            (["interference"], "interference: needs two ranks; launch them with torchrun --nproc-per-node 2"),
            (["training", "--strategy", "all_reduce:bf16"], "'all_reduce:bf16': unknown: give"),
            (["training", "--strategy", "qsgd"], "--strategy qsgd: needs two ranks; launch them"),
            (["training", "--strategy", "qsgd:bits=9"], "--strategy 'qsgd:bits=9': qsgd: bits: 9: must be"),
            (["kernels", "--system", "no"], "--system 'no': unknown: give one of"),
            (["training", "--ranks-per-node", "2"], "--ranks-per-node 2: needs several processes; launch them"),
            (["model", "-o", "none/m.json"], "none/m.json: 'none': no such directory"),
            (["model", "-o", "."], ".: is a directory"),
            (["model", "--relative-error", "2"], "Invalid value for '--relative-error'"),
            (["nothing"], "No such command 'nothing'"),
        ],
    )  # fmt: skip
    def test_a_mistake_is_one_line_and_exit_code_2(self, args, said, tmp_path, monkeypatch):
        monkeypatch.setenv("TRITON_INTERPRET", "0")
        monkeypatch.chdir(tmp_path)
        result = self.run(*args)
        assert result.exit_code == 2, result.output
        assert said in result.stderr
        assert result.stderr.startswith("simnet: ")
        assert result.stderr.count("\n") == 1
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_is_there_is_replaced_only_by_force(self, tmp_path):
        path = tmp_path / "m.json"
        path.write_text("old", encoding="utf-8")
        args = ("model", "--model", "mlp_200k", "--max-repetitions", 8, "-o", path)
        refused = self.run(*args)
        assert refused.exit_code == 2
        assert f"{path}: exists; add --force to replace it" in refused.stderr
        assert path.read_text(encoding="utf-8") == "old"
        assert self.run(*args, "--force").exit_code == 0
        assert read(path).series

    def test_an_interrupt_leaves_no_file_and_exits_130(self, tmp_path, monkeypatch):
        from binsgdm.measure import bench

        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(bench, "interleave", interrupted)
        path = tmp_path / "m.json"
        result = self.run("model", "--model", "mlp_200k", "-o", path)
        assert (result.exit_code, result.stderr) == (130, "simnet: interrupted; nothing was written\n")
        assert not path.exists()
