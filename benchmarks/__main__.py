"""`python -m benchmarks [--before CHECKOUT] [--only TEXT] [-o FILE]`: how fast the simulator is, as Markdown tables.

Every figure is the best of several runs in this one run; the last column compares it with the first of its table. With
--before the same runs in another checkout of the sources, in turns with this one, and a ratio compares both.
"""

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import regions
from benchmarks.cases import Group, groups
from benchmarks.timing import Checkout, Timed, in_turns
from simnet.core.units import format_seconds
from simnet.core.version import VERSION

HERE = Path(__file__).resolve().parents[1]
PREFACE = """# Benchmarks

For readers who ask what a simulation costs. Made by `make bench BENCH_ARGS="-o docs/evidence/benchmarks.md"`; the best
of several runs in one go, so trust the ratios more than the seconds. Times are CPU time and memory is that of
the largest process, unless a row says otherwise.

For scale, one flat ring all-reduce of 440 MB (whole process, the same class of machine): ASTRA-sim 2's analytical
back end (C++) takes 1.09 s and 101 MiB for 512 ranks, 188 s and 5449 MiB for 4096, and 20.4 s for the flat DDP step
of 512; SimGrid S4U (C++) 2.2 s for 512 and 525 s for 4096; ns.py (SimPy, every hop) 12-15 s for 512. The folded
executor gives the same times (to 10 ppm) at a cost that does not grow with the ranks;
the exact one is for clusters that are not symmetric.

"""


def table(group: Group, checkouts: list[Checkout]) -> Iterator[str]:
    """Time a group, and yield its table line by line."""
    has_before = len(checkouts) > 1
    yield f"\n## {group.title}\n"
    yield "| what | time |" + (" before | after / before |" if has_before else "") + " of the first |"
    yield "|---|---|" + "---|---|" * has_before + "---|"
    first: float | None = None
    for case in group.cases:
        timed = in_turns(case, checkouts)
        now = timed[-1].seconds
        first = now if first is None else first
        cells = [case.title, _time_text(timed[-1]), *_before(timed), f"{now / first:.3g}"]
        yield f"| {' | '.join(cells)} |"


def _time_text(timed: Timed) -> str:
    memory = "" if timed.peak_mib is None else f", {timed.peak_mib:.0f} MiB"
    return format_seconds(timed.seconds) + memory


def _before(timed: list[Timed]) -> list[str]:
    """Return the time of the former checkout and the ratio to it; nothing without a former checkout."""
    return [cell for one in timed[:-1] for cell in (_time_text(one), f"{timed[-1].seconds / one.seconds:.2f}")]


def main() -> None:
    """Print the tables, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout of the sources, to compare with")
    parser.add_argument("--only", metavar="TEXT", help="only groups whose title has this text")
    parser.add_argument("-o", "--output", type=Path, help="write the tables here too")
    given = parser.parse_args()
    lines = [
        f"binsgdm {VERSION}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores; {time.strftime('%Y-%m-%d')}",
    ]
    print(lines[0])
    with tempfile.TemporaryDirectory() as scratch:
        paths = [given.before.resolve()] if given.before else []
        checkouts = [Checkout(path, Path(scratch)) for path in [*paths, HERE]]
        for group in groups():
            if given.only is None or given.only in group.title:
                for line in table(group, checkouts):
                    print(line, flush=True)
                    lines.append(line)
    if given.output is not None:
        # Regions that other programs fill stand below, and stay.
        kept = regions.every_region(given.output.read_text(encoding="utf-8")) if given.output.exists() else ""
        text = PREFACE + "\n".join(lines) + "\n" + ("\n" + kept if kept else "")
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
