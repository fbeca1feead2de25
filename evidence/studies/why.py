"""Print the numbers of "Why some lag" in docs/evidence/binsgdm.md: single runs on MNIST, 4 ranks, seed 100.

OMP_NUM_THREADS=1 python -m evidence.studies.why              # a minute
"""

from typing import Any

import torch

from evidence.studies.candidates import PLAIN, strategy_of
from evidence.studies.run import Run, train, training_steps
from evidence.studies.study import round_5
from evidence.studies.tasks import TASKS, Trial

TASK = "mnist_5k"
SEED = 100
RANKS = 4
STEPS = 60
ADAM: Trial = {"optimizer": "adam", "lr": 0.003}
ONE_BIT_ADAM = {
    f"1-bit Adam, eps {eps:g}": {"optimizer": "one_bit_adam", "dense_share": 0.2, "eps": eps, "lr": 0.003}
    for eps in (1e-8, 1e-5, 1e-4)
}


def run_of(strategy: dict[str, Any], trial: Trial, **changes: Any) -> Run:
    """Return a run of the exploration."""
    options = {name: value for name, value in strategy.items() if name != "kind"}
    where: dict[str, Any] = {
        "study": "systems",
        "task": TASK,
        "ranks": RANKS,
        "ranks_per_node": 2,
        "seed": SEED,
        "split": "validation",
    }
    return Run(study="systems", system=strategy["kind"], options=options, trial=trial, **where, **changes)


def residuals(system: str) -> dict[int, float]:
    """Return by step the norm of rank 0's residual, in norms of its gradient, without a remedy, at a constant lr."""
    by_step = {}
    plain = f"{system}_plain" if f"{system}_plain" in PLAIN else system
    for step, _, ranks in training_steps(run_of(strategy_of(plain), ADAM, steps=STEPS), lambda *_: 1.0):
        residual = ranks.systems[0].residuals
        norm = torch.cat([residual[number] for number in range(len(residual))]).norm()
        by_step[step] = float(norm / ranks.gradients[0].norm())
    return by_step


def smallest_roots() -> list[float]:
    """Return quantiles of Adam's root of v, of elements that had a gradient, after the dense stage of 1-bit Adam."""
    run = run_of({"kind": "one_bit_adam"}, ONE_BIT_ADAM["1-bit Adam, eps 1e-08"])
    dense_steps = TASKS["systems"][TASK].dense_steps(run.trial)
    ranks = next(ranks for step, _, ranks in training_steps(run, lambda *_: 1.0) if step == dense_steps)
    states = ranks.optimizers[0].param_states()
    v = torch.cat([each.state["exp_avg_sq"].flatten() for each in states]) / (1 - 0.999**dense_steps)
    return [float(v[v > 0].sqrt().quantile(part)) for part in (0.001, 0.01, 0.1, 0.5)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for title, trial in ONE_BIT_ADAM.items():
        values = train(run_of({"kind": "one_bit_adam"}, trial))["values"]
        print(f"{title}: {round_5(values[-1])} after {TASKS['systems'][TASK].steps} steps")
    for system in ("marsit", "random_k", "top_k", "ms_top_k"):
        at = residuals(system)
        print(f"{system}: residual / gradient " + ", ".join(f"{at[step]:.1f} at {step}" for step in (1, 20, STEPS)))
    print("root of v, quantiles 0.1, 1, 10, 50 %: " + ", ".join(f"{root:.1e}" for root in smallest_roots()))
