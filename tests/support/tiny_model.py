"""Makes a tiny Llama with random weights, a byte-level BPE tokenizer and a chat template."""

from __future__ import annotations

import random
from pathlib import Path

_WORDS = (  # noqa: SIM905
    "queue token stream replica router engine batch cache prompt model latency budget window lease grant step "
    "memory worker cluster request answer the a of and to in is that for with on as it not are be this from"
).split()
_SPECIALS = ["<s>", "</s>", "<pad>"]
_CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


def make_tiny_model(folder: Path, *, vocabulary: int = 1024, context_tokens: int = 2048) -> Path:
    """Write the model into `folder` and return it; about 5 MB and a second or two."""
    _write_tokenizer(folder, vocabulary, context_tokens)
    _write_weights(folder, vocabulary, context_tokens)
    return folder


def _write_tokenizer(folder: Path, vocabulary: int, context_tokens: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=context_tokens,
    )
    fast.chat_template = _CHAT_TEMPLATE
    fast.save_pretrained(folder)


def _write_weights(folder: Path, vocabulary: int, context_tokens: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=context_tokens,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        dtype="bfloat16",
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def _corpus() -> list[str]:
    draw = random.Random(0)
    made_up = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(3, 9))) for _ in range(400)]
    return [" ".join(draw.choices(_WORDS + made_up, k=40)) for _ in range(400)]
