"""The final trainings of the study of local steps as convergence files: python -m studies.local_steps_curves.

Tasks, batches, seeds and targets are those of the systems study, whose files stand beside these.
"""

import json
from typing import Any

from studies.local_steps_study import SEEDS, WAYS, WORKERS, Way, best, read
from studies.run import ROOT

CURVES = ROOT / "scenarios" / "convergence"
TASKS = ("characters", "digits", "mnist_5k")
KEPT = ("format", "version", "task", "metric", "unit", "better", "batch", "num_parameters", "target")
EXCHANGES = {
    "fp32": "",
    "int8": "byte_grad:topology=scatter_reduce",
    "one_bit": "ef_sign_sgd:topology=scatter_reduce,scale_per=bucket",
}
"""What simnet calls the exchanges of binsgdm.DiLoCo."""


def document(task: str) -> dict[str, Any]:
    """Return the convergence file of a task: every way that simnet has a strategy for."""
    found, known = read(), json.loads((CURVES / f"{task}.json").read_text(encoding="utf-8"))
    ways = {name: way for name, way in WAYS.items() if not (way.outer or {}).get("options")}
    curves = [
        {"system": one["way"], "ranks": WORKERS, **{key: one[key] for key in ("seed", "steps", "values")}}
        for one in found["curves"]
        if one["task"] == task and one["way"] in ways
    ]
    head = {key: known[key] for key in KEPT}
    return {
        **head,
        "task": f"{known['task']}, local steps",
        "source": f"python -m studies.local_steps_study final: {WORKERS} workers in one process by the protocols of "
        f"binsgdm, CPU; {len(SEEDS)} seeds; evaluated on test data",
        "systems": {
            name: {
                "title": way.title,
                "strategy": strategy(way),
                "optimizer": "adam",
                "settings": best(found, task, name),
            }
            for name, way in ways.items()
        },
        "curves": curves,
    }


def strategy(way: Way) -> dict[str, Any]:
    """Return the strategy of a way, each rank a worker."""
    if way.inner_steps == 1:
        return {"kind": "all_reduce", "algorithm": "auto"}
    if way.outer is None:
        return {"kind": "local_sgd", "inner_steps": way.inner_steps}
    given = {"kind": "diloco", "inner_steps": way.inner_steps, "workers": "rank"}
    exchange = EXCHANGES[way.outer["exchange"]]
    return {**given, "exchange_by": exchange} if exchange else given


def write() -> None:
    """Write a file a task, a curve a line."""
    for task in TASKS:
        found = document(task)
        curves = ",\n".join(json.dumps(one) for one in found.pop("curves"))
        head = json.dumps(found, indent=1)[:-2]
        text = f'{head},\n "curves": [\n{curves}\n ]\n}}\n'
        (CURVES / f"{task}_local_steps.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
