"""The committed outputs of other programs that tests read."""

from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden" / "calibrate"
IPERF3 = GOLDEN / "iperf3_loopback.json"
GLOO = GOLDEN / "kineto_gloo_2_ranks.json.gz"
