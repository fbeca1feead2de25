"""A step recorded from FSDP2 whose copies a system averages is the simulated one of `hsdp` with `replicas`."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import binsgdm
from tests.helpers import contract_steps as steps
from tests.helpers.contract_steps import Layout
from tests.helpers.recorded_steps import recorded
from tests.helpers.sharded_models import ShardedModel, simulated_step
from tests.helpers.step_forms import StepForm, form_of_program, form_of_recording

LAYOUTS = [(2, 1), (2, 2), (3, 2), pytest.param((4, 8), marks=pytest.mark.slow)]
SYSTEMS = [
    ("byte_grad", {"topology": "scatter_reduce"}),
    ("qsgd", {"bits": 8}),
    ("one_bit_sgd", {}),
]


def record(layout: Layout, system: str, **options):
    """Return the third step of FSDP2 inside nodes, with a system or BinSGDM between them."""

    def script() -> None:
        mesh = init_device_mesh("cpu", layout, mesh_dim_names=("node", "local"))
        model = ShardedModel()
        for part in (*model.blocks, model):
            fully_shard(part, mesh=mesh["local"])
        in_order = [one for layer in (model.first, model.blocks, model.head) for one in layer.parameters()]
        if system == "binsgdm":
            optimizer = binsgdm.BinSGDM(in_order, lr=1e-3)
            binsgdm.attach_fsdp(optimizer, mesh)
        else:
            optimizer = torch.optim.SGD(in_order, lr=1e-3)
            binsgdm.compress_replicas(optimizer, mesh, system, **options)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 64)).square().mean().backward()
            optimizer.step()

    return recorded(script, *layout, steps=1)


def forms(text: str, recording) -> tuple[StepForm, StepForm]:
    """Return the recorded and the simulated step."""
    topology = steps.topology(recording["num_nodes"], recording["ranks_per_node"])
    strategy = steps.strategy("hsdp", replicas=text)
    return form_of_recording(recording), form_of_program(strategy.program(simulated_step(1), topology))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("system", "options"), SYSTEMS, ids=str)
def test_a_system_between_copies_does_what_is_simulated(system, options, layout):
    text = f"{system}:{','.join(f'{key}={value}' for key, value in options.items())}"
    real, simulated = forms(text, record(layout, system, **options))
    assert real == simulated
    assert any(one.group == (layout[0], layout[1]) for one in real.sent)


def without_bytes_of_signs(form: StepForm) -> StepForm:
    """Leave out the bytes of what BinSGDM sends: real signs are padded to words, and the flags hold checksums, too."""
    sent = [one._replace(num_bytes=0.0) if one.num_bytes < 1000 else one for one in form.sent]
    return form._replace(sent=tuple(sent))


@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=str)
def test_binsgdm_between_copies_does_what_is_simulated_but_for_padding(layout):
    real, simulated = forms("binsgdm", record(layout, "binsgdm"))
    assert without_bytes_of_signs(real) == without_bytes_of_signs(simulated)
    assert [one.kind for one in real.sent][-3:] == ["all_to_all", "all_gather", "all_reduce"]
