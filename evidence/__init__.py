"""What proves simnet and binsgdm, and serves nobody at run time: the lab, studies, benchmarks and what they found."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results"
CAMPAIGNS = ROOT / "evidence" / "campaigns"
