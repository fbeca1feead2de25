"""What to use for two models over bandwidth, nodes and accumulation: what `simnet advise` finds, kept as one file."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from simnet.analysis import convergence
from simnet.analysis.advice import Advice, RankedSystem
from simnet.analysis.advise import advise
from simnet.analysis.tune import chosen
from simnet.engine.scenario import load_experiment
from simnet.strategies.base import Mathematics

EXPERIMENT = "what_to_use"
MODELS = {"llama_1b": "1.3 B", "llama_7b": "6.7 B"}
NODES, MICRO_BATCHES = (4, 16, 64), (1, 4, 16)
NAMES = (
    "FSDP", "HSDP", "ZeRO-2", "ByteGrad", "HSDP + int8", "BinSGDM", "HSDP + BinSGDM", "DiLoCo 50",
    "streaming DiLoCo 100", "local SGD 8",
)  # fmt: skip
"""What teams weigh: of compression the systems of this project, which are the fastest of those that reached targets."""
GROUPS: tuple[Mathematics, ...] = get_args(Mathematics)
RESULTS = Path(__file__).parent / "results" / "what_to_use.json"


def write(path: Path = RESULTS) -> None:
    """Ask for every model, number of nodes and micro-batches; write what was found."""
    path.write_text(json.dumps(list(_rows()), indent=1) + "\n", encoding="utf-8")


def _rows() -> Iterator[dict[str, Any]]:
    for model in MODELS:
        for nodes in NODES:
            for micro_batches in MICRO_BATCHES:
                print(f"{model} on {nodes} nodes, {micro_batches} micro-batches a step", flush=True)
                yield row(model, nodes, micro_batches)


def row(model: str, nodes: int, micro_batches: int, **settings: Any) -> dict[str, Any]:
    """Return the best of each group over the bandwidth of a NIC, and how sure that is at the cluster's own."""
    settings |= {"workload": model, "cluster.num_nodes": nodes, "run.grad_accumulation": micro_batches}
    asked = load_experiment(EXPERIMENT, settings).at({})
    found = advise(asked, names=chosen(NAMES), trainings=convergence.shipped())
    rates = next([rate for rate, _ in one.curve] for one in found.others if one.curve)
    return {
        "model": model,
        "nodes": nodes,
        "micro_batches": micro_batches,
        "baseline": found.baseline,
        "baseline_s": found.baseline_system.iteration_s,
        "gbit_per_s": [rate * 8 / 1e9 for rate in rates],
        "best": {group: _best(found, group, len(rates)) for group in GROUPS},
        "choices": {one.mathematics: _choice(one.system) for one in found.choices},
    }


def _best(found: Advice, group: Mathematics, count: int) -> list[dict[str, Any]]:
    """Return the fastest of a group at each bandwidth that fits the GPU, with its speedup over the baseline there."""
    rows = [one for one in found.others if one.mathematics == group and one.may_fit]
    best: list[dict[str, Any]] = []
    for place in range(count):
        fastest = max(rows, key=lambda one, place=place: one.curve[place][1], default=None)  # type: ignore[misc]
        name, speedup = (fastest.name, fastest.curve[place][1]) if fastest else ("", 0.0)
        # The baseline stands at 1 at every bandwidth.
        is_baseline = group == found.baseline_system.mathematics and speedup < 1
        best.append({"name": found.baseline, "speedup": 1.0} if is_baseline else {"name": name, "speedup": speedup})
    return best


def _choice(system: RankedSystem) -> dict[str, Any]:
    return {
        "label": system.label,
        "step_s": system.iteration_s,
        "speedup": system.speedup.value,
        "interval": system.speedup.interval,
        "verdict": system.verdict,
        "memory_bytes": system.memory.total_bytes if system.memory else None,
    }


def read(path: Path = RESULTS) -> list[dict[str, Any]]:
    """Return what was found."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def gains(row: dict[str, Any], group: Mathematics) -> list[float]:
    """Return the speedup of a group's best over the best that changes nothing in training, at each bandwidth."""
    plain = row["best"]["same"]
    return [one["speedup"] / same["speedup"] for one, same in zip(row["best"][group], plain, strict=True)]


def pays_up_to(rates: Sequence[float], gains_: Sequence[float], least: float) -> float | None:
    """Return the bandwidth up to which a gain is at least so large, between two by a line over the logarithm.

    Returns:
        None where it never is; infinity where it is at the highest bandwidth.

    Example:
        >>> [pays_up_to([10, 1000], found, 1.1) for found in ([1.4, 0.9], [1.4, 1.2], [1, 1])]
        [158.48931924611117, inf, None]
    """
    last = max((place for place, one in enumerate(gains_) if one >= least), default=None)
    if last is None:
        return None
    if last == len(rates) - 1:
        return float("inf")
    part = (gains_[last] - least) / (gains_[last] - gains_[last + 1])
    return float(rates[last] * (rates[last + 1] / rates[last]) ** part)
