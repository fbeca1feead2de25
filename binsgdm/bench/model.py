"""Time forward, backward with the moment at which each gradient is ready, and optimizers, without any message.

Of one's own models, and on a card of all shipped models, in every precision at three batches each.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from binsgdm.bench.record import Bench, Record
from binsgdm.bench.timing import WARM_UP, Stopwatch, Trial, trial_of
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.recording.model_sources import SHIPPED, Definition, build, what_is_missing
from binsgdm.recording.model_zoo import NAMES, SEED, Task

LR = 1e-6  # so small that repeated steps do not change the model


def measure(bench: Bench, *, models: Sequence[str], batch: int, dtype: str = "float32") -> None:
    """Add forward, backward, every gradient and both optimizers of each model.

    All ranks measure at the same time, each with a model of its own as `model_sources.build` takes it, at a batch a
    rank. The rule stops forward and backward together, and each optimizer.
    """
    for part, model in bench.each(models):
        task = build(model, batch, bench.ranks.device, getattr(torch, dtype))
        _measure_task(part, task, {"model": model, "batch": batch, "dtype": dtype})


def _measure_task(bench: Bench, task: Task, labels: dict[str, Any]) -> None:
    device = bench.ranks.device
    gradients = Gradients(task.module, device)
    trained = [parameter for parameter in task.module.parameters() if parameter.requires_grad]
    trials = {
        "": pass_trial(task.module, partial(task.loss_of, task.module), gradients, device),
        "adamw": trial_of(torch.optim.AdamW(trained, lr=LR, fused=True).step, device),
        "binsgdm": trial_of(BinSGDM(trained, lr=LR).step, device),
    }
    measured = bench.interleave(trials)
    add_passes(bench.record, gradients, measured.pop(""), labels)
    for name, rows in measured.items():
        bench.record.add("model", "optimizer", [row[0] for row in rows], optimizer=name, **labels)


def add_passes(record: Record, gradients: "Gradients", rows: Sequence[Sequence[float]], labels: dict[str, Any]) -> None:
    """Add forward, backward and every gradient, from the repetitions of a trial of `pass_trial`."""
    # Scaled so that forward and backward are as long as the slowest rank's both: of each phase the slowest rank counts,
    # and that may be another one each time.
    scaled = [[row[0] / (row[1] + row[2]) * value for value in row[1:]] for row in rows]
    forward, backward, *ready_s = zip(*scaled, strict=True)
    record.add("model", "forward", forward, **labels)
    record.add("model", "backward", backward, **labels)
    ready = list(zip(gradients.names, gradients.shapes, ready_s, strict=True))
    for order, (name, shape, values) in enumerate(sorted(ready, key=lambda gradient: median(gradient[2]))):
        sizes: dict[str, Any] = {"num_elements": math.prod(shape), "shape": "x".join(map(str, shape))}
        record.add("model", "gradient_ready", values, tensor=name, order=order, **sizes, **labels)


class Gradients:
    """Notes when backward has each gradient ready; the trained parameters, in the order of the model."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        self.names = tuple(trained)
        self.shapes = tuple(tuple(parameter.shape) for parameter in trained.values())
        self.stamps: dict[str, Any] = {}
        self._watch = Stopwatch(device)
        for name, parameter in trained.items():
            parameter.register_post_accumulate_grad_hook(partial(self._note, name))  # type: ignore[no-untyped-call]

    def in_order(self) -> list[Any]:
        """Return the moments of the last backward; that of one without a gradient is the last of all."""
        last = list(self.stamps.values())[-1]
        return [self.stamps.get(name, last) for name in self.names]

    def _note(self, name: str, _parameter: torch.Tensor) -> None:
        self.stamps[name] = self._watch.stamp()


def pass_trial(
    module: nn.Module, forward: Callable[[], torch.Tensor], gradients: Gradients, device: torch.device
) -> Trial:
    """Return a trial: forward and backward together, each of them, and each gradient since backward began."""
    watch = Stopwatch(device)

    def trial() -> list[float]:
        module.zero_grad(set_to_none=True)
        gradients.stamps.clear()
        marks = [watch.stamp()]
        loss = forward()
        marks.append(watch.stamp())
        loss.backward()  # type: ignore[no-untyped-call]
        marks.append(watch.stamp())
        passes = watch.phases(marks)
        return [sum(passes), *passes, *watch.since(marks[1], gradients.in_order())]

    return trial


AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = ("bf16", "tf32", "fp16", "fp32")
"""In the order in which they are measured."""
FIRST_WITH_TF32_AND_BF16 = (8, 0)  # compute capability of A100
MAX_REPETITIONS = 20  # a file with 13,000 gradients stays below 16 MB
MAX_SECONDS = 1.0  # of one model in one precision at one batch


def refusal(precision: str, device: torch.device) -> str:
    """Say in a sentence why a device has no such precision, or return an empty string."""
    if device.type != "cuda":
        wanted = {"tf32": "tf32 is a mode of NVIDIA's tensor cores", "fp16": "fp16 is slow on a CPU"}
        return f"{wanted[precision]}: left out on a CPU" if precision in wanted else ""
    if precision == "tf32" and torch.version.hip is not None:
        return "tf32 is a mode of NVIDIA's tensor cores: left out"
    capability = torch.cuda.get_device_capability(device)
    if precision in {"tf32", "bf16"} and torch.version.hip is None and capability < FIRST_WITH_TF32_AND_BF16:
        return f"{precision} needs compute capability 8.0, and the card has {capability[0]}.{capability[1]}: left out"
    return ""


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which a forward runs in a precision."""
    dtype = AUTOCAST.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


@contextmanager
def matrix_products(precision: str) -> Iterator[None]:
    """Let fp32 matrix products and convolutions round to tf32 if that is the precision, else not."""
    places: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [place.allow_tf32 for place in places]
    for place in places:
        place.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        for place, allowed in zip(places, before, strict=True):
            place.allow_tf32 = allowed


def measure_card(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add every shipped model in every precision at each of its batches; small models for a quick look."""
    measure_models(bench, small_models() if quick else SHIPPED, seconds=seconds)


def measure_models(bench: Bench, models: Sequence[Definition], *, seconds: float) -> None:
    """Add every model in every precision at each of its batches, and fused AdamW on its parameters once.

    Parameters are fp32, in PyTorch's default layout and with cuDNN's default choice of algorithms; bf16 and fp16 are
    autocast. Where there is tf32, fp32 without it is measured at the batch in the middle alone. On a GPU convolutional
    models are measured with channels last as well.

    A model whose library is missing, and what does not fit into its share of `seconds`, is left out with a note.
    """
    rule, device = bench.stop_rule, bench.ranks.device
    rule = replace(rule, max_repetitions=min(rule.max_repetitions, MAX_REPETITIONS))
    bench = replace(bench, stop_rule=rule).within(MAX_SECONDS)
    refusals = {precision: refusal(precision, device) for precision in PRECISIONS}
    for reason in filter(None, refusals.values()):
        bench.record.note(reason)
    usable = [precision for precision in PRECISIONS if not refusals[precision]]
    end_s = time.perf_counter() + seconds
    for count, (part, model) in enumerate(bench.each(models)):
        if missing := what_is_missing(model):
            part.record.note(f"{model.name}: {model.library} is missing: {missing}")
            continue
        share_s = (end_s - time.perf_counter()) / (len(models) - count)
        try:
            _measure_model(part, model, usable, time.perf_counter() + share_s)
        except Exception as error:  # libraries change; the other models are still worth measuring
            detail = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            bench.record.check(f"{model.name} can be measured", passed=False, detail=detail)
        _release(device)


def _release(device: torch.device) -> None:
    """Give the memory of what is not used any more back to the GPU."""
    if device.type == "cuda":
        gc.collect()  # a module and its hooks refer to each other
        torch.cuda.empty_cache()


class _PassCase(NamedTuple):
    """What a model is measured in; the layout is "channels_last", or empty for PyTorch's default."""

    precision: str
    batch: int
    layout: str

    @property
    def text(self) -> str:
        return f"{self.precision} at {self.batch}{f' with {self.layout}' if self.layout else ''}"

    def labels(self, model: Definition) -> dict[str, Any]:
        labels = {"model": model.name, "batch": self.batch, "dtype": "float32", "precision": self.precision}
        return labels | ({"layout": self.layout} if self.layout else {})


