"""What a caller is told about itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from penstock.client import AsyncClient, Client, CredentialKind, Identity, Role
from penstock.models import RequestClass
from penstock.v1 import admin_pb2
from router.admin.whoami import KINDS, ROLES, who_is
from router.identity import ANONYMOUS
from router.identity import Role as CallerRole
from router.identity.caller import CredentialKind as CallerKind
from router.identity.key import key_id
from router.identity.new_key import KeyPlan, add_key
from tests.router.http.test_openai import HTTP, base
from tests.support.keys import bearer
from tests.support.stack import Stack, running_stack, sim_pool

EXPIRES = datetime(2199, 1, 31, tzinfo=UTC)
ALL = (RequestClass.INTERACTIVE, RequestClass.STANDARD, RequestClass.BATCH)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.toml"


@pytest.fixture(scope="module")
def narrow(path: Path) -> str:
    return add_key(path, KeyPlan("acme", "operator", ("demo", "gone"), ("batch",), expires=EXPIRES))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, path: Path, narrow: str) -> AsyncIterator[Stack]:
    pools = {"demo": sim_pool(), "large": sim_pool()}
    sections = {"auth": {"keys_file": str(path)}}
    async with running_stack(tmp_path_factory.mktemp("stack"), pools=pools, sections=sections, router=HTTP) as running:
        yield running


@pytest.mark.asyncio(loop_scope="module")
async def test_a_key_learns_its_tenant_role_limits_name_and_end(stack: Stack, narrow: str) -> None:
    target = f"127.0.0.1:{stack.routers[0].port}"
    async with AsyncClient(target, api_key=narrow) as client:
        found = await client.whoami()

    def ask() -> Identity:
        with Client(target, api_key=narrow) as client:
            return client.whoami()

    own = key_id(narrow)
    assert own is not None
    assert found == await asyncio.to_thread(ask)
    assert found == Identity(
        "acme", Role.OPERATOR, ("demo",), (RequestClass.BATCH,), CredentialKind.API_KEY, own, EXPIRES
    )


@pytest.mark.asyncio(loop_scope="module")
async def test_http_tells_the_same(stack: Stack, narrow: str) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{base(stack)}/v1/whoami", headers=dict(bearer(narrow))) as reply,
    ):
        found = await reply.json()

    assert found == {
        "object": "caller",
        "tenant": "acme",
        "role": "operator",
        "models": ["demo"],
        "classes": ["batch"],
        "credential": {"kind": "api_key", "name": key_id(narrow), "expires_at": int(EXPIRES.timestamp())},
    }


def test_every_role_and_kind_has_a_name_on_the_wire() -> None:
    assert set(ROLES) == set(CallerRole)
    assert set(KINDS) == set(CallerKind)
    for role in CallerRole:
        wire = admin_pb2.WhoAmIResponse(role=ROLES[role])
        assert role.name.lower() == Identity.from_proto(wire).role
    for kind in CallerKind:
        wire = admin_pb2.WhoAmIResponse(credential_kind=KINDS[kind])
        assert kind.name.lower() == Identity.from_proto(wire).credential_kind


def test_a_caller_without_credentials_is_told_so() -> None:
    found = Identity.from_proto(who_is(ANONYMOUS, ["b", "a"]))
    assert found == Identity("anonymous", Role.ADMIN, ("a", "b"), ALL, CredentialKind.NONE, "", None)
