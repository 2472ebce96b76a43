"""The check of whether a model gives the written answers and calls under greedy decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from deployments.demo_model.corpus import known_calls, known_prompts
from deployments.demo_model.questions import Entry


@dataclass(frozen=True, slots=True)
class Recall:
    """Result of one prompt.

    `margin` is the smallest lead, in nats, of the right token over the best wrong one. Rounding in another engine may
    undo a small margin. A negative margin is a wrong token.
    """

    entry: int | None
    """Number of the entry; None for a call of a tool."""
    form: str
    margin: float

    @property
    def exact(self) -> bool:
        """Whether every token of the answer is the most likely one, so that greedy decoding gives the answer and stops
        there.
        """
        return self.margin > 0


def recall(model: torch.nn.Module, tokenizer: Tokenizer, entries: tuple[Entry, ...]) -> list[Recall]:
    """Check each entry in each prompt format, and the calls of the tool."""
    asked: list[tuple[int | None, str, str, str]] = [
        (number, form, prompt, answer)
        for number, entry in enumerate(entries)
        for form, (prompt, answer) in known_prompts(entry).items()
    ]
    asked += [(None, form, *case) for form, cases in known_calls().items() for case in cases]
    found = margins(model, tokenizer, [(prompt, answer) for _, _, prompt, answer in asked])
    return [Recall(entry, form, margin) for (entry, form, _, _), margin in zip(asked, found, strict=True)]


@torch.no_grad()
def margins(
    model: torch.nn.Module, tokenizer: Tokenizer, cases: Sequence[tuple[str, str]], rows: int = 32
) -> list[float]:
    """Return the margin of each prompt and answer, in their order.

    One forward pass over prompt and answer is enough: greedy decoding gives the answer if and only if each of its
    tokens is the most likely one after the tokens before it.
    """
    was_training = model.training
    model.eval()
    encoded = []
    for place, case in enumerate(cases):
        prompt, answer = (tokenizer.encode(text, add_special_tokens=False).ids for text in case)
        encoded.append((place, prompt + answer, len(prompt)))
    encoded.sort(key=lambda each: len(each[1]))
    found = [0.0] * len(encoded)
    for start in range(0, len(encoded), rows):
        chunk = encoded[start : start + rows]
        longest = max(len(ids) for _, ids, _ in chunk)
        padded = torch.tensor([ids + [0] * (longest - len(ids)) for _, ids, _ in chunk])
        logits = model(input_ids=padded).logits.float()
        for (place, ids, prompt_length), row in zip(chunk, logits, strict=True):
            found[place] = _margin(row, ids, prompt_length)
    model.train(was_training)
    return found


def _margin(logits: torch.Tensor, ids: list[int], prompt_length: int) -> float:
    targets = torch.tensor(ids[prompt_length:])
    scores = logits[prompt_length - 1 : len(ids) - 1].clone()
    right = scores.gather(1, targets[:, None])[:, 0]
    scores.scatter_(1, targets[:, None], float("-inf"))
    return float((right - scores.max(dim=1).values).min())
