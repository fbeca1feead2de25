"""Hypothesis profile, and the helper modules of the tests on the path."""

import sys
from pathlib import Path

from hypothesis import settings

settings.register_profile("house", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("house")

for folder in ("unit", "property"):
    sys.path.insert(0, str(Path(__file__).parent / folder))
