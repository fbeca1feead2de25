"""The memory of a GPU in docs/evidence/simulator.md: `python -m studies.memory_page` measures, and writes it.

What was measured is in studies/results/memory.json; what is predicted is made anew for the page.
"""

import json
from pathlib import Path

from simnet.report.table import Table
from simnet.workload.gpu_memory import GpuMemory
from studies import page
from studies.measured_memory import CASES, MeasuredMemory, MemoryCase, measure, predict
from studies.page import SIMULATOR

PAGE = SIMULATOR
RESULTS = Path(__file__).parent / "results" / "memory.json"
MIB = 2.0**20
COLUMNS = ("training", "parameters", "state", "all between steps", "forward adds", "peak", "error")


def measured() -> dict[str, MeasuredMemory]:
    """Return what was measured, by title."""
    return {title: MeasuredMemory(**found) for title, found in json.loads(RESULTS.read_text(encoding="utf-8")).items()}


def regions() -> dict[str, str]:
    """Return the generated part of the page."""
    found = measured()
    pairs = [(case, predict(case), found[case.title]) for case in CASES if case.title in found]
    errors = [abs(error(predicted, real)) for _, predicted, real in pairs]
    summary = (
        f"{len(pairs)} ways to train: the peak is predicted within {max(errors):.1%} of the measured one, "
        f"{sum(errors) / len(errors):.1%} off on average.".replace("%", " %")
    )
    return {"memory": summary}


def data() -> dict[str, Table]:
    """Return the table that the page links to, by name."""
    found = measured()
    rows = [_row(case, predict(case), found[case.title]) for case in CASES if case.title in found]
    return {"memory": Table(list(COLUMNS), rows)}


def error(predicted: GpuMemory, real: MeasuredMemory) -> float:
    """Return how far the predicted peak is off, as a part of the measured one."""
    return predicted.total_bytes / real.peak - 1


def _row(case: MemoryCase, predicted: GpuMemory, real: MeasuredMemory) -> list[str]:
    state = predicted.optimizer + predicted.residuals
    between = predicted.parameters + state + predicted.buckets
    forward = predicted.activations + predicted.gathered
    pairs = [
        (predicted.parameters, real.parameters),
        (state, real.state),
        (between, real.between_steps),
        (forward, real.forward),
        (predicted.total_bytes, real.peak),
    ]
    cells = [f"{ours / MIB:.1f} / {theirs / MIB:.1f}" for ours, theirs in pairs]
    return [case.title, *cells, f"{error(predicted, real):+.1%}".replace("%", " %")]


def main() -> None:
    """Measure all, and write the page."""
    found = {case.title: measure(case)._asdict() for case in CASES}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    page.write(PAGE, regions())
    page.write_data(data())


if __name__ == "__main__":
    main()
