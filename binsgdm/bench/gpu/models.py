"""Time forward, backward and every gradient of the shipped models in every precision, at three batches each."""

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from binsgdm.bench.model import LR, Gradients, add_passes, pass_trial
from binsgdm.bench.record import Bench
from binsgdm.bench.timing import WARM_UP, trial_of
from binsgdm.recording.model_zoo import NAMES, SEED, Task
from binsgdm.recording.shipped_models import SHIPPED, Definition, ShippedModel, what_is_missing

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = ("bf16", "tf32", "fp16", "fp32")
"""In the order in which they are measured."""
FIRST_WITH_TF32_AND_BF16 = (8, 0)  # compute capability of A100


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


MAX_REPETITIONS = 20  # a file with 13,000 gradients stays below 16 MB
MAX_SECONDS = 1.0  # of one model in one precision at one batch


def measure(bench: Bench, *, quick: bool, seconds: float) -> None:
    """Add every shipped model in every precision at each of its batches; small models for a quick look."""
    measure_models(bench, small_models() if quick else SHIPPED, seconds=seconds)


def measure_models(bench: Bench, models: Sequence[ShippedModel], *, seconds: float) -> None:
    """Add every model in every precision at each of its batches, and fused AdamW on its parameters once.

    Parameters are fp32, in PyTorch's default layout and with cuDNN's default choice of algorithms; bf16 and fp16 are
    autocast. Where there is tf32, fp32 without it is measured at the batch in the middle alone. On a GPU convolutional
    models are measured with channels last as well.

    Args:
        bench: where to and when to stop, for each; of one rank.
        models: which; one whose library is missing is left out with a note.
        seconds: of all together; what does not fit into a model's share is left out with a note.
    """
    rule = bench.stop_rule
    rule = replace(rule, max_repetitions=min(rule.max_repetitions, MAX_REPETITIONS))
    bench = replace(bench, stop_rule=rule).within(MAX_SECONDS)
    refusals = {precision: refusal(precision, bench.ranks.device) for precision in PRECISIONS}
    for reason in filter(None, refusals.values()):
        bench.record.note(reason)
    usable = [precision for precision in PRECISIONS if not refusals[precision]]
    end_s = time.perf_counter() + seconds
    for count, (part, model) in enumerate(bench.each(models)):
        if missing := what_is_missing(model.definition):
            part.record.note(f"{model.workload}: {model.definition.library} is missing: {missing}")
            continue
        share_s = (end_s - time.perf_counter()) / (len(models) - count)
        try:
            _ModelMeasurement(part, model, usable, share_s).run()
        except Exception as error:  # libraries change; the other models are still worth measuring
            detail = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            bench.record.check(f"{model.workload} can be measured", passed=False, detail=detail)
        _release(bench.ranks.device)


def _release(device: torch.device) -> None:
    """Give the memory of what is not used any more back to the GPU."""
    if device.type == "cuda":
        gc.collect()  # a module and its hooks refer to each other
        torch.cuda.empty_cache()


