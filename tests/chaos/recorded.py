"""What real engines say to some prompts, as they said it before anything was broken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tokenizers import Tokenizer

from deployments.demo_model import MODEL_DIR, known_answers
from penstock.client import AsyncClient, Sampling
from tests.chaos.golden import Golden

PROMPTS = 8
LONGEST = 600
"""Output tokens that are known of each prompt; greedy output of fewer is the beginning of these."""


class Recorded(Golden):
    """Hands out its prompts in turns."""

    def __init__(self, outputs: dict[tuple[int, ...], tuple[int, ...]]) -> None:
        super().__init__()
        self._outputs = outputs
        self._turn = 0

    def prompt(self, tokens: int) -> tuple[int, ...]:
        """Return the next prompt, whose length is its own."""
        self._turn += 1
        return tuple(self._outputs)[self._turn % len(self._outputs)]

    def output(self, prompt: Sequence[int], seed: int, tokens: int) -> tuple[int, ...]:
        """Return the greedy output of a request that ignores the end token."""
        known = self._outputs[tuple(prompt)]
        if tokens > len(known):
            raise ValueError(f"{tokens} tokens are asked for, {len(known)} are known")
        return known[:tokens]


async def record(targets: Sequence[str]) -> Recorded:
    """Ask a cluster that is whole."""
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    prompts = [tuple(tokenizer.encode(question).ids) for question in list(known_answers())[:PROMPTS]]
    sampling = Sampling(temperature=0.0, max_tokens=LONGEST, ignore_eos=True)
    async with AsyncClient(tuple(targets)) as client:
        ends = await asyncio.gather(*(client.generate("demo", prompt, sampling, timeout=120) for prompt in prompts))
    return Recorded({prompt: end.choices[0].token_ids for prompt, end in zip(prompts, ends, strict=True)})
