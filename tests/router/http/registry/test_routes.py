"""The registry over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.router.http.openapi.test_document import check
from tests.router.http.test_openai import HTTP, base
from tests.support.keys import Keys
from tests.support.stack import Stack, running_stack

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("patient_registry")]

PATH = "/v1/registry"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> AsyncIterator[Stack]:
    sections = {
        "auth": {"keys_file": str(keys.path)},
        "tenants": {"declared": {"weight": 2.0}, "pinned": {"weight": 3.0}},
        "registry": {"fixed": ["tenant/pinned"]},
    }
    folder = tmp_path_factory.mktemp("stack")
    async with running_stack(folder, router=HTTP, sections=sections) as running:
        yield running


async def call(
    stack: Stack, key: str, method: str, path: str = "", body: Any = None, **headers: str
) -> tuple[int, Any, Any]:
    """Return status, body and headers of a call."""
    sent = {"Authorization": f"Bearer {key}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with (
        aiohttp.ClientSession(base(stack), headers=sent) as session,
        session.request(method, f"{PATH}{path}", json=body) as reply,
    ):
        return reply.status, await reply.json(), reply.headers


async def test_an_entry_is_made_read_changed_listed_and_deleted(stack: Stack, keys: Keys) -> None:
    status, made, headers = await call(stack, keys.admin, "PUT", "/tenants/acme", {"weight": 3}, If_None_Match="*")
    check(made, "RegistryResult")
    assert (status, made["behind"]) == (200, [])
    assert made["differences"] == [{"kind": "tenant", "name": "acme", "before": None, "after": {"weight": 3}}]
    status, entry, read = await call(stack, keys.operator, "GET", "/tenant/acme")
    check(entry, "RegistryEntry")
    assert (status, entry["value"], entry["fixed"]) == (200, {"weight": 3}, False)
    assert read["ETag"] == headers["ETag"] == f'"{entry["version"]}"'
    status, changed, _ = await call(stack, keys.admin, "PUT", "/tenant/acme", {"weight": 4}, If_Match=read["ETag"])
    assert (status, changed["differences"][0]["before"]) == (200, {"weight": 3})
    status, page, _ = await call(stack, keys.operator, "GET", "/tenants?limit=2")
    check(page, "RegistryPage")
    assert ([each["name"] for each in page["data"]], page["has_more"]) == (["acme", "declared"], True)
    status, page, _ = await call(stack, keys.operator, "GET", f"?after={page['last_id']}")
    assert [each["name"] for each in page["data"]] == ["pinned"]
    status, gone, _ = await call(stack, keys.admin, "DELETE", "/tenant/acme")
    assert (status, gone["differences"][0]["after"]) == (200, None)
    for method in ("GET", "DELETE"):
        status, error, _ = await call(stack, keys.admin, method, "/tenant/acme")
        check(error, "Error")
        assert (status, error["error"]["code"]) == (404, "not_found")
    status, found, _ = await call(stack, keys.operator, "GET", "/history?kind=tenants&name=acme&limit=2")
    newest, before = found["data"]
    assert (newest["before"], newest["after"], newest["tenant"], newest["intact"]) == (
        {"weight": 4},
        None,
        "root",
        True,
    )
    assert newest["credential"] == keys.admin.split("_")[1]
    assert before["number"] == newest["number"] - 1


async def test_of_two_who_change_the_same_version_one_is_told(stack: Stack, keys: Keys) -> None:
    await call(stack, keys.admin, "PUT", "/tenant/both", {"weight": 2})
    etag = (await call(stack, keys.admin, "GET", "/tenant/both"))[2]["ETag"]
    tries = [call(stack, keys.admin, "PUT", "/tenant/both", {"weight": w}, If_Match=etag) for w in (3, 4)]
    found = sorted([(status, body) for status, body, _ in await asyncio.gather(*tries)], key=lambda one: one[0])
    assert [status for status, _ in found] == [200, 412]
    assert found[1][1]["error"]["code"] == "registry_conflict"
    status, error, _ = await call(stack, keys.admin, "PUT", "/tenant/both", {"weight": 5}, If_None_Match="*")
    assert (status, error["error"]["code"]) == (412, "registry_conflict")
    status, error, _ = await call(stack, keys.admin, "DELETE", "/tenant/both", If_Match=etag)
    assert status == 412


@pytest.mark.parametrize(
    ("method", "path", "body", "told"),
    [
        ("PUT", "/tenant/a", {"wight": 2}, "wight: unknown setting"),
        ("PUT", "/tenant/pinned", {"weight": 2}, "name: tenant 'pinned' is fixed by the setting registry.fixed"),
        ("PUT", "/thing/a", {}, "kind: must be one of adapter, alias, key, pool, tenant, got 'thing'"),
        ("GET", "/things", None, "kind: must be one of adapter, alias, key, pool, tenant, got 'things'"),
        ("PUT", "/tenant/a?wait=soon", {}, 'wait: must be seconds, such as 5 or 0.5, got "soon"'),
        ("PUT", "/tenant/a?wait=61", {}, "wait: must be 0 s to 60 s, got 61 s"),
        ("PUT", "/tenant/a?wait=99999", {}, "wait: must be 0 s to 60 s, got 99999 s"),
        ("PUT", "/tenant/a?wait=-1", {}, "wait: must be 0 s to 60 s, got -1 s"),
        ("GET", "?limit=10001", None, 'limit: must be a whole number of at least 0 and at most 10000, got "10001"'),
        ("GET", "?limit=-1", None, 'limit: must be a whole number of at least 0 and at most 10000, got "-1"'),
        ("GET", "?limit=5000000000", None, 'at most 10000, got "5000000000"'),
        ("GET", "?hashes=yes", None, 'hashes: must be true or false, got "yes"'),
        ("POST", "", {"edits": []}, "edits: must be 1 to 1000, got 0"),
        ("POST", "", {"edits": [{"kind": "tenant"}]}, "edits[0].name: is required"),
        ("POST", "", {"edits": [{"kind": "tenant", "name": "a", "vale": {}}]}, "edits[0].vale: is not supported"),
        ("POST", "/keys", {"tenant": "a", "role": "king"}, "role: "),
        ("POST", "/keys", {"tenant": "a", "expires": "soon"}, "expires: must be a time with its zone"),
        ("POST", "/keys", {"tenant": "a", "models": [1]}, "models: must be a list of texts"),
    ],
)
async def test_what_is_wrong_is_named(stack: Stack, keys: Keys, method: str, path: str, body: Any, told: str) -> None:
    status, error, _ = await call(stack, keys.admin, method, path, body)
    assert (status, error["error"]["type"]) == (400, "invalid_request_error")
    assert told in error["error"]["message"]


@pytest.mark.parametrize("header", ["3", '"three"', "*"])
async def test_an_etag_that_is_none_is_refused(stack: Stack, keys: Keys, header: str) -> None:
    status, error, _ = await call(stack, keys.admin, "PUT", "/tenant/a", {}, If_Match=header)
    assert (status, error["error"]["param"]) == (400, "If-Match")


async def test_several_edits_are_made_together_or_not_at_all(stack: Stack, keys: Keys) -> None:
    edits = [{"kind": "tenants", "name": name, "value": {"weight": 2}} for name in ("one", "two")]
    status, found, _ = await call(stack, keys.admin, "POST", "?dry_run=true", {"edits": edits})
    assert (status, len(found["differences"])) == (200, 2)
    wrong = {"edits": [*edits, {"kind": "tenant", "name": "three", "expected_version": 7}]}
    assert (await call(stack, keys.admin, "POST", "", wrong))[0] == 412
    status, error, _ = await call(stack, keys.admin, "GET", "/tenant/one")
    assert (status, error["error"]["message"]) == (404, "Not Found: there is no /v1/registry/tenant/one")
    assert (await call(stack, keys.admin, "POST", "", {"edits": edits}))[0] == 200
    gone = {"edits": [{"kind": "tenant", "name": name} for name in ("one", "two")]}
    assert (await call(stack, keys.admin, "POST", "", gone))[0] == 200


async def test_a_key_is_made_used_and_revoked(stack: Stack, keys: Keys) -> None:
    asked = {"tenant": "made", "models": ["demo"], "expires": "2199-01-01T00:00:00Z"}
    status, made, headers = await call(stack, keys.admin, "POST", "/keys", asked)
    check(made, "CreatedKey")
    assert (status, headers["Cache-Control"]) == (200, "no-store")
    _, entry, _ = await call(stack, keys.admin, "GET", f"/keys/{made['id']}")
    assert entry["value"] == {"tenant": "made", "role": "user", **asked}
    assert "sha256" in (await call(stack, keys.admin, "GET", f"/keys/{made['id']}?hashes=1"))[1]["value"]
    assert (await call(stack, made["key"], "GET"))[0] == 403
    assert (await call(stack, keys.admin, "DELETE", f"/keys/{made['id']}?end_streams=true"))[0] == 200
    assert (await call(stack, made["key"], "GET"))[0] == 401


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("PUT", "/tenant/a", {}), ("DELETE", "/tenant/a", None), ("POST", "", {}), ("POST", "/keys", {"tenant": "ops"})],
)
async def test_operators_read_and_users_do_not(stack: Stack, keys: Keys, method: str, path: str, body: Any) -> None:
    for key in (keys.operator, keys.acme):
        status, error, _ = await call(stack, key, method, path, body)
        assert (status, error["error"]["type"]) == (403, "permission_error"), error
    assert (await call(stack, keys.acme, "GET"))[0] == 403
    assert (await call(stack, keys.operator, "GET", "?hashes=true"))[0] == 403
    assert (await call(stack, "", "GET"))[0] == 401