class _ModelMeasurement:
    """One model in all precisions, the largest batches as far as memory and time allow."""

    def __init__(self, bench: Bench, model: ShippedModel, precisions: Sequence[str], seconds: float) -> None:
        self._bench, self._model, self._device = bench, model, bench.ranks.device
        self._cases = [
            _PassCase(precision, batch, layout)
            for layout in _layouts(model, self._device)
            for precision in precisions
            for batch in _batches(model, precision, precisions)
        ]
        self._end_s = time.perf_counter() + seconds
        self._measured_s: dict[_PassCase, float] = {}

    def run(self) -> None:
        """Add all that can be measured, and a note for what cannot."""
        torch.manual_seed(SEED)
        with torch.device(self._device):
            module = self._model.definition.make("sdpa")
        module.train()
        gradients = Gradients(module, self._device)
        too_large, too_slow = list[str](), list[str]()
        for part, case in self._bench.each(self._cases):
            if time.perf_counter() + self._expected_s(case) > self._end_s:
                too_slow.append(case.text)
                continue
            try:
                with matrix_products(case.precision):
                    self._measure_case(part, module, gradients, case)
            except torch.cuda.OutOfMemoryError:
                too_large.append(case.text)
                module.zero_grad(set_to_none=True)
            if case.text in too_large:
                _release(self._device)  # only now, without the error, whose frames hold the activations
        if self._measured_s:
            self._measure_adamw(module)
        for cases, why in ((too_large, "out of memory"), (too_slow, "no time was left")):
            if cases:
                self._bench.record.note(f"{self._model.workload}: {why}: {', '.join(cases)} samples: left out")

    def _measure_case(self, part: Bench, module: nn.Module, gradients: Gradients, case: "_PassCase") -> None:
        with torch.device(self._device):
            task = self._model.definition.task(module, case.batch)
        if case.layout:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            inputs = [one.contiguous(memory_format=torch.channels_last) for one in task.inputs]
            task = replace(task, inputs=tuple(inputs))

        def forward() -> torch.Tensor:
            with autocast(case.precision, self._device):
                return task.loss_of(module)

        rows = part.interleave({"": pass_trial(module, forward, gradients, self._device)})[""]
        self._measured_s[case] = median(row[0] for row in rows)
        in_ns = [[round(seconds, 9) for seconds in row] for row in rows]  # finer than any event; keeps the file small
        add_passes(part.record, gradients, in_ns, self._labels(case))

    def _measure_adamw(self, module: nn.Module) -> None:
        """Add AdamW once: neither precision nor batch changes what it does; those of a measured case label it."""
        labels = self._labels(next(iter(self._measured_s)))
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        step = torch.optim.AdamW(module.parameters(), lr=LR, fused=True).step
        rows = self._bench.part(1.0, 1.0).interleave({"": trial_of(step, self._device)})[""]
        self._bench.record.add("model", "optimizer", [row[0] for row in rows], optimizer="adamw", **labels)

    def _expected_s(self, case: "_PassCase") -> float:
        """Return how long the fewest repetitions will take, from a smaller batch; 0 where that is not known."""
        known = [
            pass_s * case.batch / one.batch
            for one, pass_s in self._measured_s.items()
            if (one.precision, one.layout) == (case.precision, case.layout)
        ]
        return (WARM_UP + self._bench.stop_rule.min_repetitions) * (known[-1] if known else 0.0)

    def _labels(self, case: "_PassCase") -> dict[str, Any]:
        labels = {"model": self._model.workload, "batch": case.batch, "dtype": "float32", "precision": case.precision}
        return labels | ({"layout": case.layout} if case.layout else {})


class _PassCase(NamedTuple):
    """What a model is measured in; the layout is "channels_last", or empty for PyTorch's default."""

    precision: str
    batch: int
    layout: str

    @property
    def text(self) -> str:
        return f"{self.precision} at {self.batch}{f' with {self.layout}' if self.layout else ''}"


def _layouts(model: ShippedModel, device: torch.device) -> tuple[str, ...]:
    return ("", "channels_last") if model.is_convolutional and device.type == "cuda" else ("",)


def _batches(model: ShippedModel, precision: str, usable: Sequence[str]) -> Sequence[int]:
    """Return the batches of a precision: one for fp32, which nobody trains with where there is tf32."""
    is_rare = precision == "fp32" and "tf32" in usable
    return model.batches[len(model.batches) // 2 :][:1] if is_rare else model.batches


def small_models() -> tuple[ShippedModel, ...]:
    """Return models that a CPU trains in milliseconds, and that need no library: for a quick run of the same code."""
    return tuple(
        ShippedModel(workload=name, definition=_small(name), batches=(1, 2, 4)) for name in ("mlp_200k", "cnn_400k")
    )


def _small(name: str) -> Definition:
    def task(module: nn.Module, samples: int) -> Task:
        _, inputs, loss = NAMES[name](samples)
        return Task(module=module, inputs=(inputs,), loss=loss)

    return Definition(
        name=name,
        title=name,
        expression=name,
        library="torch",
        input="one sample",
        make=lambda _attention: NAMES[name](1)[0],
        task=task,
    )
