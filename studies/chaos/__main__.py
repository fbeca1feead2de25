"""Lose one rank at a random moment, a hundred times: do the others end in time, and say which rank it is?

OMP_NUM_THREADS=1 python -m studies.chaos run                 # a hundred runs, two at a time
OMP_NUM_THREADS=1 python -m studies.chaos run 17 --keep       # run 17 again, with its folder
python -m studies.chaos page                                  # the table of docs/evidence/binsgdm.md

Exits 1 if a run was not as it has to be.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from studies import page
from studies.chaos import table
from studies.ledger import Ledger

RESULTS = Path(__file__).parents[1] / "results" / "chaos.json"
NUM_RUNS = 100


def parse() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("seeds", nargs="*", type=int, help="of run: which (default: the first hundred)")
    parser.add_argument("--jobs", type=int, default=2, help="runs at once (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave the folders with the output of every rank")
    return parser.parse_args()


def main() -> int:
    """Do what the command line asks for; return the exit code."""
    options = parse()
    ledger = Ledger(RESULTS, order=lambda row: row["seed"])
    if options.command == "page":
        page.write(table.PAGE, table.regions(ledger.rows))
        page.write_data(table.data(ledger.rows))
        return 0
    rows = run(options.seeds or range(NUM_RUNS), options.jobs, keep=options.keep)
    if not options.seeds:
        ledger.write([shortened(row) for row in rows])
    wrong = [row for row in rows if row["faults"]]
    print(
        f"{len(rows)} runs, {len(wrong)} not as they have to be{': ' if wrong else ''}{[row['seed'] for row in wrong]}"
    )
    return int(bool(wrong))


def run(seeds: Any, jobs: int, *, keep: bool) -> list[dict[str, Any]]:
    """Run the plans of seeds, some at once; print a line for each."""
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in seeds:
        left.put(seed)
    rows: list[dict[str, Any]] = []
    threads = [threading.Thread(target=_ask, args=(left, rows, keep)) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(rows, key=lambda row: row["seed"])


def _ask(left: "queue.SimpleQueue[int]", rows: list[dict[str, Any]], keep: bool) -> None:
    """Hand seeds to a server until there are no more."""
    command = [sys.executable, "-m", "studies.chaos.server"]
    environment = os.environ | ({"CHAOS_KEEP": "1"} if keep else {}) | {"OMP_NUM_THREADS": "1"}
    errors = None if keep else subprocess.DEVNULL
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        while not left.empty():
            try:
                seed = left.get_nowait()
            except queue.Empty:
                break
            print(seed, file=server.stdin, flush=True)
            row = json.loads(server.stdout.readline())
            rows.append(row)
            print(line(row), flush=True)
        server.stdin.close()


def line(row: dict[str, Any]) -> str:
    """Return a run in a line, and its faults below."""
    begin = f"{row['seed']:3} {row['kind']:9} {row['case']:38} rank {row['victim']} of {row['world'][0]}"
    return "\n      ".join([f"{begin}  {longest(row, 'told_s'):.1f} s", *row["faults"]])


def shortened(row: dict[str, Any]) -> dict[str, Any]:
    """Return what is kept of a run: of the survivors the last, and what the first says."""
    text = next((each["text"] for each in row["survivors"] if each["text"]), "")
    kept = {name: value for name, value in row.items() if name != "survivors"}
    return kept | {name: round(longest(row, name), 2) for name in ("told_s", "ended_s")} | {"text": text}


def longest(row: dict[str, Any], name: str) -> float:
    """Return the longest time of a survivor that was told something [s]."""
    return max((each[name] for each in row["survivors"] if each["text"] and each[name] is not None), default=0.0)


if __name__ == "__main__":
    sys.exit(main())
