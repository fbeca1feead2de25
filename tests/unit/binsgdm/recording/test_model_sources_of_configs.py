"""Models of transformers are made of their config, with the inputs that they take."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.helpers.needs import needs

needs("torch")
needs("transformers")

import torch

from binsgdm.errors import BinsgdmError
from binsgdm.recording.model_sources import ModelOptions, find
from binsgdm.recording.step_description import without_memory

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "vocab_size": 64}
CONFIGS = {
    "LlamaForCausalLM": {"model_type": "llama", **SMALL},
    "BertForMaskedLM": {"model_type": "bert", "architectures": ["BertForMaskedLM"], **SMALL},
    "BertForPreTraining": {"model_type": "bert", "architectures": ["BertForPreTraining"], **SMALL},
    "BertForQuestionAnswering": {"model_type": "bert", "architectures": ["BertForQuestionAnswering"], **SMALL},
    "ViTForImageClassification": {
        "model_type": "vit", "architectures": ["ViTForImageClassification"], **SMALL, "image_size": 32, "patch_size": 16
    },
    "T5ForConditionalGeneration": {
        "model_type": "t5", "d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 2, "d_kv": 16, "vocab_size": 64
    },
    "GPT2LMHeadModel": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64},
}  # fmt: skip


@contextmanager
def default_dtype(name: str) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, name))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.fixture
def config(tmp_path):
    def write(data) -> str:
        (tmp_path / "config.json").write_text(json.dumps(data), encoding="utf-8")
        return str(tmp_path / "config.json")

    return write


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_makes_its_model_with_a_loss(name, config):
    path = config(CONFIGS[name])
    images = name.startswith("ViT")
    source = find(path, ModelOptions(batch=2, length=None if images else 8))
    assert source.title == f"{name} of config.json"
    assert source.takes == (("side",) if images else ("length",))
    description, _ = without_memory(source.build)
    assert description.forward.flops > 0
    assert len(description.gradients) == 2 * 9 + 3 if name.startswith("Llama") else len(description.gradients) > 10


def test_a_folder_with_a_config_is_its_model(config, tmp_path):
    config(CONFIGS["LlamaForCausalLM"])
    assert find(str(tmp_path), ModelOptions()).title == "LlamaForCausalLM of config.json"


def test_a_class_stands_for_a_missing_type(config):
    path = config(SMALL)
    assert find(f"transformers:LlamaConfig:{path}", ModelOptions()).title == "LlamaForCausalLM of config.json"


@pytest.mark.parametrize(
    ("data", "given", "sentence"),
    [
        (
            SMALL,
            "transformers:LamaConfig:{}",
            "LamaConfig: no config class of transformers; did you mean 'LlamaConfig'",
        ),
        (SMALL, "{}", "no model_type: no config class of transformers"),
        ({"model_type": "lama", **SMALL}, "{}", "lama: no config class of transformers"),
        ({"model_type": "llama", "architectures": ["LamaForCausalLM"]}, "{}", "LamaForCausalLM: no model class"),
        ({"model_type": "whisper", "d_model": 48}, "{}", "takes 'input_features', which has no batch here"),
        ([], "{}", "a list: must be the config.json of a model"),
    ],
)
def test_what_is_no_config_is_refused(data, given, sentence, config):
    path = config(data)
    with pytest.raises(BinsgdmError, match=sentence):
        without_memory(find(given.format(path), ModelOptions(length=8)).build)


EXPERTS = {**SMALL, "num_key_value_heads": 2, "num_experts_per_tok": 2, "num_hidden_layers": 1}
ROUTED = {
    "mixtral": {**EXPERTS, "num_local_experts": 8},
    "qwen3_moe": {**EXPERTS, "num_experts": 8, "moe_intermediate_size": 48, "head_dim": 16},
    "gpt_oss": {**EXPERTS, "num_local_experts": 8, "head_dim": 16, "layer_types": ["full_attention"]},
    "qwen2_moe": {**EXPERTS, "num_experts": 8, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 64},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ROUTED)
def test_of_experts_those_that_a_token_takes_count(kind, dtype, config):
    data = {"model_type": kind, **ROUTED[kind]}

    def flops(experts_per_token: int) -> float:
        data["num_experts_per_tok"] = experts_per_token
        source = find(config(data), ModelOptions(batch=1, length=64))
        with default_dtype(dtype):
            return without_memory(source.build)[0].forward.flops

    # Each further expert of a token: gate, up and down, 32 x 48 each, a multiply-add is two.
    assert flops(3) - flops(2) == 64 * 3 * 2 * 32 * 48
    assert flops(2) - flops(1) == 64 * 3 * 2 * 32 * 48


def test_first_layers_and_shared_experts_of_deepseek_count_in_full(config):
    data = {
        "model_type": "deepseek_v3", **SMALL, "num_key_value_heads": 2, "moe_intermediate_size": 16, "n_group": 1,
        "topk_group": 1, "n_routed_experts": 4, "num_experts_per_tok": 1, "q_lora_rank": 8, "kv_lora_rank": 8,
        "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    }  # fmt: skip

    def flops(**changes) -> float:
        path = config(data | changes)
        return without_memory(find(path, ModelOptions(batch=1, length=64)).build)[0].forward.flops

    one_expert = 64 * 3 * 2 * 32 * 16
    dense, first_dense = flops(first_k_dense_replace=2, n_shared_experts=1), flops(first_k_dense_replace=1)
    # A dense layer has 48 in place of the 16 of one routed and of one shared expert, and no router.
    assert dense - first_dense == 3 * one_expert - 2 * one_expert - 64 * 2 * 32 * 4
    assert (
        flops(first_k_dense_replace=0, n_shared_experts=2) - flops(first_k_dense_replace=0, n_shared_experts=1)
        == 2 * one_expert
    )


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_state_space_models_are_counted(kind, config):
    heads = {"num_heads": 4, "head_dim": 16, "n_groups": 1} if kind == "mamba2" else {}
    data = {"model_type": kind, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 1, "vocab_size": 64, **heads}
    short, long = (
        without_memory(find(config(data), ModelOptions(batch=1, length=length)).build)[0].forward.flops
        for length in (256, 512)  # whole chunks
    )
    # Nothing grows with the square of the length.
    assert long == pytest.approx(2 * short, rel=0.15)


def test_models_of_images_and_text_are_refused_with_what_they_lack(config):
    path = config({
        "model_type": "llava", "text_config": {"model_type": "llama", **SMALL},
        "vision_config": {"model_type": "clip_vision_model", **SMALL, "image_size": 32, "patch_size": 16},
    })  # fmt: skip
    with pytest.raises(BinsgdmError, match="takes vision besides text, which have no batch here"):
        without_memory(find(path, ModelOptions()).build)
