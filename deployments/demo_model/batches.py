"""Packing of documents of different lengths into rows of equal length."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from deployments.demo_model.corpus import Corpus
from deployments.demo_model.tokenizer import PAD, SPECIAL_TOKENS

IGNORED = -100
"""Label that excludes a token from the loss, as torch's cross entropy defines it."""

_PAD_ID = SPECIAL_TOKENS.index(PAD)
_ROW_LENGTHS = (96, 256, 512, 1024)
_ROW_LENGTH_SHARES = (0.40, 0.40, 0.15, 0.05)
_SHARE_LEARNT_WHOLE = 0.08
"""Share of the documents that are learnt whole. It keeps the text readable when a client ignores the end token."""

_MISSES_PER_ROW = 4
_LEFT_OVER_LIMIT = 32

_Document = tuple[list[int], list[int]]
"""Token ids and labels, of equal length."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids and labels, both (rows, length)."""

    ids: torch.Tensor
    labels: torch.Tensor


class Packer:
    """Packer of whole documents into rows. It pads at the end, so that a causal mask is the only attention mask needed.

    Most rows are short, which is cheap and close to real prompts. Conversations with tools need 256 tokens. The long
    rows hold many documents one after the other. They teach the model to answer the newest question at positions up to
    about 1,000.
    """

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, rng: random.Random, tokens_per_batch: int) -> None:
        self._corpus = corpus
        self._tokenizer = tokenizer
        self._rng = rng
        self._tokens_per_batch = tokens_per_batch
        self._left_over: list[_Document] = []

    def batch(self) -> Batch:
        """Return the next batch of about `tokens_per_batch` tokens."""
        length = self._rng.choices(_ROW_LENGTHS, _ROW_LENGTH_SHARES)[0]
        rows = [self._row(length) for _ in range(max(1, self._tokens_per_batch // length))]
        return Batch(torch.tensor([ids for ids, _ in rows]), torch.tensor([labels for _, labels in rows]))

    def _row(self, length: int) -> _Document:
        """Fill one row. A document that does not fit waits for the next row; otherwise long ones would be seen too
        rarely.
        """
        ids: list[int] = []
        labels: list[int] = []
        candidates, self._left_over = self._left_over, []
        misses = 0
        while candidates or misses < _MISSES_PER_ROW or not ids:
            document = candidates.pop(0) if candidates else self._document()
            if len(ids) + len(document[0]) > length:
                misses += 1
                self._left_over.append(document)
                continue
            ids += document[0]
            labels += document[1]
        # Short rows add long documents to the rest faster than long rows use them up.
        del self._left_over[_LEFT_OVER_LIMIT:]
        missing = length - len(ids)
        return ids + [_PAD_ID] * missing, labels + [IGNORED] * missing

    def _document(self) -> _Document:
        learn_all = self._rng.random() < _SHARE_LEARNT_WHOLE
        ids: list[int] = []
        labels: list[int] = []
        for segment in self._corpus.document():
            encoded = self._tokenizer.encode(segment.text, add_special_tokens=False).ids
            ids += encoded
            labels += encoded if segment.learn or learn_all else [IGNORED] * len(encoded)
        return ids, labels
