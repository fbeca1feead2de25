"""Predict, then run in the lab; needs root and a quiet machine, uneven also iperf3.

python -m studies.lab run recorded                # steps that no strategy describes; a quarter of an hour
python -m studies.lab run alternatives            # sharding, local steps and 8 bits; a quarter of an hour
python -m studies.lab run uneven                  # nodes that are not alike; three quarters of an hour; resumes
python -m studies.lab run uneven --folder out     # elsewhere than in tests/golden/lab_uneven
python -m studies.lab gloo recorded               # bytes and times of single collectives, in a minute
python -m studies.lab page recorded               # the tables and the figure of docs/evidence/simulator.md
"""

import argparse
from importlib import import_module
from pathlib import Path

from studies import page


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.lab", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["run", "gloo", "page"])
    parser.add_argument("campaign", choices=["recorded", "alternatives", "uneven"])
    parser.add_argument("--folder", type=Path, help="of the results (default: tests/golden/lab_CAMPAIGN)")
    options = parser.parse_args()
    module = import_module(f"studies.lab.{options.campaign}")
    folder = options.folder or module.CAMPAIGN.golden
    if options.command == "page":
        page.write(module.CAMPAIGN.page, module.regions(folder))
        page.write_data(module.data(folder))
        module.CAMPAIGN.figure.write_bytes(module.CAMPAIGN.picture(folder))
        return
    folder.mkdir(parents=True, exist_ok=True)
    (module.CAMPAIGN.run if options.command == "run" else module.gloo)(folder, print)


if __name__ == "__main__":
    main()
