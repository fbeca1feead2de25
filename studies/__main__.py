"""Search, train, and write the pages of docs/evidence on training.

OMP_NUM_THREADS=1 python -m studies run systems --jobs 2      # what is not done yet; stop and start it at any time
python -m studies run margins --only "search: gpt"            # a part of it
python -m studies status                                      # what is done
python -m studies page                                        # the tables and the figures, from what is done
python -m studies tables                                      # print the tables only

Trials and final runs are in studies/results; the final curves of all systems in scenarios/convergence.
"""

import argparse
from typing import Any

from studies import margin_page, page, rounding_page, systems_page
from studies.margin_study import MarginStudy
from studies.rounding_study import RoundingStudy
from studies.study import run_left
from studies.systems_study import SystemsStudy

STUDIES: dict[str, Any] = {
    "margins": (MarginStudy, margin_page),
    "rounding": (RoundingStudy, rounding_page),
    "systems": (SystemsStudy, systems_page),
}
"""By name: what reads and runs the study, and what writes its page."""


def parse() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m studies", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "status", "page", "tables"])
    parser.add_argument("study", choices=list(STUDIES), nargs="?", help="(default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="of run: trainings at once (default %(default)s)")
    parser.add_argument("--only", metavar="TEXT", default="", help="of run: only trainings whose title has this text")
    parser.add_argument("--at-most", metavar="N", type=int, help="of run: number of trainings")
    return parser.parse_args()


def main() -> None:
    """Do what the command line asks for."""
    options = parse()
    for name in [options.study] if options.study else STUDIES:
        make, pages = STUDIES[name]
        study = make()
        if options.command == "run":
            run_left(study.study, num_workers=options.jobs, only=options.only, at_most=options.at_most)
        elif options.command == "status":
            print(name, *study.study.status(), sep="\n  ")
        elif options.command == "tables":
            print(*pages.regions(study).values(), *(one.markdown() for one in pages.data(study).values()), sep="\n\n")
        else:
            page.write(pages.PAGE, pages.regions(study))
            page.write_data(pages.data(study))
            pages.draw(study)


if __name__ == "__main__":
    main()
