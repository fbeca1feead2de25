"""What a compiled step moves is counted by torch.compile's own fusion, and equals counts by hand."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch import nn

from binsgdm.errors import BinsgdmError
from binsgdm.recording import step_description
from binsgdm.recording.compiled_work import compiled_work
from binsgdm.recording.model_sources import as_task
from binsgdm.recording.step_description import StepOptions, without_memory

BATCH, WIDTH, OUT = 64, 256, 32
FLOAT = 4


class Chain(nn.Module):
    """A product, and three operators that fuse to one kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, OUT, bias=False)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(given)).mul(0.5).add(1.0))


class Reading(Chain):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return super().forward(given) * given.sum().item()


def build_of(kind: type[nn.Module]):
    return lambda: as_task((kind(), torch.ones(BATCH, WIDTH)))


@pytest.mark.slow
def test_a_chain_is_read_and_written_once():
    hidden, out = BATCH * WIDTH * FLOAT, BATCH * OUT * FLOAT
    work, plain = compiled_work(build_of(Chain)), without_memory(build_of(Chain))[0]
    # The kernel of the chain; the mean reads the output, and goes through single numbers.
    assert work.forward_bytes == pytest.approx(2 * hidden + out, abs=4 * FLOAT)
    assert plain.forward.num_bytes == pytest.approx(3 * 2 * hidden + out, abs=8 * FLOAT)
    # Backward fills the gradient of the mean, and takes the gradient of the chain and its output of tanh to one result.
    assert work.backward_bytes == pytest.approx(3 * hidden + out, abs=4 * FLOAT)


def test_what_is_kept_is_what_backward_cannot_make_of_the_rest():
    hidden = BATCH * WIDTH * FLOAT
    assert hidden <= compiled_work(build_of(Chain)).activation_bytes <= 2 * hidden


@pytest.mark.slow
def test_only_bytes_and_activations_of_a_description_change():
    plain, compiled = (
        step_description.describe_step("transformer_1m", StepOptions(batch=4, compiled=one)) for one in (False, True)
    )
    assert compiled["tensors"] == plain["tensors"]
    changed = {key for key in plain["work"] if plain["work"][key] != compiled["work"][key]}
    assert changed == {"forward_bytes", "backward_bytes"}
    # torch.compile chooses itself what it computes again.
    assert "checkpointed" not in compiled["memory"]
    assert plain["memory"].pop("checkpointed")["blocks"] > 0
    assert {key for key in plain["memory"] if plain["memory"][key] != compiled["memory"][key]} == {
        "activations_per_sample"
    }


@pytest.mark.parametrize("other", ["real", "checkpoint"])
def test_options_that_contradict_it_are_refused(other):
    with pytest.raises(BinsgdmError, match=rf"--compile, --{other}: must not be given both.*drop one"):
        step_description.describe_step("mlp_200k", StepOptions(compiled=True, **{other: True}))


def test_a_step_that_reads_values_is_refused():
    with pytest.raises(BinsgdmError, match=r"--compile: the step cannot be traced as one graph .*without --compile"):
        step_description.describe_step(f"{__name__}:reading", StepOptions(compiled=True))


def reading():
    return Reading(), torch.ones(BATCH, WIDTH)
