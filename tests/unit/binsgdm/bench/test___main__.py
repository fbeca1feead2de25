"""`python -m binsgdm.bench` where only torch is installed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_a_missing_click_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text('raise ImportError("No module named click")\n')
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "binsgdm.bench", "gpu"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "measure: needs click (No module named click): pip install click, or put it on PYTHONPATH\n"
