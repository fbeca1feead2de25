"""How fast the simulator is, as tables.

    python -m evidence.benchmarks [SET] [--before CHECKOUT] [--only TEXT] [-o FILE.csv]

SET is "simulator" (the default), "uneven" (ranks that differ), "engine" (times that are wanted) or "workers" (sweeps on
processes and on Dask). Every figure is the best of several runs in this one run; "of the first" compares it with
the first of its table. With --before the same runs in another checkout of the sources, in turns with this one, and a
ratio compares both.
"""

import argparse
import csv
import os
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidence import ROOT
from evidence.benchmarks.cases import SETS
from evidence.benchmarks.timing import Case, Checkout, Timed, in_turns
from simnet.core.units import format_seconds
from simnet.core.version import VERSION
from simnet.report.table import Table

Cells = dict[str, str]
HEADS = ("table", "what", "time", "before", "after / before", "of the first", "ASTRA-sim 2; SimGrid", "target")
"""Of a file; the last where a row has a target."""


def cells(case: Case, now: Timed, before: Timed | None, first_s: float) -> Cells:
    """Return the row of a case, of which `first_s` is the first of its table [s]."""
    row = {"what": case.title, "time": _text(now)}
    if before is not None:
        row |= {"before": _text(before), "after / before": f"{now.seconds / before.seconds:.3g}"}
    row["of the first"] = f"{now.seconds / first_s:.3g}"
    known = {"ASTRA-sim 2; SimGrid": case.peers, "target": case.aim}
    return row | {head: text for head, text in known.items() if text}


def _text(timed: Timed) -> str:
    memory = "" if timed.peak_mib is None else f", {timed.peak_mib:.0f} MiB"
    return format_seconds(timed.seconds) + memory


def read(path: Path) -> dict[str, list[Cells]]:
    tables: dict[str, list[Cells]] = {}
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                tables.setdefault(row.pop("table", ""), []).append(row)
    return tables


def write(path: Path, timed: Mapping[str, list[Cells]], titles: Sequence[str]) -> None:
    """Write tables in the order of their titles; others that the file has stay."""
    every = {**read(path), **timed}
    kept = {title: every[title] for title in titles if title in every}
    path.parent.mkdir(exist_ok=True)
    heads = HEADS if any(row.get("target") for of in kept.values() for row in of) else HEADS[:-1]
    rows = [[title, *(row.get(head, "") for head in heads[1:])] for title, of in kept.items() for row in of]
    path.write_text(Table(heads, rows).csv(), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", nargs="?", choices=SETS, default="simulator", help="(default: %(default)s)")
    parser.add_argument("--before", type=Path, help="another checkout of the sources, to compare with")
    parser.add_argument("--only", metavar="TEXT", default="", help="only groups, or cases, whose title has this text")
    parser.add_argument("-o", "--output", type=Path, help="write the rows to this file of CSV, where others stay")
    options = parser.parse_args()
    print(
        f"binsgdm {VERSION}, Python {platform.python_version()}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores; {time.strftime('%Y-%m-%d')}"
    )
    groups, timed = SETS[options.set](), dict[str, list[Cells]]()
    with tempfile.TemporaryDirectory() as scratch:
        former = Checkout(options.before.resolve(), Path(scratch)) if options.before else None
        here = Checkout(ROOT, Path(scratch))
        for title, cases in groups.items():
            if asked := [case for case in cases if options.only in title or options.only in case.title]:
                print(f"\n{title}")
                timed[title] = rows = []
                first_s = None
                for case in asked:
                    now, before = in_turns(case, here, former)
                    first_s = first_s or now.seconds
                    rows.append(cells(case, now, before, first_s))
                    print(*rows[-1].values(), sep=" | ", flush=True)
    if options.output is not None:
        write(options.output, timed, list(groups))


if __name__ == "__main__":
    main()
