"""Lose one rank at a random moment, a hundred times: do the others end in time, and say which rank it is?"""

import json
import os
import random
import re
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

from binsgdm.compressors.registry import SYSTEMS
from evidence import RESULTS
from evidence.studies.page import BINSGDM
from evidence.studies.study import Ledger, Row
from simnet.report.table import Table

PAGE = BINSGDM
LEDGER = Ledger(RESULTS / "chaos.json", order=lambda row: row["seed"])
NUM_RUNS = 100
TIMEOUT_S = 5.0
"""Of every collective."""
STEPS = 12  # a checkpoint before and after whatever befalls in steps 2 to 9
KINDS = ("kill", "stop", "raise", "full disk", "skip")
PLACES = ("before forward", "in forward", "in backward", "before the step", "after the step")
"""In a step, where a rank raises."""
WORLDS = ((3, 1), (3, 3), (4, 1), (4, 2), (4, 4))
"""Ranks, and those of a node."""
OPTIONS: dict[str, dict[str, Any]] = {"top_k": {"ratio": 0.1}, "ms_top_k": {"ratio": 0.1}, "random_k": {"ratio": 0.1}}


class Case(NamedTuple):
    """Who exchanges in a run: its name, the class or function with which sentences begin, options of it or `attach`."""

    name: str
    called: str
    options: dict[str, Any]


