"""What the page on calibration says of step times: Fig 5a of 1-bit Adam, as someone with four nodes would have it."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from simnet.cli.main import cli

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "calibrate.md"
HEAD = "nodes,ranks_per_node,batch,strategy,step_ms"
DENSE = {1: 400.3, 2: 2098.4, 4: 2949.3, 8: 2835.0, 16: 3422.5, 32: 3442.0, 64: 3847.8}
ONE_BIT = {1: 357.9, 2: 539.4, 4: 567.1, 8: 588.4, 16: 623.9, 32: 728.4, 64: 980.2}
FITTED = 4
"""Nodes of the largest cluster that was fitted."""


def table(nodes: range) -> str:
    rows = [
        f"{count},4,16,{strategy},{times[count]}"
        for strategy, times in (("all_reduce", DENSE), ("one_bit_adam", ONE_BIT))
        for count in times
        if count in nodes
    ]
    return "\n".join([HEAD, *rows, ""])


def test_the_page_says_how_far_off_larger_clusters_are(tmp_path: Path) -> None:
    steps, later = tmp_path / "steps.csv", tmp_path / "later.csv"
    steps.write_text(table(range(FITTED + 1)))
    later.write_text(table(range(FITTED + 1, 65)))
    asked = ["calibrate", str(steps), "--hold-out", str(later), "--experiment", "one_bit_adam_end_to_end"]
    done = CliRunner().invoke(cli, [*asked, "--base", "v100_tcp_estimate", "-o", str(tmp_path / "mine.toml")])
    assert done.exit_code == 0, done.output
    (dense,) = re.findall(r"^steps, all_reduce \(held out\) +4 +([\d.]+)%", done.output, re.MULTILINE)
    speedups = [abs(float(off)) for off in re.findall(r"speedup .*measured .*\(([+-][\d.]+)%\)", done.output)]
    assert len(speedups) == 4
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    said = re.search(r"uncompressed steps on 8 to 64 nodes (\d+) % wrong on average, but speedups up to (\d+) %", text)
    assert said is not None
    assert [float(number) for number in said.groups()] == pytest.approx([float(dense), max(speedups)], abs=0.5)
