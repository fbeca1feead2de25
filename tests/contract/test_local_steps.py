"""Steps recorded from torch's model averaging are the simulated ones of `local_sgd`: messages, groups, bytes, waits."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from tests.helpers import contract_steps as steps
from tests.helpers.contract_steps import CAP_BYTES, CAP_MB, Layout
from tests.helpers.recorded_steps import recorded
from tests.helpers.step_forms import StepForm, form_of_program, form_of_recording


def recorded_period(layout: Layout, inner_steps: int, workers: str):
    """Return a period of post-local SGD as torch does it, or of SGD on each rank alone."""

    def script() -> None:
        module = steps.small_model()
        trained = module
        if workers == "node":
            trained = DistributedDataParallel(module, bucket_cap_mb=CAP_MB)
            node, _ = dist.new_subgroups(group_size=layout[1])
            state = post_local.PostLocalSGDState(process_group=None, subgroup=node, start_localSGD_iter=0)
            trained.register_comm_hook(state, post_local.post_localSGD_hook)
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
        averager = PeriodicModelAverager(period=inner_steps, warmup_steps=0)
        for _ in range(4 * inner_steps):
            optimizer.zero_grad()
            trained(torch.ones(2, 64)).square().mean().backward()
            optimizer.step()
            averager.average_parameters(module.parameters())

    return recorded(script, *layout, steps=inner_steps, warm_up=2 * inner_steps)


def sent(form: StepForm) -> list[tuple]:
    """Return messages with their waits, but not how far backward of which step was, of which the simulated hold few."""
    return [one._replace(ready=0, after=frozenset()) for one in form.sent]


@pytest.mark.parametrize("layout", [(2, 2), (3, 2)], ids=str)
def test_post_local_sgd_sends_what_is_simulated(layout):
    recording = recorded_period(layout, 3, "node")
    strategy = steps.strategy("local_sgd", inner_steps=3, workers="node", bucket_cap=f"{CAP_BYTES} B")
    simulated = steps.program(strategy, recording)
    assert simulated.inner is not None
    real, wanted = form_of_recording(recording), form_of_program(simulated)
    inner = form_of_program(simulated.inner.program)
    assert sorted(sent(real)) == sorted([*sent(wanted), *sent(inner) * simulated.inner.number])
