"""Lose one rank at a random moment, a hundred times: do the others end in time, and say which rank it is?"""

import json
import os
import queue
import re
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simnet.report.table import Table
from studies.chaos.plan import KINDS
from studies.ledger import Ledger, Row
from studies.page import BINSGDM

PAGE = BINSGDM
LEDGER = Ledger(Path(__file__).parents[1] / "results" / "chaos.json", order=lambda row: row["seed"])
NUM_RUNS = 100


def regions(rows: Sequence[Row]) -> dict[str, str]:
    """Return the generated parts of the page, by region."""
    return {"chaos": f"```text\n{examples(rows)[0]}\n```"}


def data(rows: Sequence[Row]) -> dict[str, Table]:
    """Return the tables that the page links to, by name."""
    return {
        "chaos": by_system(rows),
        "chaos-kinds": by_kind(rows),
        "chaos-sentences": Table(["what a survivor says"], [[text] for text in examples(rows)]),
    }


def by_kind(rows: Sequence[Row]) -> Table:
    """Return for each kind how many runs were as they have to be, and how long the last survivor took."""
    lines = []
    for kind in (*KINDS, "all"):
        of_kind = [row for row in rows if kind in {row["kind"], "all"}]
        told, ended = (sorted(row[name] for row in of_kind) for name in ("told_s", "ended_s"))
        right = [row for row in of_kind if not row["faults"]]
        lines.append(
            [
                kind,
                str(len(of_kind)),
                str(len(right)),
                str(sum(len(row["hung"]) for row in of_kind)),
                f"{told[len(told) // 2]:.1f} s, {told[-1]:.1f} s",
                f"{ended[len(ended) // 2]:.1f} s, {ended[-1]:.1f} s",
            ]
        )
    return Table(
        ["what befalls a rank", "runs", "named right, in time", "ranks that hang", "to the sentence", "to the end"],
        lines,
    )


def by_system(rows: Sequence[Row]) -> Table:
    """Return for each system and kind the runs named right out of all, and the longest time."""
    systems = dict.fromkeys(system_of(row) for row in sorted(rows, key=lambda row: row["case"]))
    return Table(
        ["system", *KINDS],
        [
            [name, *(_cell([r for r in rows if system_of(r) == name and r["kind"] == kind]) for kind in KINDS)]
            for name in systems
        ],
    )


def examples(rows: Sequence[Row]) -> list[str]:
    """Return one sentence of each form that is not the same but for its numbers and who was called."""
    by_form: dict[str, str] = {}
    for row in rows:
        form = re.sub(r"\d+", "", row["text"].partition(": ")[2].partition(", as rank")[0])
        by_form[form] = min(by_form.get(form, row["text"]), row["text"], key=len)
    return list(by_form.values())


def system_of(row: Row) -> str:
    """Return the system of a run, whatever its topology."""
    return str(row["case"]).partition(",")[0]


def _cell(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    right = sum(not row["faults"] for row in rows)
    return f"{right} of {len(rows)}, {max(row['told_s'] for row in rows):.1f} s"


def run(options: Namespace) -> int:
    """Run the plans of seeds, some at once, and print a line for each; return 1 if one was not as it has to be."""
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in options.seeds or range(NUM_RUNS):
        left.put(seed)
    rows: list[dict[str, Any]] = []
    threads = [threading.Thread(target=_ask, args=(left, rows, options.keep)) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not options.seeds:
        LEDGER.write([shortened(row) for row in rows])
    wrong = sorted(row["seed"] for row in rows if row["faults"])
    print(f"{len(rows)} runs, {len(wrong)} not as they have to be{': ' if wrong else ''}{wrong}")
    return int(bool(wrong))


def read() -> list[Row]:
    """Return what was found."""
    return LEDGER.rows


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
