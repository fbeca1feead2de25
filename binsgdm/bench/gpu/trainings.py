"""Check trainings of small tasks: losses in every precision, skipped steps, and runs that are saved and resumed."""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from binsgdm.bench.gpu.precisions import AUTOCAST, autocast, refusal
from binsgdm.bench.gpu.tasks import TASKS, SmallTask
from binsgdm.bench.record import Record
from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.base import OneBitOptimizer
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.settings import PAPER

STEPS, QUICK_STEPS = 200, 20
LEAST_FALL = 0.4  # nats; both tasks fall by 0.45 and more in 20 steps
DISTANCE = 0.05  # nats; on a CPU bf16 is 0.01 away from fp32, as another seed of the draws is
SCALE = 2.0**10  # of GradScaler: no gradient of a small task overflows

Make = Callable[[Sequence[nn.Parameter], float], OneBitOptimizer]
OPTIMIZERS: dict[str, Make] = {
    "BinSGDM": lambda parameters, lr: BinSGDM(parameters, lr=lr, weight_decay=0.01),
    "BinSGDM, random": lambda parameters, lr: BinSGDM(parameters, lr=lr, weight_decay=0.01, **PAPER),
    "1-bit Adam": lambda parameters, lr: OneBitAdam(parameters, lr=lr / 4, dense_steps=3),
}


@dataclass
class Training:
    """A network, its optimizer and a GradScaler that is on in autocast, on one device.

    Attributes:
        step: taken so far; the data of a step depend on nothing else.
    """

    task: SmallTask
    device: torch.device
    precision: str
    model: nn.Module
    optimizer: OneBitOptimizer
    scaler: torch.amp.GradScaler
    step: int = 0

    @classmethod
    def begin(cls, task: SmallTask, device: torch.device, precision: str, make: Make) -> "Training":
        """Return a training before its first step."""
        model = task.build(device)
        scaler = torch.amp.GradScaler(device.type, init_scale=SCALE, enabled=precision in AUTOCAST)
        return cls(task, device, precision, model, make(list(model.parameters()), task.lr), scaler)

    def run(self, steps: int) -> list[float]:
        """Take steps; return the loss of each [nats]."""
        losses = [self._one() for _ in range(steps)]
        return [float(loss) for loss in losses]

    def state(self) -> bytes:
        """Return what a checkpoint holds."""
        kept: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}
        file = io.BytesIO()
        torch.save({name: one.state_dict() for name, one in kept.items()} | {"step": self.step}, file)
        return file.getvalue()

    def load(self, state: bytes) -> None:
        """Go on where a checkpoint was saved."""
        found = torch.load(io.BytesIO(state), map_location=self.device, weights_only=True)
        self.model.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])
        self.scaler.load_state_dict(found["scaler"])
        self.step = found["step"]

    def tensors(self) -> list[Tensor]:
        """Return copies of parameters and averages."""
        states = self.optimizer.param_states()
        averages = [one.state[name] for one in states for name in self.optimizer.averages]
        return [tensor.detach().clone() for tensor in (*self.model.parameters(), *averages)]

    def all_tensors(self) -> list[Tensor]:
        """Return copies of parameters and of all that the optimizer keeps of them."""
        kept = [one for state in self.optimizer.state_dict()["state"].values() for one in state.values()]
        tensors = (*self.model.parameters(), *(one for one in kept if isinstance(one, Tensor)))
        return [tensor.detach().clone() for tensor in tensors]

    def _one(self) -> Tensor:
        self.step += 1
        inputs, targets = self.task.batch_of(self.step, self.device)
        with autocast(self.precision, self.device):
            loss = functional.cross_entropy(self.model(inputs), targets)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()


def usable_precisions(device: torch.device) -> list[str]:
    """Return fp32 and the precisions of autocast that a device has."""
    return ["fp32", *(name for name in AUTOCAST if not refusal(name, device))]


