"""What makes the committed data: gradients of real models, the trainings of the pages in docs/evidence."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "examples"))
