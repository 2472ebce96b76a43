"""Models and their adapters as Anthropic's SDK lists them."""

from __future__ import annotations

from penstock.v1 import inference_pb2 as api
from router.http.anthropic.models import model_info, models_page


def test_adapters_are_listed_with_their_models() -> None:
    models = [api.Model(name="demo", lora_adapters=["fr", "de"], max_context_tokens=256), api.Model(name="other")]
    page = models_page(models)
    assert ["demo", "fr", "de", "other"] == [each["id"] for each in page["data"]]
    assert ("demo", "other", False) == (page["first_id"], page["last_id"], page["has_more"])
    assert [256, 256, 256, None] == [each["max_input_tokens"] for each in page["data"]]


def test_no_models_are_an_empty_page() -> None:
    assert models_page([]) == {"data": [], "has_more": False, "first_id": None, "last_id": None}


def test_an_adapter_has_its_own_name() -> None:
    found = model_info(api.Model(name="demo", lora_adapters=["fr"]), "fr")
    assert ("fr", "fr") == (found["id"], found["display_name"])
