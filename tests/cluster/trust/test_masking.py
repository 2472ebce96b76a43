"""Secrets are hidden by their names, come back from where they are known, and their stand-in is found."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.trust.masking import filled, masked_tree, still_masked

POOL: dict[str, Any] = {
    "model": "https://me:pw@hub/m",
    "vllm": {"extra": {"hf_token": "hf_abc", "seed": 3, "deep": {"api_key": "k", "name": "n"}, "token": ""}},
}
SHOWN: dict[str, Any] = {
    "model": "https://me:***@hub/m",
    "vllm": {"extra": {"hf_token": "***", "seed": 3, "deep": {"api_key": "***", "name": "n"}, "token": ""}},
}


def test_what_is_called_a_secret_is_hidden_at_any_depth() -> None:
    assert SHOWN == masked_tree(POOL)


@pytest.mark.parametrize(
    ("tree", "source", "expected"),
    [
        (SHOWN, POOL, POOL),
        (SHOWN, {}, SHOWN),
        (POOL, SHOWN, POOL),
        ({"hf_token": "new"}, {"hf_token": "old"}, {"hf_token": "new"}),
        ({"hf_token": "***", "seed": 4}, {"hf_token": "old", "seed": 3}, {"hf_token": "old", "seed": 4}),
    ],
)
def test_only_what_was_hidden_comes_back(tree: Any, source: Any, expected: Any) -> None:
    assert expected == filled(tree, source)


def test_a_stand_in_that_nothing_has_filled_is_found() -> None:
    assert [("vllm", "extra", "hf_token"), ("vllm", "extra", "deep", "api_key")] == list(still_masked(SHOWN))
    assert [] == list(still_masked(POOL))
    assert [] == list(still_masked({"name": "***"}))
