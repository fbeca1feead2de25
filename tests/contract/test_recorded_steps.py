"""A step recorded from the real implementation of a strategy is the simulated one: messages, groups, bytes, waits."""

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from binsgdm import BinSGDM
from binsgdm.compressors.registry import BUILT_IN, SYSTEMS
from binsgdm.optimizers.one_bit_adam import OneBitAdam
from simnet.strategies import STRATEGIES
from simnet.strategies.one_bit_adam import CHECKSUM_BYTES
from tests.helpers import contract_steps as steps
from tests.helpers.contract_steps import CAP_BYTES, CAP_MB, LAYOUTS
from tests.helpers.step_forms import StepForm

CAP = f"{CAP_BYTES} B"
QUICK = ((2, 1), (3, 2), (2, 2))
OPTIONS = [
    ("one_bit_sgd", {}),
    ("sign_sgd", {}),
    ("ef_sign_sgd", {}),
    ("ef_sign_sgd", {"scale_per": "bucket"}),
    ("terngrad", {}),
    ("qsgd", {}),
    ("qsgd", {"bits": 2, "block_size": 100}),
    ("qsgd_inf", {"bits": 8}),
    ("nuqsgd", {"bits": 3, "with_zero": False}),
    ("byte_grad", {}),
    ("byte_grad", {"dtype": "fp8_e4m3", "block_size": 100}),
    ("marsit", {}),
    ("marsit", {"torus": True, "scale": 0.1}),
    ("power_sgd", {}),
    ("power_sgd", {"matrix_rank": 1}),
    ("power_sgd", {"matrix_rank": 64}),
    ("top_k", {"ratio": 0.01}),
    ("ms_top_k", {"k": 100}),
    ("random_k", {"ratio": 0.1}),
    ("random_k", {"k": 50, "unbiased": True}),
    ("one_bit_sgd", {"momentum": 0.9}),
    ("sign_sgd", {"momentum": 0.9}),
    ("ef_sign_sgd", {"momentum": 0.9}),
    ("marsit", {"momentum": 0.9, "residual_decay": 0.5}),
    ("top_k", {"ratio": 0.01, "momentum": 0.9}),
    ("random_k", {"ratio": 0.1, "momentum": 0.9}),
]
# Each system with its usual options in each topology but its default, in fp32 or bf16 inside the node.
TOPOLOGIES = [
    (name, {**options, "topology": topology} | extra)
    for name, options in dict(OPTIONS[::-1]).items()
    for topology in SYSTEMS[name].topologies[not SYSTEMS[name].averages_in_node :]
    for extra in ({}, *([{"intra_node_dtype": "bf16"}] if "hierarchical" in topology else []))
]


# Every system on one layout in turn; where all is run, on three.
BY_PAIRS = [
    pytest.param(name, options, layout, marks=() if layout == QUICK[number % 3] else pytest.mark.slow)
    for number, (name, options) in enumerate(OPTIONS + TOPOLOGIES)
    for layout in (*QUICK[:2], (QUICK[2], (4, 8))[number % 2])
]


@pytest.mark.parametrize(("name", "options", "layout"), BY_PAIRS, ids=str)
def test_a_system_does_what_is_simulated(name, options, layout):
    chooses_in_pieces = name in ("top_k", "ms_top_k") and "scatter" in str(options.get("topology"))
    recording = steps.of_system(name, options, layout, even=chooses_in_pieces)
    is_hops = steps.is_hop_of_marsit(options.get("topology"), layout) if name == "marsit" else lambda _: False
    real, simulated = steps.forms(steps.strategy(name, bucket_cap=CAP, **options), recording, is_hops)
    assert real == simulated
    assert len({message.ready for message in real.sent}) >= 2  # buckets, the first during backward


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_ddp_does_what_is_simulated(layout, micro_batches):
    recording = steps.of_system("dense", {}, layout, micro_batches=micro_batches)
    real, simulated = steps.forms(steps.strategy("all_reduce", bucket_cap=CAP), recording)
    assert real == simulated
    assert [message.kind for message in real.sent] == ["all_reduce"] * 2


def test_torchs_hook_does_what_is_simulated():
    """That of bf16 asks for NCCL."""

    def script() -> None:
        module = DistributedDataParallel(steps.small_model(), bucket_cap_mb=CAP_MB)
        module.register_comm_hook(None, default_hooks.fp16_compress_hook)
        steps.train(module, torch.optim.SGD(module.parameters()), 64)

    recording = steps.record(script, (2, 2))
    real, simulated = steps.forms(steps.strategy("all_reduce", bucket_cap=CAP, wire_dtype="fp16"), recording)
    assert real == simulated
    assert sum(message.num_bytes for message in real.sent) == recording["gradient_bytes"] / 2


