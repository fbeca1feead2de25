"""Search, train, and write what the pages of docs say of it.

OMP_NUM_THREADS=1 python -m evidence.studies run systems --jobs 2  # what is not done yet; stop and start it at any time
python -m evidence.studies run margins --only "search: gpt"        # a part of it
python -m evidence.studies run chaos 17 --keep                     # run 17 again, with its folder
python -m evidence.studies status                                  # what is done of each training
python -m evidence.studies page                                    # all tables and figures, from what is done
python -m evidence.studies tables systems                          # print the tables only

Results are in evidence/results, those of the lab in its lab_*, curves of systems and of local steps in
scenarios/convergence.

A study is a module. `regions`, `data` and `draw` make of what it has found the regions of `PAGE`, the tables beside it,
and the figures, as far as it has any. What was found is what `read()` returns; of the lab it is the folder `RESULTS`.
`run` does what is left.
"""

import argparse
import sys
from importlib import import_module
from typing import Any

from evidence.studies import IN_LAB, OTHERS, STUDIES, TRAININGS, page


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m evidence.studies", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "status", "page", "tables"])
    parser.add_argument("study", choices=list(STUDIES), nargs="?", help="(default: all; of run: the trainings)")
    parser.add_argument("seeds", nargs="*", type=int, help="of chaos: which runs (default: the first hundred)")
    parser.add_argument("--jobs", type=int, default=1, help="of run: trainings at once (default %(default)s)")
    parser.add_argument("--only", metavar="TEXT", default="", help="of run: only what has this text in its title")
    parser.add_argument("--at-most", metavar="N", type=int, help="of run: number of trainings")
    parser.add_argument("--keep", action="store_true", help="of chaos: leave folders with the output of every rank")
    options = parser.parse_intermixed_args()
    if options.command == "run" and options.study in IN_LAB:
        parser.error(f"run: {options.study}: was run once; what was measured is in evidence/results")
    if options.command == "status" and options.study not in (None, *TRAININGS):
        parser.error(f"status: {options.study}: is of {', '.join(TRAININGS)} alone")
    usual = STUDIES if options.command == "page" else TRAININGS
    return max(_do(options, name) for name in ([options.study] if options.study else usual))


def _do(options: argparse.Namespace, name: str) -> int:
    study: Any = import_module(f"evidence.studies.{STUDIES[name]}")
    if options.command == "run" and name in OTHERS:
        return study.run(options) or 0
    results = study.RESULTS if name in IN_LAB else study.read()
    if options.command == "run":
        results.run(options)
    elif options.command == "status":
        print(name, *results.status(), sep="\n  ")
    else:
        regions, tables = (getattr(study, part, lambda _: {})(results) for part in ("regions", "data"))
        if options.command == "tables":
            print(*regions.values(), *(table.markdown() for table in tables.values()), sep="\n\n")
            return 0
        page.write(study.PAGE, regions)
        page.write_data(tables)
        getattr(study, "draw", lambda _: None)(results)
    return 0


if __name__ == "__main__" and (code := main()):
    sys.exit(code)
