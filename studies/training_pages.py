"""`python studies/training_pages.py CHECKOUT`: print what is generated of the training pages.

PYTHONPATH is the checkout. The tables come from the committed results: nothing is trained, no file is written.
"""

import sys
from pathlib import Path


def main(checkout: Path) -> None:
    """Print the part of docs/evidence/systems-training.md, then the tables of docs/evidence/training.md."""
    sys.path.insert(0, str(checkout))
    from studies import compare, systems_page
    from studies.written import Written

    print(systems_page.generated(Written()))
    tables = compare.searched(), compare.verdicts(), compare.explored(), *map(compare.scaled, ("digits", "lm"))
    for table in (*tables, compare.varied("digits")):
        print(table.markdown(), "", sep="\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
