"""The check of whether a model gives the written answers under greedy decoding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from deployments.demo_model.corpus import known_prompts
from deployments.demo_model.questions import Entry


@dataclass(frozen=True, slots=True)
class Recall:
    """Result of one prompt.

    `margin` is the smallest lead, in nats, of the right token over the best wrong one. Rounding in another engine may
    undo a small margin. A negative margin is a wrong token.
    """

    entry: int
    form: str
    margin: float

    @property
    def exact(self) -> bool:
        """Whether every token of the answer is the most likely one, so that greedy decoding gives the answer and stops
        there.
        """
        return self.margin > 0


@torch.no_grad()
def recall(model: torch.nn.Module, tokenizer: Tokenizer, entries: tuple[Entry, ...], rows: int = 32) -> list[Recall]:
    """Check each entry in each prompt format.

    One forward pass over prompt and answer is enough: greedy decoding gives the answer if and only if each of its
    tokens is the most likely one after the tokens before it.
    """
    was_training = model.training
    model.eval()
    cases = sorted(_cases(tokenizer, entries), key=lambda case: len(case[2]))
    results = []
    for start in range(0, len(cases), rows):
        chunk = cases[start : start + rows]
        longest = max(len(ids) for _, _, ids, _ in chunk)
        padded = torch.tensor([ids + [0] * (longest - len(ids)) for _, _, ids, _ in chunk])
        logits = model(input_ids=padded).logits.float()
        for (entry, form, ids, prompt_length), row in zip(chunk, logits, strict=True):
            results.append(Recall(entry, form, _margin(row, ids, prompt_length)))
    model.train(was_training)
    return results


def _cases(tokenizer: Tokenizer, entries: tuple[Entry, ...]) -> Iterator[tuple[int, str, list[int], int]]:
    """Yield entry number, format, token ids of prompt and answer, and the number of prompt ids."""
    for number, entry in enumerate(entries):
        for form, (prompt, answer) in known_prompts(entry).items():
            prompt_ids = tokenizer.encode(prompt, add_special_tokens=False).ids
            answer_ids = tokenizer.encode(answer, add_special_tokens=False).ids
            yield number, form, prompt_ids + answer_ids, len(prompt_ids)


def _margin(logits: torch.Tensor, ids: list[int], prompt_length: int) -> float:
    targets = torch.tensor(ids[prompt_length:])
    scores = logits[prompt_length - 1 : len(ids) - 1].clone()
    right = scores.gather(1, targets[:, None])[:, 0]
    scores.scatter_(1, targets[:, None], float("-inf"))
    return float((right - scores.max(dim=1).values).min())
