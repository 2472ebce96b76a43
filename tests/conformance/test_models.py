"""Models, health and version."""

from __future__ import annotations

import openai
import pytest
from openai.types import Model

from tests.conformance.target import MARKS, Target, refused

pytestmark = MARKS


async def test_models_are_listed(target: Target, sdk: openai.AsyncOpenAI) -> None:
    found = (await target.call("GET", "/v1/models")).json
    assert found["object"] == "list"
    for each in found["data"]:
        Model.model_validate(each, strict=True)
    assert target.model in [model.id async for model in sdk.models.list()]


async def test_a_model_tells_its_context(target: Target) -> None:
    found = (await target.call("GET", "/v1/models")).json["data"]
    model = next(each for each in found if each["id"] == target.model)
    assert model["max_model_len"] > 0
    assert {"root", "parent"} <= set(model)


async def test_a_model_is_found_by_its_name(target: Target, sdk: openai.AsyncOpenAI) -> None:
    assert (await sdk.models.retrieve(target.model)).id == target.model


async def test_an_unknown_model_is_not_found(target: Target) -> None:
    assert refused(await target.call("GET", "/v1/models/no-such-model"), 404)["code"]


@pytest.mark.parametrize("path", ["/health", "/ping", "/version"])
async def test_probes_need_no_key(target: Target, path: str) -> None:
    assert (await target.call("GET", path, key=False)).status == 200


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
async def test_a_head_request_is_answered(target: Target, path: str) -> None:
    assert (await target.call("HEAD", path)).status == 200
