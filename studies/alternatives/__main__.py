"""Predict what teams choose between, then run it in the lab.

python -m studies.alternatives run                # a quarter of an hour, root, a quiet machine
python -m studies.alternatives run --folder out   # elsewhere than in tests/golden/lab_alternatives
python -m studies.alternatives page               # the tables and the figure of docs/evidence/lab-alternatives.md
"""

import argparse
import tempfile
from pathlib import Path

from studies.alternatives import forecast


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.alternatives", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "page"])
    parser.add_argument("--folder", type=Path, default=forecast.GOLDEN, help="of the results (default: %(default)s)")
    options = parser.parse_args()
    if options.command == "page":
        from studies.alternatives import alternatives_page

        alternatives_page.write(options.folder)
        return
    from studies.recorded import lab_runs

    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        lab_runs.everything(forecast.study(), options.folder, Path(scratch), print)


if __name__ == "__main__":
    main()
