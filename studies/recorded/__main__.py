"""Predict recorded steps that no strategy describes, then run them in the lab.

python -m studies.recorded run                # a quarter of an hour, root, a quiet machine
python -m studies.recorded run --folder out   # elsewhere than in tests/golden/lab_recorded
python -m studies.recorded gloo               # bytes and times of single collectives, in a minute
python -m studies.recorded page               # the tables and the figure of docs/evidence/lab-recorded.md
"""

import argparse
import tempfile
from pathlib import Path

from studies.recorded.rows import GOLDEN, SCRIPT, WAYS, LabStudy


def parse() -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.recorded", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "gloo", "page"])
    parser.add_argument("--folder", type=Path, default=GOLDEN, help="of the results (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    """Do what the command line asks for."""
    options = parse()
    if options.command == "page":
        from studies.recorded import recorded_page

        recorded_page.write(options.folder)
        return
    from studies.recorded import lab_runs

    if options.command == "gloo":
        lab_runs.gloo(options.folder)
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    from studies.recorded import forecast

    study = LabStudy(script=SCRIPT, ways=WAYS, predict=forecast.predict)
    with tempfile.TemporaryDirectory() as scratch:
        lab_runs.everything(study, options.folder, Path(scratch), print)


if __name__ == "__main__":
    main()
