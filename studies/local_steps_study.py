"""What steps that workers take alone do to the loss, on the tasks of the systems study.

python -m studies.local_steps_study search       # outer settings, on validation data
python -m studies.local_steps_study final        # three seeds, on test data
"""

import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from binsgdm.comm import Protocol, run_in_lockstep
from binsgdm.optimizers.outer_settings import OuterSettings
from binsgdm.optimizers.outer_steps import OuterSteps, averaged
from studies.run import ROOT, Columns, cosine, evaluate
from studies.tasks import TASKS, Task

RESULTS = ROOT / "studies" / "results" / "local_steps.json"
WORKERS = 4
SEARCH_SEED = 100
SEEDS = (0, 1, 2)
LRS: Mapping[str, tuple[float, ...]] = {
    "digits": (0.0066, 0.0132),
    "mnist_5k": (0.0087, 0.0173),
    "characters": (0.005, 0.01),
}
"""Adam's best lr in the systems study, and half of that."""
OUTER: tuple[dict[str, Any], ...] = (
    {"outer_lr": 0.7, "outer_momentum": 0.9},
    {"outer_lr": 0.7, "outer_momentum": 0.5},
)


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to train.

    Attributes:
        title: for people.
        inner_steps: between two exchanges; 1 averages gradients.
        outer: settings of DiLoCo; None averages parameters.
        tuned_as: the way whose search says what this one runs with; None for one of its own.
    """

    title: str
    inner_steps: int
    outer: dict[str, Any] | None = None
    tuned_as: str | None = None


WAYS: dict[str, Way] = {
    "adam": Way(title="DDP, Adam", inner_steps=1),
    "local_sgd_4": Way(title="local SGD 4", inner_steps=4),
    **{
        f"diloco_{steps}_{exchange}": Way(
            title=f"DiLoCo {steps}, {label}",
            inner_steps=steps,
            outer={"exchange": exchange},
            tuned_as=None if exchange != "int8" else f"diloco_{steps}_fp32",
        )
        for steps in (10, 30)
        for exchange, label in (("fp32", "fp32"), ("int8", "int8"), ("one_bit", "1 bit"))
    },
    "diloco_10_one_bit_tensor": Way(
        title="DiLoCo 10, 1 bit, a scale a tensor",
        inner_steps=10,
        outer={"exchange": "one_bit", "options": {"scale_per": "tensor"}},
        tuned_as="diloco_10_one_bit",
    ),
}


@dataclass
class Workers:
    """All workers in one process, by the protocols that ranks run; each with its own Adam.

    Attributes:
        task: what is learned.
        way: how.
        trial: lr of Adam, and settings of the outer step.
        seed: of weights, batches and draws.
    """

    task: Task
    way: Way
    trial: Mapping[str, Any]
    seed: int
    models: list[torch.nn.Module] = field(init=False)
    inner: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        first = self.task.network()
        self.models = [self.task.network() for _ in range(WORKERS)]
        for one in self.models:
            one.load_state_dict(first.state_dict())
        self.inner = [torch.optim.AdamW(one.parameters(), weight_decay=0.0) for one in self.models]
        self._parameters = [list(one.parameters()) for one in self.models]
        self._outer: list[OuterSteps] = []
        if self.way.outer is not None:
            outer = {name: value for name, value in self.trial.items() if name != "lr"} | self.way.outer
            settings = OuterSettings(inner_steps=self.way.inner_steps, seed=self.seed, **outer)
            self._outer = [
                OuterSteps(one, settings, rank=rank, world_size=WORKERS, ranks_per_worker=1)
                for rank, one in enumerate(self._parameters)
            ]

    def step(self, number: int, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Take a step, from 1, on the workers' shares of a batch."""
        lr = self.trial["lr"] * cosine(number - 1, self.task.steps, 0)
        for rank, (model, optimizer) in enumerate(zip(self.models, self.inner, strict=True)):
            optimizer.param_groups[0]["lr"] = lr
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[rank]).flatten(0, -2), targets[rank].flatten()).backward()
        if self.way.inner_steps == 1:
            self._average_gradients()
        for optimizer in self.inner:
            optimizer.step()
        with torch.no_grad():
            self._exchange(number)

    def _average_gradients(self) -> None:
        for alike in zip(*self._parameters, strict=True):
            mean = torch.stack([one.grad for one in alike if one.grad is not None]).mean(0)
            for one in alike:
                one.grad = mean

    def _exchange(self, number: int) -> None:
        if self.way.inner_steps == 1 or number % self.way.inner_steps:
            return
        if not self._outer:
            run_in_lockstep([averaged(one, "fp32", WORKERS) for one in self._parameters], 1)
            return
        pairs = [(one, one.fragments[0]) for one in self._outer]
        means = run_in_lockstep([one.mean(part, part.pseudo_gradient(), number) for one, part in pairs], 1)
        ends: list[Protocol] = [one.finish(part, mean) for (one, part), mean in zip(pairs, means, strict=True)]
        run_in_lockstep(ends, 1)


