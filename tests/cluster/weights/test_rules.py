"""Which files are fetched, and how long a download waits."""

from __future__ import annotations

import datetime

import pytest

from cluster.weights.files import RepositoryFile, wanted
from cluster.weights.retry import RetryRules, asked_wait, wait_before

NOW = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
LLAMA = (
    ".gitattributes",
    "README.md",
    "config.json",
    "consolidated.safetensors",
    "model-1.safetensors",
    "model.safetensors.index.json",
    "original/consolidated.00.pth",
    "original/params.json",
    "pytorch_model-1.bin",
    "tf_model.h5",
    "tokenizer.json",
    "tokenizer.model",
)


def chosen(*names: str, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> list[str]:
    return [file.name for file in wanted([RepositoryFile(name, 1, "") for name in names], include, exclude)]


def test_of_the_same_weights_in_several_forms_only_the_safetensors_are_wanted() -> None:
    unwanted = {
        ".gitattributes",
        "original/consolidated.00.pth",
        "original/params.json",
        "pytorch_model-1.bin",
        "tf_model.h5",
    }
    assert sorted(set(LLAMA) - unwanted) == chosen(*LLAMA)


def test_weights_in_an_older_form_are_wanted_where_there_are_no_others() -> None:
    assert ["config.json", "pytorch_model.bin"] == chosen("pytorch_model.bin", "config.json", "flax_model.msgpack")
    # Safetensors of an adapter beside the model are not the model's.
    assert ["adapter/a.safetensors", "pytorch_model.bin"] == chosen("pytorch_model.bin", "adapter/a.safetensors")


def test_what_no_safetensors_have_is_wanted_whatever_its_form() -> None:
    """VLLM leaves out a dense layer without a file, and makes other vectors."""
    parts = ("1_Pooling/config.json", "2_Dense/pytorch_model.bin", "3_Dense/model.safetensors", "colbert_linear.pt")
    names = ("model.safetensors", *parts)
    assert sorted(names) == chosen(*names, "pytorch_model.bin", "3_Dense/pytorch_model.bin", "optimizer.pt")
    # Those of an adapter are not the model's.
    assert ["adapter_model.safetensors", "pytorch_model.bin"] == chosen(
        "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin"
    )


def test_patterns_choose_and_leave_out() -> None:
    assert ["config.json"] == chosen(*LLAMA, include=("config.json",))
    assert "consolidated.safetensors" not in chosen(*LLAMA, exclude=("consolidated*",))
    assert ["original/params.json"] == chosen(*LLAMA, include=("params.json",))


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"Retry-After": "17"}, 17.0),
        ({"retry-after": " 17 "}, 17.0),
        ({"Retry-After": "Thu, 01 Jan 2026 12:00:30 GMT"}, 30.0),
        ({"Retry-After": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0.0),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
def test_a_server_asks_for_a_wait_in_seconds_or_until_a_time(headers: dict[str, str], wait: float | None) -> None:
    assert wait == asked_wait(headers, NOW)


def test_waits_grow_to_a_bound_and_a_servers_wish_counts_more() -> None:
    rules = RetryRules(first_s=1, most_s=10, most_asked_s=100)
    assert [1, 2, 4, 8, 10, 10] == [wait_before(tries, None, rules, 0) for tries in range(1, 7)]
    assert 60 == wait_before(1, 60, rules, 0)
    assert 100 == wait_before(1, 1e9, rules, 0)
    assert 1 == wait_before(9, 0, rules, 0), "a server that asks for no wait is not asked in a loop"
    assert 10 == wait_before(10_000, None, rules, 0)


def test_pods_that_were_refused_at_once_do_not_come_back_at_once() -> None:
    rules = RetryRules()
    waits = {wait_before(1, 60, rules, spread / 10) for spread in range(11)}
    assert (11, 60, 75) == (len(waits), min(waits), max(waits))