def check_losses(record: Record, device: torch.device, *, quick: bool) -> None:
    """Check that losses are finite and fall, and that those of autocast are near those of fp32."""
    steps = QUICK_STEPS if quick else STEPS
    for task in TASKS[1:] if quick else TASKS:
        exact = math.nan
        for precision in usable_precisions(device):
            losses = Training.begin(task, device, precision, OPTIMIZERS["BinSGDM"]).run(steps)
            first, last = _mean(losses[: steps // 10]), _mean(losses[-steps // 10 :])
            exact = last if precision == "fp32" else exact
            is_good = all(map(math.isfinite, losses)) and first - last >= LEAST_FALL and abs(last - exact) <= DISTANCE
            record.check(
                f"losses: {task.name} in {precision}",
                passed=is_good,
                count=steps,
                detail=f"from {first:.3f} to {last:.3f} nats in {steps} steps, fp32 to {exact:.3f}; at most "
                f"{DISTANCE} from it",
            )


def check_skipped_steps(record: Record, device: torch.device) -> None:
    """Check that a step whose gradients overflow moves nothing, is counted, and halves the scale."""
    for name, make in OPTIMIZERS.items():
        for precision in usable_precisions(device)[1:]:
            training = Training.begin(TASKS[1], device, precision, make)
            training.run(1)
            next(training.model.parameters()).register_hook(lambda gradient: gradient * math.inf)  # type: ignore[no-untyped-call]
            before = training.tensors()
            training.run(1)
            wrong = num_different(before, training.tensors())
            counted, skipped = training.optimizer.param_groups[0]["step"], training.optimizer.num_skipped
            scale = training.scaler.get_scale()
            record.check(
                f"skipped step: {name} in {precision} with a GradScaler",
                passed=(wrong, counted, skipped, scale) == (0, 1, 1, SCALE / 2),
                count=len(before),
                detail=f"{wrong} of {len(before)} tensors moved; of 2 steps {counted} counted and {skipped} skipped; "
                f"scale {scale / SCALE:g} of what it was",
            )


def check_graphs_refused(record: Record, device: torch.device) -> None:
    """Check that a step inside a CUDA graph, whose finite check no host could read, is refused in a sentence."""
    for name, make in OPTIMIZERS.items():
        training = Training.begin(TASKS[1], device, "fp32", make)
        training.run(1)
        before = training.tensors()
        found = told_in_graph(training.optimizer.step, device)
        wrong = num_different(before, training.tensors())
        passed = found.startswith(BinsgdmError.__name__) and not wrong
        record.check(f"refused in a CUDA graph: {name}", passed=passed, count=len(before), detail=found)


def told_in_graph(step: Callable[[], object], device: torch.device) -> str:
    """Return the error of a step inside a CUDA graph, its type in front, or that there was none."""
    found = "no error"
    try:
        # Of this thread alone: those of NCCL go on asking the GPU.
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            step()
    except Exception as error:
        found = f"{type(error).__name__}: {error}"
    torch.cuda.synchronize(device)
    return found


def check_resumed_runs(record: Record, device: torch.device, *, quick: bool) -> None:
    """Check that a run that is saved, loaded and continued ends with the bits of one that goes on.

    Backward is asked for algorithms that sum in a fixed order; a repeated run shows whether that was enough.
    """
    before, after = (3, 3) if quick else (10, 10)
    for task in TASKS[1:] if quick else TASKS:
        for name, make in OPTIMIZERS.items():
            for precision in usable_precisions(device):
                whole, again, resumed = (Training.begin(task, device, precision, make) for _ in range(3))
                whole.run(before)
                saved = whole.state()
                whole.run(after)
                again.run(before + after)
                resumed.load(saved)
                resumed.run(after)
                wanted = whole.all_tensors()
                labels = f"{name}, {task.name} in {precision}"
                add_equal(record, f"repeated run: {labels}", wanted, again.all_tensors())
                add_equal(record, f"resumed run: {labels}", wanted, resumed.all_tensors())


def add_equal(record: Record, name: str, wanted: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    """Add whether tensors are equal to the bit."""
    wrong = num_different(wanted, found)
    detail = f"{wrong} of {len(wanted)} tensors differ" if wrong else "equal to the bit"
    record.check(name, passed=not wrong, count=len(wanted), detail=detail)


def num_different(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> int:
    """Return how many tensors differ in any bit."""
    return sum(not same_bits(one, other) for one, other in zip(wanted, found, strict=True))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors hold the same bits: a NaN equals itself, and 0 differs from -0."""
    widths: dict[int, Any] = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    views = [tensor.detach().cpu().contiguous().view(-1).view(widths[tensor.element_size()]) for tensor in (one, other)]
    return one.shape == other.shape and torch.equal(*views)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
