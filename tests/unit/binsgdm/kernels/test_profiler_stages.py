"""Stages have names where a profiler looks, and cost nothing of torch's ranges where none does."""

from tests.helpers.needs import needs

needs("torch")
from contextlib import nullcontext

import torch
from torch.profiler import ProfilerActivity, profile

from binsgdm import BinSGDM
from binsgdm.kernels.profiler_stages import stage, staged


def names_in(trace: profile) -> set[str]:
    return {event.key for event in trace.key_averages() if event.key.startswith("binsgdm::")}


def test_a_stage_is_a_range_only_while_a_profiler_runs() -> None:
    assert isinstance(stage("merge"), nullcontext)
    with profile(activities=[ProfilerActivity.CPU]) as trace, stage("merge"):
        staged("apply")(torch.ones)(3)
    assert names_in(trace) == {"binsgdm::merge", "binsgdm::apply"}
    assert isinstance(stage("merge"), nullcontext)


def test_a_staged_function_is_the_function_it_was() -> None:
    def function(one: int, *, other: int) -> int:
        """Say what it does."""
        return one + other

    in_stage = staged("merge")(function)
    assert in_stage(1, other=2) == 3
    assert (in_stage.__name__, in_stage.__doc__) == ("function", "Say what it does.")


def test_a_step_of_an_optimizer_alone_names_its_stages() -> None:
    value = torch.nn.Parameter(torch.ones(9))
    optimizer = BinSGDM([value])
    value.grad = torch.ones(9)
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        optimizer.step()
    assert names_in(trace) == {"binsgdm::update", "binsgdm::apply"}
