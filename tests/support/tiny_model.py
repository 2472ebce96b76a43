"""Makes a tiny Llama with random weights, a byte-level BPE tokenizer and a chat template."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

_WORDS = (  # noqa: SIM905
    "queue token stream replica router engine batch cache prompt model latency budget window lease grant step "
    "memory worker cluster request answer the a of and to in is that for with on as it not are be this from"
).split()
_SPECIALS = ["<s>", "</s>", "<pad>"]
_CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
_HIDDEN, _INTERMEDIATE, _LAYERS, _HEADS, _KV_HEADS = 256, 512, 4, 8, 4


def make_tokenizer(folder: Path, *, vocabulary: int = 1024) -> Path:
    """Write tokenizer.json and tokenizer_config.json into `folder`; half a second, no heavy imports."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

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
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def make_tiny_model(folder: Path, *, vocabulary: int = 1024, context_tokens: int = 2048) -> Path:
    """Write a whole model into `folder`, about 7 MB; imports torch."""
    make_tokenizer(folder, vocabulary=vocabulary)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "max_position_embeddings": context_tokens,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    _write_weights(folder / "model.safetensors", vocabulary)
    return folder


def make_adapter(folder: Path, *, rank: int = 8, strength: float = 0.1, seed: int = 1, hidden: int = _HIDDEN) -> Path:
    """Write a LoRA adapter of the tiny model into `folder`; imports torch.

    Args:
        folder: an existing one.
        rank: of its two matrices.
        strength: spread of the second matrix' entries; 0 gives an adapter that changes nothing.
        seed: of its random weights.
        hidden: size of the model's hidden states.
    """
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(_LAYERS):
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(rank, hidden, generator=generator)
        weights[f"{name}.lora_B.weight"] = torch.randn(hidden, rank, generator=generator) * strength
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["o_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def _write_weights(file: Path, vocabulary: int) -> None:
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)

    # Spreads at which greedy output is neither one token over and over nor free of repetition.
    def drawn(*shape: int, spread: float = 0.06) -> Any:
        return (torch.randn(*shape, generator=generator) * spread).to(torch.bfloat16)

    kv = _HIDDEN * _KV_HEADS // _HEADS
    head = drawn(vocabulary, _HIDDEN, spread=0.02)
    # Greedy output has whole words only: no special tokens, no bytes that are parts of characters.
    head[: len(_SPECIALS) + 256] = 0
    weights = {"model.embed_tokens.weight": drawn(vocabulary, _HIDDEN, spread=1.0), "lm_head.weight": head}
    norms = ["model.norm"]
    for layer in (f"model.layers.{number}" for number in range(_LAYERS)):
        weights |= {
            f"{layer}.self_attn.q_proj.weight": drawn(_HIDDEN, _HIDDEN),
            f"{layer}.self_attn.k_proj.weight": drawn(kv, _HIDDEN),
            f"{layer}.self_attn.v_proj.weight": drawn(kv, _HIDDEN, spread=0.1),
            f"{layer}.self_attn.o_proj.weight": drawn(_HIDDEN, _HIDDEN, spread=0.1),
            f"{layer}.mlp.gate_proj.weight": drawn(_INTERMEDIATE, _HIDDEN),
            f"{layer}.mlp.up_proj.weight": drawn(_INTERMEDIATE, _HIDDEN),
            f"{layer}.mlp.down_proj.weight": drawn(_HIDDEN, _INTERMEDIATE),
        }
        norms += [f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"]
    weights |= {f"{norm}.weight": torch.ones(_HIDDEN, dtype=torch.bfloat16) for norm in norms}
    save_file(weights, file, metadata={"format": "pt"})


def _corpus() -> list[str]:
    draw = random.Random(0)
    made_up = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(3, 9))) for _ in range(400)]
    return [" ".join(draw.choices(_WORDS + made_up, k=40)) for _ in range(400)]
