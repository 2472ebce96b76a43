"""Text by both of vLLM's detokenizers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    # Of the libraries that vLLM imports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class SlowTokenizer:
    """One that is not of the Rust library, as Mistral's own is not."""

    is_fast = False
    all_special_ids: tuple[int, ...] = ()
    all_special_tokens: tuple[str, ...] = ()
    _vocabulary = ("<p>", "a", "b", "c", "d")

    def __len__(self) -> int:
        return len(self._vocabulary)

    def convert_ids_to_tokens(self, ids: list[int], skip_special_tokens: bool = False) -> list[str]:
        return [self._vocabulary[each] for each in ids]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)

    def get_added_vocab(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize("stops", [False, True])
def test_a_slow_tokenizer_gives_the_text_of_its_own_tokens(stops: bool) -> None:
    from vllm.v1.engine.detokenizer import SlowIncrementalDetokenizer

    from deployments.engines.vllm.adapter import text_of

    params = SimpleNamespace(
        stop=["zz"] if stops else [], min_tokens=0, include_stop_str_in_output=False, skip_special_tokens=True,
        spaces_between_special_tokens=True,
    )  # fmt: skip
    request: Any = SimpleNamespace(sampling_params=params, prompt_token_ids=[0, 4], prompt_embeds=None, request_id="x")
    tokenizer: Any = SlowTokenizer()
    text = text_of(SlowIncrementalDetokenizer(tokenizer, request), stops=stops)
    pieces = [text.feed([token], stop_token=False, last=token == 3) for token in (1, 2, 3)]

    assert "abc" == "".join(pieces)