def test_every_system_is_recorded_in_every_topology():
    """GradZip's turns differ and ATOMO's payload is drawn: `test_varying_messages` has them."""
    assert {name for name, _ in OPTIONS} | {"grad_zip", "atomo", "dense"} == set(SYSTEMS)
    for name in set(SYSTEMS) - {"dense"}:
        assert STRATEGIES.find(name).topologies == SYSTEMS[name].topologies
        assert STRATEGIES.find(name).cut == SYSTEMS[name].cut
        assert STRATEGIES.find(name).averages_in_node == SYSTEMS[name].averages_in_node


SCHEMES = [
    {"topology": "flat"},
    {"topology": "hierarchical"},
    {"topology": "hierarchical", "intra_node_dtype": "bf16"},
    {"topology": "hierarchical", "intra_node_dtype": "one_bit"},
    {"topology": "hierarchical", "average": "gradients"},
    {"topology": "hierarchical", "average": "gradients", "intra_node_dtype": "bf16"},
]


def without_flags(form: StepForm) -> StepForm:
    """Leave out how many bytes decide whether the step counts: the real ones hold checksums, too."""
    *sent, flags = form.sent
    assert (flags.kind, flags.num_bytes < 100) == ("all_reduce", True)
    return form._replace(sent=(*sent, flags._replace(num_bytes=0.0)))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("overlap", [False, True])
def test_binsgdm_does_what_is_simulated(scheme, overlap, layout):
    recording = steps.of_binsgdm(layout, overlap=overlap, **scheme)
    simulated = steps.strategy("binsgdm", bucketing="fused", overlap=overlap, **scheme)
    real, wanted = steps.forms(simulated, recording)
    assert without_flags(real) == without_flags(wanted)


REMEDIES = {"variance_floor": 0.001, "scales_momenta": True}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("options", [{}, REMEDIES], ids=str)
@pytest.mark.parametrize("topology", ["flat", "hierarchical"])
def test_one_bit_adam_does_what_is_simulated(topology, options, layout):
    """Its options change what is computed, and no message."""
    recording = steps.of_one_bit_adam(layout, 1, topology, **options)
    real, wanted = steps.forms(steps.strategy("one_bit_adam", topology=topology), recording)
    assert real == wanted
    assert len(real.sent) >= 3


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_dense_step_of_one_bit_adam_sends_flags_and_what_is_simulated(layout):
    """`simnet` leaves the flags of the dense stage out, whose bytes take no time beside all gradients."""
    recording = steps.of_one_bit_adam(layout, 100, "flat")
    real, wanted = steps.forms(steps.strategy("one_bit_adam").dense, recording)
    flags, all_reduce = real.sent
    world_size = layout[0] * layout[1]
    assert flags == ("all_gather", (world_size, 1), (1 + 3 + CHECKSUM_BYTES) * world_size, 1, frozenset())
    assert [all_reduce._replace(after=frozenset())] == list(wanted.sent)


def test_what_is_frozen_is_agreed_on_once_by_16_bytes_a_tensor():
    """`simnet` leaves this message out: it is sent in the last dense step alone, here the third."""
    plain = steps.forms(steps.strategy("one_bit_adam").dense, steps.of_one_bit_adam((2, 2), 3, "flat"))[0]
    recording = steps.of_one_bit_adam((2, 2), 3, "flat", **REMEDIES)
    agreed = steps.forms(steps.strategy("one_bit_adam").dense, recording)[0]
    *same, last = agreed.sent
    assert same == list(plain.sent)
    assert last[:3] == ("all_gather", (4, 1), 4 * 2 * 3 * 8)


PLANTED = {
    "a byte more": lambda streams: streams["group 2"][0].update(message_bytes=33281.0),
    "another group": lambda streams: streams["group 3"][0].update(group=0),
    "another collective": lambda streams: streams["group 3"][0].update(kind="all_to_all"),
    "no wait for backward": lambda streams: streams["group 2"][0].update(after=[]),
    "no wait for the message before": lambda streams: streams["group 3"][0].update(after=[[0, 1]]),
    "an optimizer that does not wait": lambda streams: [operation.update(after=[]) for operation in streams["compute"]],
    "one message more": lambda streams: streams["group 3"].append(dict(streams["group 3"][-1])),
    "an exchange that waits for all of backward": lambda streams: streams["group 2"][0]["after"].append([0, 4]),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake):
    recording = steps.of_system("qsgd", {"topology": "hierarchical"}, (2, 4))
    simulated = steps.strategy("qsgd", topology="hierarchical", bucket_cap=CAP)
    real, wanted = steps.forms(simulated, recording)
    assert real == wanted
    PLANTED[mistake]({stream["name"]: stream["operations"] for stream in recording["streams"]})
    assert steps.forms(simulated, recording)[0] != wanted


@pytest.mark.parametrize(
    ("name", "real"),
    [
        *((system.name, system) for system in BUILT_IN if system.name != "dense"),
        ("binsgdm", BinSGDM),
        ("one_bit_adam", OneBitAdam),
    ],
)
def test_a_system_has_one_title(name: str, real: type) -> None:
    simulated = {strategy.__struct_config__.tag: strategy.title for strategy in STRATEGIES}
    assert simulated[name] == real.title
