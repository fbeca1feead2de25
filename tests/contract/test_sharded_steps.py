"""Steps recorded from FSDP2 are the simulated ones of `fsdp` or `hsdp`, whose copies a system may average."""

import math

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import binsgdm
from simnet.strategies import Strategy
from tests.helpers import contract_steps as steps
from tests.helpers.contract_steps import BLOCKS, LAYOUTS, Layout, ShardedModel, simulated_step
from tests.helpers.recorded_steps import recorded
from tests.helpers.step_forms import StepForm, form_of_program, form_of_recording


def record(layout: Layout, *, is_hybrid: bool, reshard: bool = True, accumulate: str = "micro_batch", **settings):
    """Return the third step of FSDP2, with three micro-batches if `accumulate` says how."""

    def script() -> None:
        shape = layout if is_hybrid else (math.prod(layout),)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("node", "local")[-len(shape) :])
        model = ShardedModel()
        for part in (*model.blocks, model):
            # The root keeps torch's default.
            fully_shard(part, mesh=mesh, reshard_after_forward=reshard if part is not model or not reshard else None)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            for index in range(settings.get("micro_batches", 1)):
                is_last = index == settings.get("micro_batches", 1) - 1
                if accumulate == "step":
                    model.set_requires_gradient_sync(is_last)
                elif is_hybrid:
                    model.set_requires_all_reduce(is_last)
                model(torch.ones(2, 64)).square().mean().backward()
            optimizer.step()

    return recorded(script, *layout, steps=1, **{key: one for key, one in settings.items() if key != "micro_batches"})


def forms(simulated: Strategy, recording) -> tuple[StepForm, StepForm]:
    """Return the recorded and the simulated step."""
    topology = steps.topology(recording["num_nodes"], recording["ranks_per_node"])
    program = simulated.program(simulated_step(recording["micro_batches"]), topology)
    return form_of_recording(recording), form_of_program(program)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("kind", ["fsdp", "hsdp"])
def test_a_sharded_step_is_the_simulated_one(kind, reshard, layout):
    recording = record(layout, is_hybrid=kind == "hsdp", reshard=reshard)
    real, simulated = forms(steps.strategy(kind, reshard_after_forward=reshard), recording)
    assert real == simulated
    assert len({message.ready for message in real.sent}) >= BLOCKS


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("kind", ["fsdp", "hsdp"])
def test_on_a_cpu_every_message_blocks(kind, layout):
    recording = record(layout, is_hybrid=kind == "hsdp", runs_on="cpu")
    real, simulated = forms(steps.strategy(kind, overlap=False), recording)
    assert real == simulated


@pytest.mark.parametrize("kind", ["fsdp", "hsdp"])
@pytest.mark.parametrize("reduce_every", ["micro_batch", "step"])
def test_micro_batches_are_the_simulated_ones(kind, reduce_every):
    recording = record((2, 2), is_hybrid=kind == "hsdp", accumulate=reduce_every, micro_batches=3)
    assert recording["micro_batches"] == 3
    real, simulated = forms(steps.strategy(kind, reduce_every=reduce_every), recording)
    assert real == simulated


SYSTEMS = [
    ("byte_grad", {"topology": "scatter_reduce"}),
    ("qsgd", {"bits": 8}),
    ("one_bit_sgd", {}),
]


def record_copies(layout: Layout, system: str, **options):
    """Return the third step of FSDP2 inside nodes, with a system or BinSGDM between them."""

    def script() -> None:
        mesh = init_device_mesh("cpu", layout, mesh_dim_names=("node", "local"))
        model = ShardedModel()
        for part in (*model.blocks, model):
            fully_shard(part, mesh=mesh["local"])
        in_order = [parameter for layer in (model.first, model.blocks, model.head) for parameter in layer.parameters()]
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


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("system", "options"), SYSTEMS, ids=str)
def test_a_system_between_copies_does_what_is_simulated(system, options, layout):
    text = f"{system}:{','.join(f'{key}={value}' for key, value in options.items())}"
    real, simulated = forms(steps.strategy("hsdp", replicas=text), record_copies(layout, system, **options))
    assert real == simulated
    assert any(message.group == (layout[0], layout[1]) for message in real.sent)


def without_bytes_of_signs(form: StepForm) -> StepForm:
    """Leave out the bytes of what BinSGDM sends: real signs are padded to words, and the flags hold checksums, too."""
    sent = [message._replace(num_bytes=0.0) if message.num_bytes < 1000 else message for message in form.sent]
    return form._replace(sent=tuple(sent))


@pytest.mark.slow
@pytest.mark.parametrize("layout", [(2, 2), (3, 2), (4, 8)], ids=str)
def test_binsgdm_between_copies_does_what_is_simulated_but_for_padding(layout):
    real, simulated = forms(steps.strategy("hsdp", replicas="binsgdm"), record_copies(layout, "binsgdm"))
    assert without_bytes_of_signs(real) == without_bytes_of_signs(simulated)
    assert [message.kind for message in real.sent][-3:] == ["all_to_all", "all_gather", "all_reduce"]
