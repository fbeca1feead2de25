"""The table of parts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.needs import needs

needs("torch")

from binsgdm.bench.gpu import links, parts, training
from binsgdm.bench.gpu.parts import BUDGET_S, PARTS, NotMeasurableError


def test_the_parts_share_out_the_whole_budget() -> None:
    assert sum(part.seconds for part in PARTS) == BUDGET_S
    assert len({part.name for part in PARTS}) == len(PARTS)


WITHOUT_NUMBA = """
from importlib import import_module
from binsgdm.bench.gpu.parts import PARTS
for part in PARTS:
    import_module(part.module)
import torch
from binsgdm import BinSGDM, attach, attach_fsdp
from binsgdm.optimizers.one_bit_adam import OneBitAdam
parameter = torch.nn.Parameter(torch.ones(8))
for make in (BinSGDM, OneBitAdam):
    parameter.grad = torch.ones(8)
    make([parameter], lr=0.25).step()
print(parameter.tolist())
"""


def test_all_parts_and_optimizers_do_without_numba(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('Numba needs NumPy 2.4 or less. Got NumPy 2.5.')\n")
    root = Path(parts.__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)])}
    command = [sys.executable, "-c", WITHOUT_NUMBA]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[0.5] * 8}\n"


@pytest.mark.parametrize("part", [links, training])
def test_what_needs_two_cards_is_skipped_with_a_reason(part, bench) -> None:
    """Those of two are measured in `tests/distributed/test_measure.py`."""
    with pytest.raises(NotMeasurableError, match="needs two"):
        part.measure(bench, quick=True, seconds=5.0)
