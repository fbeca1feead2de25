"""`python -m benchmarks [--before CHECKOUT] [--only TEXT] [-o FILE.csv]`: how fast the simulator is, as tables.

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

from benchmarks import measured
from benchmarks.cases import Group, groups
from benchmarks.measured import Cells
from benchmarks.timing import Checkout, Timed, in_turns
from simnet.core.units import format_seconds
from simnet.core.version import VERSION

HERE = Path(__file__).resolve().parents[1]


def rows_of(group: Group, checkouts: list[Checkout]) -> Iterator[Cells]:
    """Time a group, and yield its table row by row."""
    first: float | None = None
    for case in group.cases:
        timed = in_turns(case, checkouts)
        now = timed[-1].seconds
        first = now if first is None else first
        yield {
            "what": case.title,
            "time": _time_text(timed[-1]),
            **_before(timed),
            "of the first": f"{now / first:.3g}",
        }


def _time_text(timed: Timed) -> str:
    memory = "" if timed.peak_mib is None else f", {timed.peak_mib:.0f} MiB"
    return format_seconds(timed.seconds) + memory


def _before(timed: list[Timed]) -> Cells:
    """Return the time of the former checkout and the ratio to it; nothing without a former checkout."""
    if len(timed) == 1:
        return {}
    return {"before": _time_text(timed[0]), "after / before": f"{timed[-1].seconds / timed[0].seconds:.2f}"}


def main() -> None:
    """Print the tables, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout of the sources, to compare with")
    parser.add_argument("--only", metavar="TEXT", help="only groups whose title has this text")
    parser.add_argument("-o", "--output", type=Path, help="write the rows to this file of CSV, where others stay")
    given = parser.parse_args()
    about = (
        f"binsgdm {VERSION}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores; {time.strftime('%Y-%m-%d')}"
    )
    print(about)
    found: dict[str, list[Cells]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        paths = [given.before.resolve()] if given.before else []
        checkouts = [Checkout(path, Path(scratch)) for path in [*paths, HERE]]
        for group in groups():
            if given.only is None or given.only in group.title:
                found[group.title] = []
                print(f"\n{group.title}")
                for row in rows_of(group, checkouts):
                    print(*row.values(), sep=" | ", flush=True)
                    found[group.title].append(row)
    if given.output is not None:
        measured.write(given.output, found, [group.title for group in groups()])


if __name__ == "__main__":
    main()
