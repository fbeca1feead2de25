"""Models of transformers are made of their config, with the inputs that they take."""

import json

import pytest

from tests.helpers.needs import needs

needs("torch")
needs("transformers")

from binsgdm.errors import BinsgdmError
from binsgdm.recording.model_description import without_memory
from binsgdm.recording.model_sources import ModelOptions, find

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
    found = find(path, ModelOptions(batch=2, length=None if images else 8))
    assert found.title == f"{name} of config.json"
    assert found.takes == (("side",) if images else ("length",))
    description, _ = without_memory(found.build)
    assert description.forward.flops > 0
    assert len(description.gradients) > 10


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
