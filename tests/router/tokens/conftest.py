"""A tokenizer small enough to train in a test."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import Tokenizer as Encoder
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="session")
def files() -> dict[str, bytes]:
    """Train a byte-level BPE tokenizer that begins plain text with <s>, and give it a chat template."""
    encoder = Encoder(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    encoder.train_from_iterator(["the water turns the wheel", "the gate feeds the turbine"], trainer)
    encoder.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    # Files from model repositories may truncate and pad; a router must not.
    encoder.enable_truncation(8)
    encoder.enable_padding(length=8)
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None, "chat_template": TEMPLATE}
    return {"tokenizer.json": encoder.to_str().encode(), "tokenizer_config.json": json.dumps(config).encode()}


@pytest.fixture
def executor():
    """Run long encodings; counts nothing, hides nothing."""
    with ThreadPoolExecutor(1) as pool:
        yield pool
