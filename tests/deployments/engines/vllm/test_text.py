from __future__ import annotations

import pytest

from deployments.engines.vllm.text import PlainText, StoppableText


def decode(token: int) -> str:
    return {1: "a", 2: "b", 3: "", 4: "é"}[token]


@pytest.mark.parametrize(
    ("token_ids", "stop_token", "text"),
    [
        ([1], False, "a"),
        ([1, 2], False, "ab"),
        ([3], False, ""),
        ([3, 4], False, "é"),
        ([2], True, ""),
        ([], False, ""),
    ],
)
def test_plain_text_is_what_the_tokens_release(token_ids: list[int], stop_token: bool, text: str) -> None:
    before = list(token_ids)
    assert text == PlainText(decode).feed(token_ids, stop_token=stop_token, last=stop_token)
    assert before == token_ids


class _Detokenizer:
    """Stands in for vLLM's with the stop string "b", which it holds back nothing for."""

    def __init__(self) -> None:
        self.count = 0
        self.text = ""

    def num_output_tokens(self) -> int:
        return self.count

    def update(self, token_ids: list[int], _stopped: bool) -> str | None:
        for token in token_ids:
            self.count += 1
            self.text += decode(token)
            if self.text.endswith("b"):
                self.text = self.text[:-1]
                return "b"
        return None

    def get_next_output_text(self, finished: bool, _delta: bool) -> str:
        text, self.text = (self.text, "") if finished else ("", self.text)
        return text


def test_tokens_after_a_stop_string_are_dropped() -> None:
    text = StoppableText(_Detokenizer())
    assert "" == text.feed([1], stop_token=False, last=False)
    assert "" == text.match
    token_ids = [1, 2, 1]
    assert "aa" == text.feed(token_ids, stop_token=False, last=False)
    assert ("b", [1, 2]) == (text.match, token_ids)


def test_what_was_held_back_comes_with_the_end() -> None:
    text = StoppableText(_Detokenizer())
    text.feed([1], stop_token=False, last=False)
    assert "a" == text.feed([], stop_token=False, last=True)
