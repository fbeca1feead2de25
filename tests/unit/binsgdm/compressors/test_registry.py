"""Every system of the registry refuses in a sentence what it cannot take, and says of values that are not finite."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers.needs import needs

needs("torch")
import torch

from binsgdm.compressors.base import GradientBucket, Payload, Shapes, numel_of
from binsgdm.compressors.registry import SYSTEMS, check_options, make
from binsgdm.errors import BinsgdmError
from binsgdm.kernels.random import Key
from tests.helpers.gradient_buckets import NAMES, NUMEL, SHAPES, means_of, normal

OPTIONS: dict[str, dict[str, Any]] = {"top_k": {"k": 20}, "ms_top_k": {"k": 20}, "random_k": {"k": 20}}
FORMS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name, system in SYSTEMS.items() if hasattr(system, "compress")),
    ("qsgd", {"bits": 2, "block_size": 7, "coding": "elias"}), ("qsgd_inf", {"bits": 8, "block_size": 1}),
    ("nuqsgd", {"with_zero": False}), ("nuqsgd", {"bits": 2, "coding": "elias"}),
    ("ef_sign_sgd", {"scale_per": "bucket"}),
    ("terngrad", {"clip_sigmas": None}), ("random_k", {"unbiased": True}),
]  # fmt: skip
by_form = pytest.mark.parametrize(("name", "options"), FORMS, ids=str)


def system_of(name: str, world_size: int = 1, rank: int = 0) -> Any:
    return make(name, rank=rank, world_size=world_size, **OPTIONS.get(name, {}))


def is_sentence(text: str) -> bool:
    return "\n" not in text and text.count(": ") >= 1 and len(text) < 400


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize(
    ("values", "shapes", "said"),
    [
        (normal().to_sparse(), SHAPES, "a sparse gradient"),
        (normal().to(torch.complex64), SHAPES, "a complex gradient"),
        (torch.zeros(0), ((0, 3),), "must have at least one element"),
        (torch.zeros(0), (), "must have at least one element"),
        (normal()[:-1], SHAPES, "must be flat float32"),
        (normal().double(), SHAPES, "must be flat float32"),
        (normal().to(torch.int32), SHAPES, "must be flat float32"),
        (normal().view(31, 8), SHAPES, "must be flat float32"),
    ],
    ids=["sparse", "complex", "empty", "none", "short", "double", "whole", "matrix"],
)
def test_values_that_cannot_be_compressed_are_refused(name: str, values: Any, shapes: Shapes, said: str) -> None:
    with pytest.raises(BinsgdmError, match=said) as caught:
        means_of([system_of(name)], [values], 1, shapes)
    assert is_sentence(str(caught.value))


STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, float("nan"), float("inf"), 10**400, 10**5000, "x" * 3000, "a\nb", [], {}, (1,), b"1", 1j,
    torch.ones(2), torch.tensor(1), object, lambda: 1, {"a": 1}, "\x1b[2J",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name in SYSTEMS for option in SYSTEMS[name].options], ids=str
)
def test_an_option_of_another_type_is_refused_in_a_sentence_or_works(name: str, option: str) -> None:
    for value in STRANGE:
        options = ({} if option in ("k", "ratio") else OPTIONS.get(name, {})) | {option: value}
        try:
            system = make(name, rank=0, world_size=1, **options)
        except BinsgdmError as error:
            said = str(error)
        else:
            said = ""
        if said:
            assert is_sentence(said), said
            assert said.startswith(f"{name}: "), said
            continue
        assert means_of([system], [normal()], 1)[0].isfinite().all(), (option, value)


@pytest.mark.parametrize("argument", ["rank", "world_size", "ranks_per_node", "topology", "intra_node_dtype"])
def test_an_argument_of_another_type_is_refused_in_a_sentence(argument: str) -> None:
    topology = {} if argument == "topology" else {"topology": "hierarchical"}
    right = (0,) if argument == "rank" else (None,) if argument in ("topology", "intra_node_dtype") else ()
    for value in STRANGE:
        if any(value is one for one in right):
            continue
        with pytest.raises(BinsgdmError) as caught:
            make("qsgd", **{"rank": 0, "world_size": 2, "ranks_per_node": 1, **topology, argument: value})
        assert is_sentence(str(caught.value)), str(caught.value)
        assert str(caught.value).startswith(f"qsgd: {argument}: "), str(caught.value)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", SYSTEMS)
def test_one_value_of_one_rank_that_is_not_finite_is_seen_on_all_and_leaves_nothing_behind(
    name: str, bad: float
) -> None:
    systems = [system_of(name, 3, rank) for rank in range(3)]
    means_of(systems, [normal(NUMEL, seed) for seed in range(3)], 1)
    broken = [normal(NUMEL, seed) for seed in range(3, 6)]
    broken[1][17] = bad
    results = means_of(systems, broken, step=2)
    assert not results[0].isfinite().all()
    assert all(torch.equal(results[0].isfinite(), other.isfinite()) for other in results)
    assert all(one.isfinite().all() for one in means_of(systems, [normal(NUMEL, seed) for seed in range(6, 9)], step=3))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_signs_of_a_fixed_scale_show_what_is_not_finite(bad: float) -> None:
    systems = [make("marsit", rank=rank, world_size=3, scale=0.5) for rank in range(3)]
    broken = [normal(NUMEL, seed) for seed in range(3)]
    broken[2][0] = bad
    assert all(one.isnan().all() for one in means_of(systems, broken, 1))


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("state", [{"nonsense": 1}, {"residuals": 3, "rank": 0, "world_size": 1}])
def test_a_state_of_another_system_is_refused(name: str, state: dict[str, Any]) -> None:
    with pytest.raises(BinsgdmError) as caught:
        system_of(name).load_state_dict(state)
    assert is_sentence(str(caught.value))


@pytest.mark.parametrize("name", [name for name, entry in SYSTEMS.items() if entry.has_feedback])
@pytest.mark.parametrize("saved", [(0, 2), (1, 3)], ids=["world size", "rank"])
def test_residuals_of_another_rank_or_world_start_from_zero_with_a_warning(name: str, saved: tuple[int, int]) -> None:
    rank, size = saved
    grads = [normal(NUMEL, seed) for seed in range(size)]
    systems = [system_of(name, size, number) for number in range(size)]
    means_of(systems, grads)
    other = system_of(name, 3, 0)
    with pytest.warns(UserWarning, match=f"the state of rank {rank} of {size} on rank 0 of 3: residuals start from"):
        other.load_state_dict(copy.deepcopy(systems[rank].state_dict()))
    assert len(other.residuals) == 0


def compressor_of(name: str, options: dict[str, Any], ratio: float = 0.08) -> Any:
    given = {"ratio": ratio} if name in OPTIONS else {}
    return make(name, rank=0, world_size=1, **given, **options).compressor


def changed(payload: Payload) -> dict[str, Payload]:
    """Return payloads that no compressor of these settings makes."""
    first, *rest = payload.tensors
    return {
        "shorter": Payload(tensors=(first[:-1], *rest)) if first.numel() else Payload(tensors=()),
        "fewer": Payload(tensors=payload.tensors[:-1]),
        "more": Payload(tensors=(*payload.tensors, first)),
        "another dtype": Payload(tensors=(first.double(), *rest)),
        "nothing": Payload(tensors=()),
    }


@by_form
@pytest.mark.parametrize("how", ["shorter", "fewer", "more", "another dtype", "nothing"])
def test_a_payload_of_another_version_or_shape_is_refused(name: str, options: dict[str, Any], how: str) -> None:
    compressor, key = compressor_of(name, options), Key(seed=1)
    payload = changed(compressor.compress(normal(), SHAPES, key))[how]
    with pytest.raises(BinsgdmError, match=f"^{name}: a payload of ") as caught:
        compressor.decompress(payload, SHAPES, key)
    assert is_sentence(str(caught.value))


@by_form
@pytest.mark.parametrize(
    "shapes", [((1,),), ((8193,),), ((),), ((3, 5), (), (0, 4), (17,), (4, 2, 3), (2, 0))], ids=str
)
def test_a_payload_has_the_stated_bytes_and_zeros_stay_zeros(
    name: str, options: dict[str, Any], shapes: Shapes
) -> None:
    compressor, key, numel = compressor_of(name, options, ratio=0.3), Key(seed=5, step=2, rank=1), numel_of(shapes)
    values = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    before = values.clone()
    payload = compressor.compress(values, shapes, key)
    assert compressor.num_bytes(shapes) in (payload.num_bytes, None)
    assert (compressor.num_bytes(shapes) is None) == (
        options.get("coding") == "elias" or (name == "atomo" and numel == 56)
    )
    assert torch.equal(values, before)
    assert compressor.decompress(payload, shapes, key).shape == values.shape
    assert not compressor.decompress(compressor.compress(torch.zeros(numel), shapes, key), shapes, key).any()


SCALED = [
    *((name, {}) for name in SYSTEMS),
    *FORMS[len([one for one in SYSTEMS.values() if hasattr(one, "compress")]) :],
]


@pytest.mark.parametrize("power", [-90, 99])
@pytest.mark.parametrize(("name", "options"), SCALED, ids=str)
def test_huge_and_tiny_gradients_have_means_in_proportion(name: str, options: dict[str, Any], power: int) -> None:
    plain, scaled = (
        [make(name, rank=rank, world_size=2, **OPTIONS.get(name, {}), **options) for rank in range(2)] for _ in range(2)
    )
    for step in range(3):
        gradients = [normal(NUMEL, 2 * step + rank) for rank in range(2)]
        wanted = means_of(plain, gradients, step)[0]
        mean = means_of(scaled, [gradient * 2.0**power for gradient in gradients], step)[0]
        assert mean.isfinite().all()
        torch.testing.assert_close(mean if name == "sign_sgd" else mean * 2.0**-power, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SYSTEMS)
def test_of_nothing_arrives_nothing_and_nothing_is_kept(name: str) -> None:
    systems = [system_of(name, 2, rank) for rank in range(2)]
    for step in range(2):
        mean = means_of(systems, [torch.zeros(NUMEL)] * 2, step)[0]
        assert (mean == (name == "sign_sgd")).all()  # a vote for 0 is one for +1
    if SYSTEMS[name].has_feedback:
        assert not any(systems[0].residuals[parameter].any() for parameter in NAMES)


@pytest.mark.parametrize("make_bucket", [lambda: {"parameters": (1, 1)}, lambda: {"parameters": (1,)}])
def test_a_parameter_twice_or_without_a_shape_is_refused(make_bucket: Callable[[], dict[str, Any]]) -> None:
    with pytest.raises(BinsgdmError, match="for 2 shapes: must be as many; add some"):
        GradientBucket(values=torch.zeros(2), shapes=((1,), (1,)), **make_bucket())


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("qsgd", {"bits": 1}, r"bits: 1: must be a whole number from 2 to 8; "),
        ("qsgd", {"bits": 9}, r"bits: 9: "),
        ("qsgd", {"bits": 4.0}, r"bits: 4\.0: "),
        ("qsgd_inf", {"bits": True}, r"bits: True: "),
        ("qsgd_inf", {"block_size": 0}, r"block_size: 0: must be a whole number from 1 to 1048576; "),
        ("nuqsgd", {"block_size": 2**20 + 1}, r"block_size: 1048577: "),
        ("nuqsgd", {"bits": 8}, r"bits: 8: must be a whole number from 2 to 7; "),
        ("nuqsgd", {"coding": "huffman"}, r"coding: 'huffman': must be one of \['packed', 'elias'\]; "),
        ("nuqsgd", {"with_zero": "no"}, r"with_zero: 'no': must be one of "),
        ("nuqsgd", {"with_zero": False, "coding": "elias"}, r"coding: 'elias' without a level of zero: must "),
        ("ef_sign_sgd", {"scale_per": "layer"}, r"scale_per: 'layer': must be one of \['tensor', 'bucket'\]"),
        ("terngrad", {"clip_sigmas": 0}, r"clip_sigmas: 0: must be a number above 0"),
        ("terngrad", {"clip_sigmas": -2.5}, r"clip_sigmas: -2\.5: "),
        ("terngrad", {"clip_sigmas": float("nan")}, r"clip_sigmas: nan: "),
        ("terngrad", {"clip_sigmas": "2.5"}, r"clip_sigmas: '2\.5': "),
        ("byte_grad", {"dtype": "fp8"}, r"dtype: 'fp8': must be one of \['int8', 'fp8_e4m3', 'fp8_e5m2'\]; give one"),
        ("byte_grad", {"block_size": 0}, r"block_size: 0: must be a whole number from 1 to 1048576; "),
        ("byte_grad", {"topology": "hierarchical_scatter_reduce"}, r"topology: .*between nodes it has its own"),
        ("byte_grad", {"topology": "ring"}, r"topology: 'ring': must be one of \['scatter_reduce', 'gather', 'hier"),
        ("power_sgd", {"matrix_rank": 0}, "matrix_rank: 0: must be a whole number from 1 on"),
        ("grad_zip", {"matrix_rank": 0}, "matrix_rank: 0: must be a whole number from 1 on"),
        ("random_k", {"ratio": 0.1, "clip_norm": 0.0}, ".*clip_norm: 0.0: must be above 0"),
        ("random_k", {"ratio": 0.1, "masks_momentum": 2}, ".*masks_momentum: 2: must be one of"),
        ("random_k", {"ratio": 0.1, "warmup_steps": -1}, ".*warmup_steps: -1: must be a whole number"),
        ("random_k", {"k": 3, "warmup_steps": 2}, ".*warmup_steps: 2: needs ratio"),
        ("random_k", {"ratio": 0.1, "unbiased": True, "momentum": 0.9}, ".*have no effect with unbiased=True"),
        ("qsgd", {"topology": "ring"}, r".*must be one of \['gather', 'scatter_reduce'"),
        ("qsgd", {"topology": ["gather"]}, ".*must be one of"),
        ("qsgd", {"topology": "scatter_reduce", "coding": "elias", "bits": 2}, ".*coding='packed'"),
        ("qsgd", {"topology": "hierarchical", "intra_node_dtype": "fp8"}, r".*must be one of \['fp32', 'bf16'\]"),
        ("qsgd", {"topology": "hierarchical", "ranks_per_node": 3}, ".*must divide the world size 4"),
        ("qsgd", {"topology": "hierarchical", "ranks_per_node": 0}, ".*must be a whole number from 1"),
        ("qsgd", {"intra_node_dtype": "bf16"}, ".*has no effect with topology 'gather'"),
        ("power_sgd", {"topology": "scatter_reduce"}, ".*cannot be decoded and added up piece by piece"),
        ("power_sgd", {"topology": "gather"}, ".*sends less than a gather"),
        ("atomo", {"topology": "scatter_reduce"}, ".*must be one of"),
        ("dense", {"dtype": "fp8"}, r".*must be one of \['fp32', 'bf16'\]"),
        ("sign_sgd", {"topology": "hierarchical_scatter_reduce"}, ".*between nodes it has its own"),
        ("marsit", {"topology": "hierarchical", "torus": True}, ".*must not have both"),
        ("power_sgd", {"world_siz": 4}, "world_siz: unknown option"),
        ("power_sgd", {"name": 4}, "name: unknown option"),
        (None, {}, "unknown"), (4, {}, "unknown"), (["qsgd"], {}, "unknown"), ("", {}, "unknown"),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_or_without_effect_is_refused_with_the_reason(
    name: Any, options: dict[str, Any], sentence: str
) -> None:
    where = f"^{name}: " if sentence != "unknown" else "^system: .*: "
    with pytest.raises(BinsgdmError, match=where + sentence):
        check_options(name, options) if "name" in options else make(name, **{"rank": 0, "world_size": 4, **options})
