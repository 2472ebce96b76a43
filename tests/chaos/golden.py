"""What the simulated engine says to a prompt, without running it: its tokens follow from prompt, seed and position."""

from __future__ import annotations

import random
from collections.abc import Sequence

from deployments.engines.factory import DEMO_MODEL, resolve_model
from deployments.engines.sim.text import Vocabulary
from deployments.engines.sim.tokens import TokenSource
from deployments.engines.tokenizer_files import of_folder


class Golden:
    """Invents requests and knows their output."""

    def __init__(self, seed: int = 1) -> None:
        self._vocabulary = Vocabulary(of_folder(resolve_model(DEMO_MODEL)))
        self._random = random.Random(seed)

    def prompt(self, tokens: int) -> tuple[int, ...]:
        """Make up a prompt."""
        return tuple(self._random.choices(self._vocabulary.natural_ids, k=tokens))

    def output(self, prompt: Sequence[int], seed: int, tokens: int) -> tuple[int, ...]:
        """Return the output of a request that ignores the end token."""
        source = TokenSource(prompt, seed, self._vocabulary.natural_ids, self._vocabulary.end_id)
        return tuple(source.token(index, may_end=False) for index in range(tokens))

    def text(self, output: Sequence[int]) -> str:
        """Return the text of an output."""
        return "".join(map(self._vocabulary.decoder(), output))