def _cases(model: Definition, precisions: Sequence[str], device: torch.device) -> Iterator[_PassCase]:
    """Yield what a model is measured in; the largest batches as far as memory and time allow."""
    for layout in ("", "channels_last") if model.is_convolutional and device.type == "cuda" else ("",):
        for precision in precisions:
            # Nobody trains with fp32 where there is tf32: one batch tells enough.
            is_rare = precision == "fp32" and "tf32" in precisions
            for batch in model.batches[len(model.batches) // 2 :][:1] if is_rare else model.batches:
                yield _PassCase(precision, batch, layout)


def _measure_model(bench: Bench, model: Definition, precisions: Sequence[str], end_s: float) -> None:
    """Add all of a model that can be measured until a moment, and a note for what cannot."""
    device = bench.ranks.device
    torch.manual_seed(SEED)
    with torch.device(device):
        module = model.make("sdpa")
    module.train()
    gradients = Gradients(module, device)
    measured_s: dict[_PassCase, float] = {}
    left_out: dict[str, list[str]] = {"out of memory": [], "no time was left": []}
    for part, case in bench.each(list(_cases(model, precisions, device))):
        # How long the fewest repetitions will take, from a smaller batch; 0 where that is not known.
        known = [
            pass_s * case.batch / other.batch
            for other, pass_s in measured_s.items()
            if other._replace(batch=0) == case._replace(batch=0)
        ]
        expected_s = (WARM_UP + bench.stop_rule.min_repetitions) * (known[-1] if known else 0.0)
        if time.perf_counter() + expected_s > end_s:
            left_out["no time was left"].append(case.text)
            continue
        try:
            with matrix_products(case.precision):
                measured_s[case] = _measure_case(part, model, module, gradients, case)
        except torch.cuda.OutOfMemoryError:
            left_out["out of memory"].append(case.text)
            module.zero_grad(set_to_none=True)
        if case.text in left_out["out of memory"]:
            _release(device)  # only now, without the error, whose frames hold the activations
    if measured_s:
        # AdamW once: neither precision nor batch changes what it does; those of a measured case label it.
        labels = next(iter(measured_s)).labels(model)
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        step = torch.optim.AdamW(module.parameters(), lr=LR, fused=True).step
        values = bench.part(1.0, 1.0).times({"": step})[""]  # all but done: no progress of its own
        bench.record.add("model", "optimizer", values, optimizer="adamw", **labels)
    for why, cases in left_out.items():
        if cases:
            bench.record.note(f"{model.name}: {why}: {', '.join(cases)} samples: left out")


def _measure_case(bench: Bench, model: Definition, module: nn.Module, gradients: Gradients, case: _PassCase) -> float:
    """Add a model in one way; return the median of its passes [s]."""
    device = bench.ranks.device
    with torch.device(device):
        task = model.task(module, case.batch)
    if case.layout:
        module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        inputs = [tensor.contiguous(memory_format=torch.channels_last) for tensor in task.inputs]
        task = replace(task, inputs=tuple(inputs))

    def forward() -> torch.Tensor:
        with autocast(case.precision, device):
            return task.loss_of(module)

    rows = bench.interleave({"": pass_trial(module, forward, gradients, device)})[""]
    in_ns = [[round(seconds, 9) for seconds in row] for row in rows]  # finer than any event; keeps the file small
    add_passes(bench.record, gradients, in_ns, case.labels(model))
    return median(row[0] for row in rows)


def small_models() -> tuple[Definition, ...]:
    """Return models that a CPU trains in milliseconds, and that need no library: for a quick run of the same code."""

    def small(name: str) -> Definition:
        def task(module: nn.Module, samples: int) -> Task:
            _, inputs, loss = NAMES[name](samples)
            return Task(module=module, inputs=(inputs,), loss=loss)

        return Definition(
            name=name, title=name, expression=name, library="torch", input="one sample",
            make=lambda _attention: NAMES[name](1)[0], task=task, batches=(1, 2, 4),
        )  # fmt: skip

    return small("mlp_200k"), small("cnn_400k")