def cases() -> list[Case]:
    """Return BinSGDM in its sessions, 1-bit Adam in both stages, and every system in each of its topologies."""
    known = [
        Case("BinSGDM", "BinSGDM", {}),
        Case("BinSGDM, shaped", "BinSGDM", {"rounding": "shaped"}),
        Case("BinSGDM, flat, overlap", "BinSGDM", {"topology": "flat", "overlap": True}),
        Case("BinSGDM, overlap", "BinSGDM", {"overlap": True}),
        Case("BinSGDM, gradients", "BinSGDM", {"average": "gradients"}),
        Case("1-bit Adam, dense stage", "OneBitAdam", {"dense_steps": STEPS}),
        Case("1-bit Adam", "OneBitAdam", {"dense_steps": 1}),
    ]
    for name, system in SYSTEMS.items():
        for topology in system.topologies:
            options = {"system": name, "topology": topology, **OPTIONS.get(name, {})}
            known.append(Case(f"{name}, {topology}", "compress_gradients", options))
    return known


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run.

    Attributes:
        kind: what happens to the victim, one of KINDS.
        step: in which it happens, from 0.
        delay_s: after the step's begin, of a signal.
        place: in the step, of an exception.
        share: of a checkpoint's bytes that the disk takes.
        store_at_rank_0: rank 0 has the store of torch.distributed, as without torchrun.
        are_hosts_apart: no rank can look at another's process, as if each were on a host of its own.
    """

    seed: int
    kind: str
    case: Case
    world_size: int
    ranks_per_node: int
    victim: int
    step: int
    delay_s: float
    place: str
    share: float
    store_at_rank_0: bool
    are_hosts_apart: bool
    timeout_s: float = TIMEOUT_S


def plan(seed: int) -> Plan:
    """Draw a run: kinds and cases in turn, so that a hundred runs have each about as often, the rest at random."""
    draw = random.Random(seed)
    all_cases = cases()
    world_size, ranks_per_node = draw.choice(WORLDS)
    return Plan(
        seed=seed,
        kind=KINDS[seed % len(KINDS)],
        # 7 has no factor in common with the number of kinds: a case meets each of them in turn.
        case=all_cases[(7 * (seed // len(KINDS)) + seed) % len(all_cases)],
        world_size=world_size,
        ranks_per_node=ranks_per_node,
        victim=draw.randrange(world_size),
        step=draw.randrange(2, STEPS - 2),
        delay_s=draw.uniform(0, 0.006),
        place=draw.choice(PLACES),
        share=draw.uniform(0.02, 0.98),
        store_at_rank_0=draw.random() < 0.5,
        are_hosts_apart=draw.random() < 0.3,
    )


def run(options: Namespace) -> int:
    """Run the plans of seeds, some at once, and print a line for each; return 1 if one was not as it has to be."""
    rows: list[Row] = []

    def ask(seeds: Sequence[int]) -> None:
        command = [sys.executable, "-m", "evidence.studies.chaos_ranks", *map(str, seeds)]
        environment = os.environ | ({"CHAOS_KEEP": "1"} if options.keep else {}) | {"OMP_NUM_THREADS": "1"}
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": None if options.keep else subprocess.DEVNULL}
        with subprocess.Popen(command, **streams, text=True, env=environment) as server:
            for line in server.stdout or ():
                rows.append(row := json.loads(line))
                begin = f"{row['seed']:3} {row['kind']:9} {row['case']:38} rank {row['victim']} of {row['world'][0]}"
                print(f"{begin}  {longest(row, 'told_s'):.1f} s", *row["faults"], sep="\n      ", flush=True)

    seeds = options.seeds or range(NUM_RUNS)
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(ask, [seeds[first :: options.jobs] for first in range(options.jobs)]))
    if not options.seeds:
        # Of the survivors what the last took, and what the first says.
        for row in rows:
            row |= {name: round(longest(row, name), 2) for name in ("told_s", "ended_s")}
            row["text"] = next((each["text"] for each in row.pop("survivors") if each["text"]), "")
        LEDGER.write(rows)
    wrong = sorted(row["seed"] for row in rows if row["faults"])
    print(f"{len(rows)} runs, {len(wrong)} not as they have to be{': ' if wrong else ''}{wrong}")
    return int(bool(wrong) or len(rows) < len(seeds))


def longest(row: Row, name: str) -> float:
    """Return the longest time of a survivor that was told something [s]."""
    return max((each[name] for each in row["survivors"] if each["text"] and each[name] is not None), default=0.0)


def read() -> list[Row]:
    return LEDGER.rows


def regions(rows: Sequence[Row]) -> dict[str, str]:
    return {"chaos": f"```text\n{examples(rows)[0]}\n```"}


def data(rows: Sequence[Row]) -> dict[str, Table]:
    """Return for each system and kind, and for each kind, how many runs were as they have to be, and the times."""
    by_kind = []
    for kind in (*KINDS, "all"):
        of_kind = [row for row in rows if kind in {row["kind"], "all"}]
        times = ([row[name] for row in of_kind] for name in ("told_s", "ended_s"))
        counts = (len(of_kind), sum(not row["faults"] for row in of_kind), sum(len(row["hung"]) for row in of_kind))
        spans = (f"{statistics.median_high(some):.1f} s, {max(some):.1f} s" for some in times)
        by_kind.append([kind, *map(str, counts), *spans])
    by_system = {
        row["case"].partition(",")[0]: dict.fromkeys(KINDS, "") for row in sorted(rows, key=lambda r: r["case"])
    }
    for name, cells in by_system.items():
        for kind in KINDS:
            if of_kind := [row for row in rows if (row["case"].partition(",")[0], row["kind"]) == (name, kind)]:
                right, longest_s = sum(not row["faults"] for row in of_kind), max(row["told_s"] for row in of_kind)
                cells[kind] = f"{right} of {len(of_kind)}, {longest_s:.1f} s"
    heads = ["what befalls a rank", "runs", "named right, in time", "ranks that hang", "to the sentence", "to the end"]
    return {
        "chaos": Table(["system", *KINDS], [[name, *cells.values()] for name, cells in by_system.items()]),
        "chaos-kinds": Table(heads, by_kind),
        "chaos-sentences": Table(["what a survivor says"], [[text] for text in examples(rows)]),
    }


def examples(rows: Sequence[Row]) -> list[str]:
    """Return one sentence of each form that is not the same but for its numbers and who was called."""
    by_form: dict[str, str] = {}
    for row in rows:
        form = re.sub(r"\d+", "", row["text"].partition(": ")[2].partition(", as rank")[0])
        by_form[form] = min(by_form.get(form, row["text"]), row["text"], key=len)
    return list(by_form.values())
