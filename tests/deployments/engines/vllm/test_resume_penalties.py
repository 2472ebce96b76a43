"""Penalties of output that goes on are those of output that was never cut."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.engines.vllm.sampling import FREQUENCY_KEY, PRESENCE_KEY, PRIOR_KEY

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    # Of the libraries that vLLM imports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

PROMPT, PRIOR, NEW = [1, 2, 3], [2, 5, 5, 6, 7], [7, 5, 8]
VOCABULARY = 12


@pytest.mark.parametrize("repetition", [1.0, 0.5, 1.3, 2.0])
@pytest.mark.parametrize(("presence", "frequency"), [(2.0, 0.0), (0.0, 1.5), (-1.0, -2.0), (0.5, 0.5)])
def test_they_are_vllms_own_in_its_order(presence: float, frequency: float, repetition: float) -> None:
    import torch
    from vllm.v1.sample.ops.penalties import apply_all_penalties

    from deployments.engines.vllm.resume_penalties import ResumePenalties

    def after_vllm(logits: Any, prompt: list[int], output: list[int], *penalties: float) -> Any:
        return apply_all_penalties(logits, torch.tensor([prompt]), *map(one_row, penalties), [output])

    def one_row(value: float) -> Any:
        return torch.tensor([value])

    logits = torch.linspace(-3.0, 3.0, VOCABULARY)[torch.randperm(VOCABULARY, generator=seeded(torch))].unsqueeze(0)
    logits[0, 6] = float("-inf")
    whole = after_vllm(logits.clone(), PROMPT, PRIOR + NEW, presence, frequency, repetition)

    processor = ResumePenalties(None, torch.device("cpu"), False)
    extra = {PRIOR_KEY: PRIOR, PRESENCE_KEY: presence, FREQUENCY_KEY: frequency}
    params = SimpleNamespace(extra_args=extra, repetition_penalty=repetition)
    added = [(0, params, PROMPT + PRIOR, NEW)]
    processor.update_state(SimpleNamespace(added=added, removed=[], moved=[]))
    resumed = after_vllm(processor.apply(logits.clone()), PROMPT + PRIOR, NEW, 0.0, 0.0, repetition)

    assert whole[0].tolist() == pytest.approx(resumed[0].tolist(), rel=1e-5, abs=1e-5)


def seeded(torch: Any) -> Any:
    return torch.Generator().manual_seed(1)
