"""Hypothesis profile, Triton's interpreter where there is no GPU, and the helper modules of the tests on the path."""

import os
import sys
from pathlib import Path

from hypothesis import settings

settings.register_profile("house", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("house")

if not Path("/dev/nvidia0").exists():  # Triton looks once, when something (torch, too) first imports it
    os.environ["TRITON_INTERPRET"] = "1"

for folder in ("unit", "property"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
