"""`simnet measure`: what is measured into a file, and mistakes in one line."""

import pytest
from click.testing import Result

from simnet.calibration.measurement_file import read
from tests.helpers.cli import assert_refused, run
from tests.helpers.needs import needs

needs("torch")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)


def measure(*args: object) -> Result:
    return run("measure", *args)


def test_kernels_are_measured_into_a_file(tmp_path):
    path = tmp_path / "k.json"
    result = measure("kernels", "--max-size", 2048, "--max-repetitions", 8, "-o", path)
    assert result.exit_code == 0, result.output
    found = read(path)
    named = {series.name for series in found.series}
    assert {"update_", "update_quantize_pack_", "quantize_pack", "merge", "mean_", "unpack_apply_"} <= named
    assert {"adamw", "copy", "gather", "cast_fp32_bf16", "cast_bf16_fp32"} <= named
    assert {series.labels["num_elements"] for series in found.series if series.name == "copy"} == {1024, 2048}
    assert all(len(series.values) >= 8 for series in found.series)
    assert f"wrote {path}: {len(found.series)} series" in result.stderr
    assert "update_quantize_pack_ num_elements=2048" in result.stdout


def test_a_model_has_every_gradient_in_the_order_of_backward(tmp_path):
    path = tmp_path / "m.json"
    result = measure("model", "--model", "mlp_200k", "--max-repetitions", 8, "-o", path)
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


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["kernels", "--min-size", "0"], "'0': write a whole number above 0, at most 2^39, such as 65536"),
        (["kernels", "--max-size", "2^39"], "--max-size 549755813888: needs"),
        (["kernels", "--max-size", "512"], "--min-size 1024: no power of two from there to 512"),
        (["kernels", "--kernels", "triton"], "kernels: 'triton': "),
        (["model", "--model", "mlp_4"], "--model 'mlp_4': no shipped model (did you mean 'mlp_4m')"),
        (["model", "--model", "no.such:thing"], "--model no.such:thing: no module 'no.such'"),
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
def test_a_mistake_is_one_line_and_exit_code_2(args, said, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.chdir(tmp_path)
    assert_refused(measure(*args), said)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_replaced_only_by_force(tmp_path):
    path = tmp_path / "m.json"
    path.write_text("old", encoding="utf-8")
    args = ("model", "--model", "mlp_200k", "--max-repetitions", 8, "-o", path)
    refused = measure(*args)
    assert refused.exit_code == 2
    assert f"{path}: exists; add --force to replace it" in refused.stderr
    assert path.read_text(encoding="utf-8") == "old"
    assert measure(*args, "--force").exit_code == 0
    assert read(path).series
