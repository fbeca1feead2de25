"""Trainings of a small task on a card: losses in every precision, skipped steps, runs saved and resumed."""

import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import Tensor, nn
from torch.nn import functional

from binsgdm.bench.model import AUTOCAST, autocast, refusal
from binsgdm.errors import BinsgdmError
from binsgdm.optimizers.base import OneBitOptimizer
from binsgdm.optimizers.binsgdm import BinSGDM
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from binsgdm.optimizers.settings import PAPER
from tests.helpers.kernel_samples import device as device_name
from tests.helpers.kernel_samples import same_bits

IS_CARD = device_name() == "cuda"
STEPS, RESUMED_AFTER = (200, 10) if IS_CARD else (20, 3)
LEAST_FALL = 0.4  # nats; the task falls by 0.45 and more in 20 steps
DISTANCE = 0.05  # nats; on a CPU bf16 is 0.01 away from fp32, as another seed of the draws is
SCALE = 2.0**10  # of GradScaler: no gradient of a small task overflows
FIXED_ORDER = ":4096:8"  # what cuBLAS needs to sum in one order, as PyTorch's documentation of determinism says

Make = Callable[[Sequence[nn.Parameter], float], OneBitOptimizer]
OPTIMIZERS: dict[str, Make] = {
    "BinSGDM": lambda parameters, lr: BinSGDM(parameters, lr=lr, weight_decay=0.01),
    "BinSGDM, random": lambda parameters, lr: BinSGDM(parameters, lr=lr, weight_decay=0.01, **PAPER),
    "1-bit Adam": lambda parameters, lr: OneBitAdam(parameters, lr=lr / 4, dense_steps=3),
}
PRECISIONS = ["fp32", *(name for name in AUTOCAST if not refusal(name, torch.device(device_name())))]
SEED, LR, BATCH = 0, 2e-3, 64
NUM_PATTERNS, SIDE, NOISE = 10, 16, 1.5


