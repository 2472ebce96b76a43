"""Penalties that count the tokens that a sequence produced on another replica.

vLLM counts presence and frequency penalties over the tokens it produced itself. Tokens that were delivered before come
in with the prompt, so they would be forgotten. This code runs in the workers of vLLM 0.32's V1 model runner, which
passes `output` by reference, so that it is always current. The V2 model runner does not need it; see
`scheduler.HandsOutputOver`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from deployments.engines.vllm.sampling import FREQUENCY_KEY, PRESENCE_KEY, PRIOR_KEY


class ResumePenalties(LogitsProcessor):
    """Presence and frequency penalties of resumed sequences, over prior and new tokens alike."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._device = device
        self._rows: dict[int, _Row] = {}

    def is_argmax_invariant(self) -> bool:
        """Return False, because greedy choices may change."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow sequences that enter, leave or move in the batch."""
        process_dict_updates(self._rows, batch_update, self._row_of)

    def apply(self, logits: Any) -> Any:
        """Subtract the penalties from the rows of resumed sequences."""
        for number, row in self._rows.items():
            # Async scheduling puts -1 where a token is still being computed.
            seen = torch.tensor(row.prior + [token for token in row.output if token >= 0], device=self._device)
            tokens, counts = seen.unique(return_counts=True)
            penalties = row.presence + row.frequency * counts.to(logits.dtype)
            if row.repetition == 1.0:
                logits[number, tokens] -= penalties
                continue
            # vLLM applies the repetition penalty after this, although it comes before the others. All these tokens get
            # it, so what it will make of them is known.
            wanted = _repeated(logits[number, tokens], row.repetition) - penalties
            logits[number, tokens] = _repeated(wanted, 1.0 / row.repetition)
        return logits

    @staticmethod
    def _row_of(params: Any, _prompt: list[int] | None, output: list[int]) -> _Row | None:
        extra = params.extra_args or {}
        if PRESENCE_KEY not in extra:
            return None
        penalties = extra[PRESENCE_KEY], extra[FREQUENCY_KEY], params.repetition_penalty
        return _Row(list(extra[PRIOR_KEY]), output, *penalties)


class _Row(NamedTuple):
    """Resumed sequence of the batch."""

    prior: list[int]
    output: list[int]
    presence: float
    frequency: float
    repetition: float


def _repeated(logits: Any, penalty: float) -> Any:
    """Return logits after a repetition penalty. The inverse penalty takes it back."""
    return torch.where(logits > 0, logits / penalty, logits * penalty)
