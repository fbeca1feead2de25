"""The code of the page on adding a system, an all-reduce and a fault runs as it stands, and is simulated."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs import shown

ROOT = Path(__file__).resolve().parents[2]
PAGE = "extend.md"
SIMULATE = """
from simnet.engine.scenario import load
from simnet.engine.simulation import simulate

SWAP = {"kind": "all_reduce", "algorithm": "swap_gather"}
flapping = {"kind": "flapping", "node": 1, "to_s": 0.2}
small = {"cluster.num_nodes": 2, "cluster.ranks_per_node": 2}
print(simulate(load("bert_base_10gbit", {"strategy": "half_precision"})).result.algorithm)
print(simulate(load("bert_base_10gbit", {"strategy": SWAP})).result.algorithm)
whole, slow = (
    simulate(load("bert_base_10gbit", {**small, "strategy": "all_reduce", "cluster.faults": faults})).result
    for faults in ([], [flapping])
)
print(slow.iteration_s > whole.iteration_s)
"""


@pytest.mark.slow
def test_its_code_runs_and_what_it_adds_is_simulated() -> None:
    blocks = shown.blocks((ROOT / "docs" / "how-to" / PAGE).read_text(encoding="utf-8"), "python")
    chosen = [
        block
        for block in blocks
        if "my_systems" not in block and ("binsgdm" not in block or find_spec("torch") is not None)
    ]
    assert len(chosen) >= 3
    code = f"for block in {[*chosen, SIMULATE]!r}:\n    exec(block, {{'__name__': '__main__'}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["all_gather", "swap_gather", "True"]
