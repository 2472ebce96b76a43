"""Models and their adapters as Anthropic's SDK lists them."""

from __future__ import annotations

import pytest

from penstock.v1 import inference_pb2 as api
from penstock.values.objects import BodyError
from router.http.anthropic.models import model_info, models_page


def test_adapters_are_listed_with_their_models() -> None:
    models = [api.Model(name="demo", lora_adapters=["fr", "de"], max_context_tokens=256), api.Model(name="other")]
    page = models_page(models, {})
    assert ["demo", "fr", "de", "other"] == [each["id"] for each in page["data"]]
    assert ("demo", "other", False) == (page["first_id"], page["last_id"], page["has_more"])
    assert [256, 256, 256, None] == [each["max_input_tokens"] for each in page["data"]]


def test_no_models_are_an_empty_page() -> None:
    assert models_page([], {}) == {"data": [], "has_more": False, "first_id": None, "last_id": None}


def test_an_adapter_has_its_own_name() -> None:
    found = model_info(api.Model(name="demo", lora_adapters=["fr"]), "fr")
    assert ("fr", "fr") == (found["id"], found["display_name"])


MODELS = [api.Model(name="a"), api.Model(name="b", lora_adapters=["c"]), api.Model(name="d"), api.Model(name="e")]


@pytest.mark.parametrize(
    ("query", "ids", "more"),
    [
        ({"limit": "2"}, "ab", True),
        ({"limit": "5"}, "abcde", False),
        ({"limit": "2", "after_id": "b"}, "cd", True),
        ({"limit": "2", "after_id": "c"}, "de", False),
        ({"after_id": "e"}, "", False),
        ({"limit": "2", "before_id": "d"}, "bc", True),
        ({"limit": "2", "before_id": "c"}, "ab", False),
        ({"before_id": "a"}, "", False),
    ],
)
def test_a_page_has_the_models_that_are_asked_for(query: dict[str, str], ids: str, more: bool) -> None:
    page = models_page(MODELS, query)
    assert [*ids] == [each["id"] for each in page["data"]]
    assert (more, ids[:1] or None, ids[-1:] or None) == (page["has_more"], page["first_id"], page["last_id"])


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"after_id": "no-such-model"}, "after_id"),
        ({"before_id": "no-such-model"}, "before_id"),
        ({"after_id": "a", "before_id": "d"}, "before_id"),
    ],
)
def test_a_wrong_page_is_refused_and_named(query: dict[str, str], named: str) -> None:
    with pytest.raises(BodyError) as refused:
        models_page(MODELS, query)
    assert named == refused.value.field
