"""Makes a tiny Idefics3 with random weights. vLLM runs few other models with images without torchvision."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.tiny_model import make_tokenizer

_TILES = range(1, 3)
_SPECIALS = [
    *("<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in _TILES for column in _TILES),
]
_TILE, _PATCH, _SCALE = 56, 14, 2
IMAGE_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: "
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "{% endif %}{{ '\n' }}{% endfor %}assistant:"
)
"""Chat template that writes images itself."""
TEXT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content + '\n' }}{% endfor %}assistant:"
"""Chat template that takes nothing but text."""


def make_vision_model(folder: Path, *, template: str = IMAGE_TEMPLATE, context_tokens: int = 1024) -> Path:
    """Write a whole model into `folder`, less than a megabyte; imports torch and transformers."""
    import torch
    from transformers import (
        AutoTokenizer,
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessorPil,
        Idefics3Processor,
        LlamaConfig,
    )

    tokenizer = AutoTokenizer.from_pretrained(make_tokenizer(folder))
    tokenizer.add_special_tokens({"additional_special_tokens": _SPECIALS})
    tokenizer.chat_template = template
    torch.manual_seed(5)
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=context_tokens,
        # Large weights, so that images make a difference and greedy output varies.
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": _TILE,
        "patch_size": _PATCH,
        "initializer_range": 0.2,
    }
    config = Idefics3Config(
        text_config=text,
        vision_config=vision,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=_SCALE,
        pad_token_id=2,
        initializer_range=0.2,
    )
    Idefics3ForConditionalGeneration(config).float().save_pretrained(folder)
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": len(_TILES) * _TILE}, max_image_size={"longest_edge": _TILE}, do_image_splitting=True
    )
    tokens = (_TILE // _PATCH // _SCALE) ** 2
    Idefics3Processor(
        image_processor=images, tokenizer=tokenizer, image_seq_len=tokens, chat_template=template
    ).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 0, "eos_token_id": 1}))
    return folder
