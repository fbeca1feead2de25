"""Predict training on nodes that are not alike, then run it in the lab.

python -m studies.uneven run                # three quarters of an hour, root, a quiet machine, iperf3; resumes
python -m studies.uneven run --folder out   # elsewhere than in tests/golden/lab_uneven
python -m studies.uneven page               # the tables and the figure of docs/evidence/lab-uneven.md
"""

import argparse
from pathlib import Path

from studies.uneven.rows import GOLDEN


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.uneven", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("--folder", type=Path, default=GOLDEN, help="of the results (default: %(default)s)")
    options = parser.parse_args()
    if options.command == "page":
        from studies.uneven import uneven_page

        uneven_page.write(options.folder)
        return
    from studies.uneven import lab_runs

    options.folder.mkdir(parents=True, exist_ok=True)
    lab_runs.everything(options.folder, print)


if __name__ == "__main__":
    main()
