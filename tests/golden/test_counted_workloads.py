"""The shipped workloads that `simnet model` has made are what it makes now."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from simnet.core import files
from tests.helpers.cli import ROOT, run
from tests.helpers.needs import needs

needs("torch")

# Parameters of the models. Source: Table 7 of Sheared LLaMA, Table 2 of LLaMA, Table 1 of Llama 2 (sizes rounded there,
# exact by their layers); num_params of torchvision's weights; Raffel et al., T5, 2020 ("770 million"; 738 million with
# one embedding for encoder, decoder and output); Ronneberger et al., U-Net, 2015, by its layers.
NUM_ELEMENTS = {
    "llama_1b": 1_345_423_360,
    "llama_3b": 2_701_560_320,
    "llama_7b": 6_738_415_616,
    "llama_13b": 13_015_864_320,
    "llama_70b": 68_976_648_192,
    "vit_l_16": 304_326_632,
    "t5_large": 737_668_096,
    "unet": 31_030_658,
}
OF_TORCH_ALONE = ["unet", pytest.param("llama_1b", marks=pytest.mark.slow)]
MAX_RSS = """
import json, resource
import torch
from binsgdm.recording.step_description import StepOptions, describe_step
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = describe_step("llama_70b", StepOptions(batch=1, number_format="bf16"))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"grown_kib": after - before, "parameter_bytes": found["memory"]["parameters"]}))
"""


def read(name: str) -> dict[str, Any]:
    return files.read("workloads", name)


def command_of(workload: dict[str, Any]) -> list[str]:
    found = re.match(r"simnet (model .*?) \(torch ", str(workload["source"]))
    assert found is not None, workload["source"]
    return shlex.split(found[1])


def test_every_counted_workload_is_covered_here() -> None:
    counted = {name for name in files.names("workloads") if str(read(name)["source"]).startswith("simnet model")}
    assert counted == set(NUM_ELEMENTS)


@pytest.mark.parametrize("name", NUM_ELEMENTS)
def test_a_counted_workload_has_the_parameters_of_the_published_model(name: str) -> None:
    num_elements = 0
    for row in read(name)["tensors"]:
        sides = 1
        for side in row["shape"]:
            sides *= side
        num_elements += sides * row.get("count", 1)
    assert num_elements == NUM_ELEMENTS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_TORCH_ALONE)
def test_counting_again_gives_the_shipped_file(name: str, tmp_path: Path) -> None:
    made = tmp_path / "made.toml"
    result = run(*command_of(read(name)), "-o", str(made))
    assert result.exit_code == 0, result.output
    again, shipped = tomllib.loads(made.read_text(encoding="utf-8")), read(name)
    del again["source"], shipped["source"]  # has the version of torch
    assert again == shipped


@pytest.mark.slow
def test_seventy_billion_parameters_are_counted_without_their_memory() -> None:
    done = subprocess.run([sys.executable, "-c", MAX_RSS], capture_output=True, text=True, cwd=ROOT, check=True)
    found = json.loads(done.stdout)
    assert found["parameter_bytes"] == 2 * NUM_ELEMENTS["llama_70b"]
    # 138 GB of parameters: the process grows by tens of MiB, most of it code that is loaded.
    assert found["grown_kib"] < 512 * 1024