def build(device: torch.device) -> nn.Module:
    """Return three convolutions and a linear layer; without pooling, whose backward may sum at random."""
    torch.manual_seed(SEED)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 32, 3, 2, padding=1), nn.ReLU(), nn.Flatten()),
        nn.Linear(32 * (SIDE // 4) ** 2, NUM_PATTERNS),
    ).to(device)


def batch_of(step: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ten fixed images under noise, and which each is: the same on every device."""
    images = torch.randn(NUM_PATTERNS, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(SEED))
    generator = torch.Generator().manual_seed(step)
    labels = torch.randint(NUM_PATTERNS, (BATCH,), generator=generator)
    noise = NOISE * torch.randn(BATCH, 1, SIDE, SIDE, generator=generator)
    return (images[labels] + noise).to(device), labels.to(device)


@dataclass
class Training:
    """A network, its optimizer and a GradScaler that is on in autocast; the data depend on the step alone."""

    device: torch.device
    precision: str
    model: nn.Module
    optimizer: OneBitOptimizer
    scaler: torch.amp.GradScaler
    step: int = 0

    @classmethod
    def begin(cls, device: torch.device, precision: str, make: Make) -> "Training":
        """Return a training before its first step."""
        model = build(device)
        scaler = torch.amp.GradScaler(device.type, init_scale=SCALE, enabled=precision in AUTOCAST)
        return cls(device, precision, model, make(list(model.parameters()), LR), scaler)

    def run(self, steps: int) -> list[float]:
        """Take steps; return the loss of each [nats]."""
        return [float(loss) for loss in [self._one() for _ in range(steps)]]

    def saved(self) -> bytes:
        """Return what a checkpoint holds."""
        file = io.BytesIO()
        torch.save([one.state_dict() for one in (self.model, self.optimizer, self.scaler)], file)
        return file.getvalue()

    def load(self, saved: bytes, step: int) -> None:
        """Go on where a checkpoint was saved."""
        states = torch.load(io.BytesIO(saved), map_location=self.device.type, weights_only=True)
        for one, state in zip((self.model, self.optimizer, self.scaler), states, strict=True):
            one.load_state_dict(state)
        self.step = step

    def tensors(self, *names: str) -> list[Tensor]:
        """Return copies of parameters and of what the optimizer keeps of them, all or what has these names."""
        states = self.optimizer.state_dict()["state"].values()
        kept = [one for state in states for name, one in state.items() if not names or name in names]
        return [one.detach().clone() for one in (*self.model.parameters(), *kept) if isinstance(one, Tensor)]

    def _one(self) -> Tensor:
        self.step += 1
        inputs, targets = batch_of(self.step, self.device)
        with autocast(self.precision, self.device):
            loss = functional.cross_entropy(self.model(inputs), targets)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()


def are_equal(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(same_bits(*pair) for pair in zip(ones, others, strict=True))


@pytest.mark.slow
def test_losses_fall_in_every_precision_and_those_of_autocast_are_near_fp32(device: torch.device) -> None:
    ends = {}
    for precision in PRECISIONS:
        losses = Training.begin(device, precision, OPTIMIZERS["BinSGDM"]).run(STEPS)
        first, ends[precision] = (sum(some) / len(some) for some in (losses[: STEPS // 10], losses[-STEPS // 10 :]))
        assert all(map(math.isfinite, losses))
        assert first - ends[precision] >= LEAST_FALL, precision
        assert abs(ends[precision] - ends["fp32"]) <= DISTANCE, precision


@pytest.mark.parametrize(("name", "precision"), list(product(OPTIMIZERS, PRECISIONS[1:])))
def test_a_step_whose_gradients_overflow_moves_nothing_is_counted_and_halves_the_scale(
    device: torch.device, name: str, precision: str
) -> None:
    training = Training.begin(device, precision, OPTIMIZERS[name])
    training.run(1)
    next(training.model.parameters()).register_hook(lambda gradient: gradient * math.inf)  # type: ignore[no-untyped-call]
    before = training.tensors(*training.optimizer.averages)
    training.run(1)
    assert are_equal(before, training.tensors(*training.optimizer.averages))
    assert (training.optimizer.param_groups[0]["step"], training.optimizer.num_skipped) == (1, 1)
    assert training.scaler.get_scale() == SCALE / 2


@pytest.fixture
def _sums_in_one_order(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ask for algorithms whose results are the same in every run, where there are such."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", FIXED_ORDER)
    torch.use_deterministic_algorithms(True, warn_only=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic.*")
        yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("_sums_in_one_order")
@pytest.mark.parametrize(("name", "precision"), list(product(OPTIMIZERS, PRECISIONS)))
def test_a_run_that_is_saved_loaded_and_continued_ends_with_the_bits_of_one_that_goes_on(
    device: torch.device, name: str, precision: str
) -> None:
    whole, again, resumed = (Training.begin(device, precision, OPTIMIZERS[name]) for _ in range(3))
    whole.run(RESUMED_AFTER)
    saved = whole.saved()
    whole.run(RESUMED_AFTER)
    again.run(2 * RESUMED_AFTER)
    resumed.load(saved, RESUMED_AFTER)
    resumed.run(RESUMED_AFTER)
    assert are_equal(whole.tensors(), again.tensors()), "backward sums in another order in every run"
    assert are_equal(whole.tensors(), resumed.tensors())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_inside_a_cuda_graph_is_refused_in_a_sentence_and_moves_nothing(device: torch.device, name: str) -> None:
    needs("GPU")
    training = Training.begin(device, "fp32", OPTIMIZERS[name])
    training.run(1)
    before = training.tensors()
    # Of this thread alone: those of NCCL go on asking the GPU.
    graph: Any = torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local")
    with pytest.raises(BinsgdmError), graph:
        training.optimizer.step()
    torch.cuda.synchronize(device)
    assert are_equal(before, training.tensors())
