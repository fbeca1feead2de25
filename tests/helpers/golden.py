"""The committed outputs of other programs that tests read, and the committed pages of this one."""

import os
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden" / "calibrate"
IPERF3 = GOLDEN / "iperf3_loopback.json"
GLOO = GOLDEN / "kineto_gloo_2_ranks.json.gz"
PAGES = Path(__file__).parents[1] / "golden" / "pages"


def assert_golden(name: str, text: str) -> None:
    """Check that a page is the committed one; SIMNET_GOLDEN=write commits it as it is: read it before."""
    path = PAGES / name
    if os.environ.get("SIMNET_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()
