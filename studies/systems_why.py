"""Print the tables of "Why" in docs/evidence/systems-training.md: single runs on MNIST, 4 ranks, seed 100.

OMP_NUM_THREADS=1 python -m studies.systems_why              # about two minutes
"""

from typing import Any

import torch

from studies.contenders import strategy_of
from studies.plans import Plan, stack_of, train
from studies.stacked import AveragedGradients, rank_gradients, systems_of
from studies.tasks import TASKS, Trial

TASK = "mnist_5k"
SEED = 100
RANKS = 4
STEPS = 60
ADAM: Trial = {"optimizer": "adam", "lr": 0.003}
VARIANTS: dict[str, tuple[dict[str, Any], Trial]] = {
    **{
        f"Marsit, synchronizing every {period or 'never'}": (
            {"kind": "marsit", "sync_period": period},
            {"optimizer": "adam", "lr": 0.01},
        )
        for period in (100, 10, None)
    },
    **{
        f"Random-k, {100 * ratio:g} %": ({"kind": "random_k", "ratio": ratio}, {"optimizer": "adam", "lr": 0.00548})
        for ratio in (0.1, 0.3)
    },
    **{
        f"1-bit Adam, eps {eps:g}": (
            {"kind": "one_bit_adam"},
            {"optimizer": "one_bit_adam", "dense_share": 0.2, "eps": eps, "lr": 0.003},
        )
        for eps in (1e-8, 1e-5, 1e-4)
    },
}


def plan(strategy: dict[str, Any], trial: Trial) -> Plan:
    """Return a run of the exploration."""
    return Plan(task=TASK, strategy=strategy, trial=trial, ranks=RANKS, seed=SEED, split="validation")


def residuals(system: str) -> dict[int, float]:
    """Return by step how many times a gradient's norm the residual of rank 0 has."""
    task = TASKS[TASK]
    torch.manual_seed(SEED)
    model = task.network()
    options = {name: value for name, value in strategy_of(system).items() if name != "kind"}
    ends = systems_of(system, options, RANKS)
    optimizer = torch.optim.Adam(model.parameters(), lr=ADAM["lr"])
    stack = AveragedGradients(optimizer, ends, ranks_per_node=2, seed=SEED)
    inputs, targets = task.data("train")
    draws = torch.Generator().manual_seed(SEED)
    found = {}
    for step in range(1, STEPS + 1):
        shares = torch.randint(len(inputs), (task.batch,), generator=draws).view(-1, RANKS).T
        gradients = rank_gradients(model, inputs[shares], targets[shares])
        stack.step(gradients)
        kept = ends[0].residuals  # type: ignore[attr-defined]
        norm = torch.cat([kept[number] for number in range(len(kept))]).norm()
        found[step] = float(norm / gradients[0].norm())
    return found


def smallest_roots() -> list[float]:
    """Return quantiles of Adam's root of v, of elements that had a gradient, after the dense stage of 1-bit Adam."""
    task = TASKS[TASK]
    given = plan(*VARIANTS["1-bit Adam, eps 1e-08"])
    torch.manual_seed(SEED)
    model = task.network()
    stack: Any = stack_of(given, model)
    inputs, targets = task.data("train")
    draws = torch.Generator().manual_seed(SEED)
    steps = task.dense_steps(given.trial)
    for _ in range(steps):
        shares = torch.randint(len(inputs), (task.batch,), generator=draws).view(-1, RANKS).T
        stack.step(rank_gradients(model, inputs[shares], targets[shares]))
    param_states = stack.optimizers[0].param_states()
    v = torch.cat([param_state.state["exp_avg_sq"].flatten() for param_state in param_states]) / (1 - 0.999**steps)
    return [float(v[v > 0].sqrt().quantile(part)) for part in (0.001, 0.01, 0.1, 0.5)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for title, variant in VARIANTS.items():
        values = train(plan(*variant))["values"]
        print(f"{title}: {values[-1]} after {TASKS[TASK].steps} steps")
    for system in ("marsit", "ef_sign_sgd", "one_bit_sgd", "random_k", "top_k", "power_sgd", "grad_zip"):
        at = residuals(system)
        print(f"{system}: residual / gradient " + ", ".join(f"{at[step]:.1f} at {step}" for step in (1, 20, STEPS)))
    print("root of v, quantiles 0.1, 1, 10, 50 %: " + ", ".join(f"{root:.1e}" for root in smallest_roots()))