def trained(task_name: str, way: str, trial: Mapping[str, Any], seed: int, split: str) -> Columns:
    """Train once; return the evaluations of the first worker's model."""
    task = TASKS["systems"][task_name]
    workers = Workers(task, WAYS[way], trial, seed)
    draws = torch.Generator().manual_seed(seed)
    inputs, targets = task.data("train")
    curve: Columns = {"steps": [], "values": []}
    for step in range(1, task.steps + 1):
        # The same batches as in the systems study: worker r of R has the samples r, r + R and so on.
        shares = torch.randint(len(inputs), (task.batch,), generator=draws).view(-1, WORKERS).T
        workers.step(step, inputs[shares], targets[shares])
        if task.is_evaluated(step):
            curve["steps"].append(step)
            curve["values"].append(evaluate(task, workers.models[0], split)["values"])
    return curve


def trials(task: str, way: str) -> Iterator[dict[str, Any]]:
    """Yield what is tried for a way."""
    if way == "adam":
        yield {"lr": LRS[task][-1]}
        return
    for lr, outer in itertools.product(LRS[task], OUTER if WAYS[way].outer is not None else ({},)):
        yield {"lr": lr, **outer}


def read() -> dict[str, Any]:
    """Return what there is."""
    found: dict[str, Any] = {"trials": [], "curves": []}
    if RESULTS.exists():
        found = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def write(found: Mapping[str, Any]) -> None:
    """Keep the trials and the curves, a line each."""
    parts = [f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]" for name, rows in found.items()]
    RESULTS.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def rounded(value: float | None) -> float | None:
    """Return five digits, which is more than seeds have alike."""
    return None if value is None else float(f"{value:.5g}")


def best(found: Mapping[str, Any], task: str, way: str) -> dict[str, Any]:
    """Return the trial of the least validation loss at the end."""
    name = WAYS[way].tuned_as or way
    own = [row for row in found["trials"] if (row["task"], row["way"]) == (task, name)]
    trial: dict[str, Any] = min(own, key=lambda row: float("inf") if row["loss"] is None else row["loss"])["trial"]
    return trial


def search() -> None:
    """Try what is not tried yet."""
    found = read()
    for task in TASKS["systems"]:
        for way in (one for one in WAYS if WAYS[one].tuned_as is None):
            for trial in trials(task, way):
                key = {"task": task, "way": way, "trial": trial}
                if any(key.items() <= row.items() for row in found["trials"]):
                    continue
                curve = trained(task, way, trial, SEARCH_SEED, "validation")
                found["trials"].append({**key, "loss": rounded(curve["values"][-1])})
                write(found)


def final() -> None:
    """Train what is not trained yet, seed by seed."""
    found = read()
    for seed, task, way in itertools.product(SEEDS, TASKS["systems"], WAYS):
        key = {"task": task, "way": way, "seed": seed}
        if any(key.items() <= row.items() for row in found["curves"]):
            continue
        curve = trained(task, way, best(found, task, way), seed, "test")
        found["curves"].append({**key, "steps": curve["steps"], "values": [rounded(one) for one in curve["values"]]})
        write(found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"search": search, "final": final}[sys.argv[1]]()
