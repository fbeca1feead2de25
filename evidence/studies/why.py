"""Print the numbers of "Why some lag" in docs/evidence/binsgdm.md: single runs on MNIST, 4 ranks, seed 100.

OMP_NUM_THREADS=1 python -m evidence.studies.why              # about two minutes
"""

from typing import Any

import torch

from evidence.studies.candidates import LOCAL_MOMENTUM, PLAIN, WARMUP_STEPS, strategy_of
from evidence.studies.run import Run, train, training_steps
from evidence.studies.study import round_5
from evidence.studies.tasks import TASKS, Trial

TASK = "mnist_5k"
SEED = 100
RANKS = 4
STEPS = 60
ADAM: Trial = {"optimizer": "adam", "lr": 0.003}
VARIANTS: dict[str, tuple[dict[str, Any], Trial]] = {
    **{
        f"Marsit, synchronizing every {period or 'never'}, {part:g} of the residual": (
            {"kind": "marsit", "sync_period": period, "residual_decay": part},
            {"optimizer": "adam", "lr": 0.01},
        )
        for period, part in ((100, 1.0), (10, 1.0), (None, 1.0), (100, 0.5), (100, 0.0))
    },
    **{
        f"Top-k, {title}": (
            {"kind": "top_k", "ratio": 0.01, **options},
            {"optimizer": "adam", "beta1": beta1, "lr": 0.01},
        )
        for title, beta1, options in (
            ("plain", 0.9, {}),
            ("warm-up", 0.9, {"warmup_steps": WARMUP_STEPS}),
            ("warm-up, no momentum at all", 0.0, {"warmup_steps": WARMUP_STEPS}),
            ("local momentum", 0.0, {**LOCAL_MOMENTUM, "masks_momentum": False}),
            ("masked local momentum", 0.0, LOCAL_MOMENTUM),
            ("masked local momentum, warm-up", 0.0, {**LOCAL_MOMENTUM, "warmup_steps": WARMUP_STEPS}),
        )
    },
    **{
        f"EF-SignSGD, a scale a {scale}, {title}": (
            {"kind": "ef_sign_sgd", "scale_per": scale, **options},
            {"optimizer": "adam", "beta1": 0.0 if options else 0.9, "lr": 0.01},
        )
        for scale in ("tensor", "bucket")
        for title, options in {"plain": {}, "local momentum": LOCAL_MOMENTUM}.items()
    },
    **{
        f"Random-k, {100 * ratio:g} %": ({"kind": "random_k", "ratio": ratio}, {"optimizer": "adam", "lr": 0.00548})
        for ratio in (0.1, 0.3)
    },
    "Random-k, 10 %, masked local momentum, warm-up": (
        {"kind": "random_k", "ratio": 0.1, **LOCAL_MOMENTUM, "warmup_steps": WARMUP_STEPS},
        {"optimizer": "adam", "beta1": 0.0, "lr": 0.01},
    ),
    **{
        f"1-bit Adam, eps {eps:g}": (
            {"kind": "one_bit_adam"},
            {"optimizer": "one_bit_adam", "dense_share": 0.2, "eps": eps, "lr": 0.003},
        )
        for eps in (1e-8, 1e-5, 1e-4)
    },
    **{
        f"1-bit Adam, floor {floor:g}" + " and scaled momenta" * scales: (
            {"kind": "one_bit_adam"},
            {
                "optimizer": "one_bit_adam",
                "dense_share": 0.2,
                "variance_floor": floor,
                "scales_momenta": scales,
                "lr": 0.003,
            },
        )
        for floor, scales in ((1e-4, False), (1e-3, False), (1e-2, False), (1e-3, True))
    },
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
    found = {}
    plain = f"{system}_plain" if f"{system}_plain" in PLAIN else system
    for step, _, ranks in training_steps(run_of(strategy_of(plain), ADAM, steps=STEPS), lambda *_: 1.0):
        residual = ranks.systems[0].residuals
        norm = torch.cat([residual[number] for number in range(len(residual))]).norm()
        found[step] = float(norm / ranks.gradients[0].norm())
    return found


def smallest_roots() -> list[float]:
    """Return quantiles of Adam's root of v, of elements that had a gradient, after the dense stage of 1-bit Adam."""
    run = run_of(*VARIANTS["1-bit Adam, eps 1e-08"])
    dense_steps = TASKS["systems"][TASK].dense_steps(run.trial)
    ranks = next(ranks for step, _, ranks in training_steps(run, lambda *_: 1.0) if step == dense_steps)
    states = ranks.optimizers[0].param_states()
    v = torch.cat([one.state["exp_avg_sq"].flatten() for one in states]) / (1 - 0.999**dense_steps)
    return [float(v[v > 0].sqrt().quantile(part)) for part in (0.001, 0.01, 0.1, 0.5)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for title, variant in VARIANTS.items():
        values = train(run_of(*variant))["values"]
        print(f"{title}: {round_5(values[-1])} after {TASKS['systems'][TASK].steps} steps")
    for system in ("marsit", "ef_sign_sgd", "one_bit_sgd", "random_k", "top_k", "power_sgd", "grad_zip"):
        at = residuals(system)
        print(f"{system}: residual / gradient " + ", ".join(f"{at[step]:.1f} at {step}" for step in (1, 20, STEPS)))
    print("root of v, quantiles 0.1, 1, 10, 50 %: " + ", ".join(f"{root:.1e}" for root in smallest_roots()))
