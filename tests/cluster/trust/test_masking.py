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
    "name",
    [
        "hf_token", "HF_TOKEN", "session_token", "password", "db-password", "passwd", "client_secret", "clientSecret",
        "api_key", "OPENAI_API_KEY", "apiKey", "AWS_SECRET_ACCESS_KEY", "secretAccessKey", "private_key", "account_key",
        "key", "credentials",
    ],
)  # fmt: skip
def test_a_name_tells_a_secret_in_every_way_of_writing(name: str) -> None:
    assert {name: "***"} == masked_tree({name: "x"})
    assert {name: ["***", "***"]} == masked_tree({name: ["x", "y"]})


@pytest.mark.parametrize(
    "name",
    [
        "pad_token", "eos_token", "bos_token", "decoder_start_token", "image_token", "stop_token_ids", "max_tokens",
        "tokenizer", "tokenizer_mode", "hf_token_file", "aws_access_key_id", "monkey", "keys", "secretary",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_secret_is_shown(name: str) -> None:
    assert {name: "</s>"} == masked_tree({name: "</s>"})


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://hub/m?token=t&rev=1", "https://hub/m?token=***&rev=1"),
        ("https://store/m?se=2027&sig=a%2Fb", "https://store/m?se=2027&sig=***"),
        ("https://hub/m?API_KEY=k", "https://hub/m?API_KEY=***"),
        ("https://hub/m?tokens=3", "https://hub/m?tokens=3"),
        ("redis://:p[w@host:6379/0", "redis://:***@host:6379/0"),
        ("redis://me:p@w]@[fd00::1]:6379/0?a=b:c@d", "redis://me:***@[fd00::1]:6379/0?a=b:c@d"),
        ("jdbc:redis://me:pw@host", "jdbc:redis://me:***@host"),
        ("https://me@[host", "https://me@[host"),
        ("https://host/a:b@c", "https://host/a:b@c"),
    ],
)
def test_an_address_is_shown_without_its_secrets(address: str, shown: str) -> None:
    assert {"model": shown} == masked_tree({"model": address})
    assert ([("model",)] if shown != address else []) == list(still_masked({"model": shown}))
    assert {"model": address} == filled({"model": shown}, {"model": address})


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
    inside = ("vllm", "extra")
    assert [("model",), (*inside, "hf_token"), (*inside, "deep", "api_key")] == list(still_masked(SHOWN))
    assert [("hub",), ("api_key",)] == list(still_masked({"hub": [{"token": "***"}], "api_key": ["***"]}))
    assert [] == list(still_masked(POOL))
    assert [] == list(still_masked({"name": "***"}))
