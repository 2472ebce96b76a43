"""A tenant's own operators see what is their tenant's, and never another tenant's name or id."""

from __future__ import annotations

import asyncio
import datetime
import json
import re
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import aiohttp
import grpc
import pytest
import pytest_asyncio
from grpc_status import rpc_status

from cluster.registry.contract import Edit
from penstock.client import (
    AsyncClient,
    InvalidArgumentError,
    NewKey,
    PermissionDeniedError,
    RegistryEdit,
    UnauthenticatedError,
)
from penstock.v1 import admin_pb2, jobs_pb2, registry_pb2
from router.identity import Caller, Role
from router.identity.caller import Credential, CredentialKind
from router.identity.new_key import KeyPlan, add_key
from router.registry import api as module
from router.registry.scope import Scope
from tests.router.http.test_openai import HTTP, base
from tests.router.identity.test_calls import every_call
from tests.support.keys import Keys, bearer
from tests.support.stack import Stack, request, running_stack, sim_pool, stream_request
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

OTHER = "zzsecret"
"""Name of the other tenant, which is also in the names of what it sends."""
FREE = "0" * 16
"""Id that no key has."""
FIXED = "f" * 16
"""Id of a key that only the settings may change."""


class Tenants(Keys):
    """Keys of two tenants' operators, and what the other tenant has."""

    def __init__(self, path: Any) -> None:
        super().__init__(path)
        self.mine = add_key(path, KeyPlan("acme", role="tenant_operator"))
        self.theirs = add_key(path, KeyPlan(OTHER, role="tenant_operator"))
        self.secrets = {OTHER, self.theirs.split("_")[1]}
        """Texts that the first tenant must never see."""
        self.request_id = self.job_id = ""
        """Of the other tenant."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keys(tmp_path_factory: pytest.TempPathFactory) -> Tenants:
    return Tenants(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, keys: Tenants) -> AsyncIterator[Stack]:
    """A cluster on which the other tenant has everything that one can have, and blocks the first one's requests."""
    quota = {"requests_per_minute": 1000, "cost_per_day": 1000.0}
    sections = {
        "auth": {"keys_file": str(keys.path), "failures_per_minute": 0},
        "tenants": {OTHER: {"quota": quota}, "acme": {"quota": quota}},
        "registry": {"fixed": [f"key/{FIXED}"]},
    }
    pools = {"demo": {**sim_pool(base_ms=10.0, max_num_seqs=1), "price_per_gpu_hour": 1.0}}
    folder = tmp_path_factory.mktemp("stack")
    async with running_stack(folder, router=HTTP, pools=pools, sections=sections) as found:
        # Records are kept, and usage counted.
        await found.inference().Generate(request(max_tokens=1), metadata=bearer(keys.theirs))
        await found.inference().Generate(request(max_tokens=1), metadata=bearer(keys.acme))
        async with client(found, keys.admin) as admin:
            made = await admin.create_key(OTHER)
            keys.secrets.add(made.id)
            alias = {"targets": [{"model": "demo", "weight": 1}]}
            edits = [RegistryEdit("tenant", "zzmore", {"weight": 2}), RegistryEdit("alias", "fast", alias)]
            await admin.edit_registry([*edits, RegistryEdit("tenant", OTHER, {"weight": 2})])
            await admin.edit_registry([RegistryEdit("tenant", "acme", {"weight": 2, "quota": quota})])
            keys.secrets.add("zzmore")
        job = iter(
            [
                jobs_pb2.SubmitJobRequest(header=jobs_pb2.JobHeader(model="demo")),
                jobs_pb2.SubmitJobRequest(
                    items=jobs_pb2.JobItems(items=[jobs_pb2.JobItem(custom_id="x", request=_item())])
                ),
            ]
        )
        keys.job_id = (await found.jobs().SubmitJob(job, metadata=bearer(keys.theirs))).job.job_id
        running = found.inference().StreamGenerate(
            stream_request(max_tokens=30_000, ignore_eos=True), metadata=bearer(keys.theirs)
        )
        event = await running.read()
        keys.request_id = event.started.request_id or event.queued.request_id
        waiting = [
            found.inference().StreamGenerate(stream_request(max_tokens=30_000, ignore_eos=True), metadata=bearer(key))
            for key in (keys.theirs, keys.acme)
        ]
        await asyncio.gather(*(call.read() for call in waiting))
        keys.secrets |= {keys.request_id, keys.job_id}
        assert "" not in keys.secrets
        async with client(found, keys.operator) as operator:

            async def seen() -> bool:
                (pool,) = (await operator.cluster_status()).pools
                return {"acme", OTHER} <= {each.tenant for each in pool.line}

            await until(seen)
            assert OTHER in str(await operator.requests(all_tenants=True))
        yield found
        for call in (running, *waiting):
            call.cancel()


def _item() -> Any:
    item = request(max_tokens=30_000, ignore_eos=True)
    item.ClearField("model")
    return item


def client(stack: Stack, key: str) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{stack.routers[0].port}", api_key=key, allow_plaintext_key=True)


async def said(call: Any, seconds: float = 2.0) -> str:
    """Return everything that a call tells its caller, of an endless one what it tells in these seconds."""
    told: list[str] = []
    try:
        async with asyncio.timeout(seconds):
            if not hasattr(call, "read"):
                return str(await call)
            while (event := await call.read()) is not grpc.aio.EOF:
                told.append(str(event))
    except TimeoutError:
        call.cancel()
    except grpc.aio.AioRpcError as error:
        return f"{error.details()} {await rpc_status.aio.from_call(call)}"
    return " ".join(told)


# --- every call -------------------------------------------------------------------------------------------------------


async def test_no_call_of_any_service_names_another_tenant(stack: Stack, keys: Tenants) -> None:
    metadata = bearer(keys.mine)
    admin, jobs = stack.admin(), stack.jobs()
    pointed = [
        admin.GetUsage(admin_pb2.GetUsageRequest(all_tenants=True), metadata=metadata),
        admin.ListRequests(admin_pb2.ListRequestsRequest(all_tenants=True), metadata=metadata),
        admin.ListRegistry(registry_pb2.ListRegistryRequest(kind="tenant"), metadata=metadata),
        admin.ListRegistry(registry_pb2.ListRegistryRequest(kind="key", limit=1), metadata=metadata),
        admin.ListRegistryChanges(registry_pb2.ListRegistryChangesRequest(limit=1000), metadata=metadata),
        admin.ListRegistryChanges(registry_pb2.ListRegistryChangesRequest(kind="tenant"), metadata=metadata),
        jobs.ListJobs(jobs_pb2.ListJobsRequest(), metadata=metadata),
    ]
    calls = [*every_call(stack, metadata), *pointed]
    told = await asyncio.gather(*map(said, calls))
    assert [text for text in told if any(secret in text for secret in keys.secrets)] == []


async def test_another_tenants_ids_are_as_good_as_unknown(stack: Stack, keys: Tenants) -> None:
    metadata = bearer(keys.mine)

    async def ends(request_id: str, job_id: str) -> list[str]:
        calls = [
            stack.admin().Explain(admin_pb2.ExplainRequest(request_id=request_id), metadata=metadata),
            stack.jobs().GetJob(jobs_pb2.GetJobRequest(job_id=job_id), metadata=metadata),
            stack.jobs().CancelJob(jobs_pb2.CancelJobRequest(job_id=job_id), metadata=metadata),
            stack.jobs().WatchJob(jobs_pb2.WatchJobRequest(job_id=job_id), metadata=metadata),
            stack.jobs().DeleteJob(jobs_pb2.DeleteJobRequest(job_id=job_id), metadata=metadata),
        ]
        # Each of them ends.
        found = await asyncio.gather(*(said(call, 60.0) for call in calls))
        return [text.replace(request_id, "ID").replace(job_id, "ID") for text in found]

    def another(known: str) -> str:
        return known[:-4] + ("1111" if known.endswith("0000") else "0000")

    unknown = await ends(another(keys.request_id), another(keys.job_id))
    assert await ends(keys.request_id, keys.job_id) == unknown


async def test_no_route_over_http_names_another_tenant(stack: Stack, keys: Tenants) -> None:
    http = stack.routers[0].http
    assert http is not None
    paths = sorted({
        re.sub(r"{(\w+)(:[^}]*)?}", "x", route.resource.canonical)
        for route in http.app.router.routes()
        if route.resource is not None and route.method == "GET"
    })  # fmt: skip
    assert "/v1/registry/history" in paths
    more = ["/v1/registry?limit=1000", "/v1/registry/keys", "/v1/registry/tenants", "/v1/registry/history?limit=1000"]
    headers = {"Authorization": f"Bearer {keys.mine}"}
    async with aiohttp.ClientSession(base(stack), headers=headers) as session:
        for path in (*paths, *more):
            async with session.get(path) as reply:
                text = await reply.text()
            assert [secret for secret in keys.secrets if secret in text] == [], path


async def test_its_own_things_are_seen(stack: Stack, keys: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(stack, keys.mine) as mine:
        assert (await mine.whoami()).role == "tenant_operator"
        (pool,) = (await mine.cluster_status()).pools
        assert {each.tenant for each in pool.line} == {"acme"}
        assert {each.tenant for each in pool.quotas} == {"acme"}
        assert {each.tenant for each in pool.budgets} == {"acme"}
        assert (pool.waiting + pool.running >= 1, len(pool.replicas)) == (True, 1)
        found = {(each.kind, each.name) for each in await mine.registry()}
        assert {("tenant", "acme"), ("alias", "fast")} <= found
        (change,) = await mine.registry_changes("tenant")
        # Who made it is another tenant.
        assert (change.difference.name, change.tenant, change.credential) == ("acme", "", "")
        assert {each.tenant for each in await mine.requests()} <= {"acme"}
        # It sees few of the changes, so one call may see none, and say where to go on.
        monkeypatch.setattr(module, "MOST_CHANGES", 2)
        monkeypatch.setattr(module, "MOST_PAGES", 1)
        assert (change,) == await mine.registry_changes("", name="acme", limit=2)
        numbers = [each.number for each in await mine.registry_changes(limit=2)]
        assert numbers == sorted(numbers, reverse=True)
        assert change.number in numbers


# --- changes ----------------------------------------------------------------------------------------------------------


async def test_it_makes_changes_and_revokes_keys_of_its_tenant(stack: Stack, keys: Tenants) -> None:
    async with client(stack, keys.mine) as mine:
        made: NewKey = await mine.create_key("")
        second = await mine.create_key("acme", role="tenant_operator", models=["demo"])
        async with client(stack, made.key) as caller:
            assert (await caller.whoami()).tenant == "acme"
        await mine.edit_registry([RegistryEdit("key", made.id, {"tenant": "acme", "classes": ["batch"]})])
        found = {each.name: each.value for each in await mine.registry("key")}
        assert found[made.id] == {"tenant": "acme", "classes": ["batch"]}
        # It did this itself.
        assert {each.tenant for each in await mine.registry_changes("key")} == {"acme"}
        await mine.edit_registry([RegistryEdit("key", made.id, None, end_streams=True)])
        await mine.edit_registry([RegistryEdit("key", second.id, None)])
        async with client(stack, made.key) as caller:
            with pytest.raises(UnauthenticatedError):
                await caller.whoami()


async def test_it_changes_nothing_else(stack: Stack, keys: Tenants) -> None:
    async with client(stack, keys.admin) as admin, client(stack, keys.mine) as mine:
        above = await admin.create_key("acme", role="admin")
        (theirs,) = [each for each in await admin.registry("key") if each.value["tenant"] == OTHER]
        for edit in (
            RegistryEdit("tenant", "acme", {"weight": 99}),
            RegistryEdit("tenant", "acme", None),
            RegistryEdit("alias", "fast", None),
            RegistryEdit("adapter", "poet", {"pool": "demo", "source": "/x"}),
            RegistryEdit("key", theirs.name, None),
            RegistryEdit("key", theirs.name, None, end_streams=True),
            RegistryEdit("key", theirs.name, {"tenant": "acme"}),
            RegistryEdit("key", keys.other.split("_")[1], None, end_streams=True),
            RegistryEdit("key", "0" * 16, None),
            RegistryEdit("key", above.id, None),
            RegistryEdit("key", above.id, {"tenant": "acme"}),
            RegistryEdit("key", "0" * 16, {"tenant": "acme", "sha256": "0" * 64}),
            RegistryEdit("key", keys.other.split("_")[1], {"tenant": "acme", "sha256": "0" * 64}),
            RegistryEdit("key", "0" * 16, {"tenant": OTHER, "sha256": "0" * 64}),
            RegistryEdit("key", "0" * 16, {"tenant": "acme", "role": "operator", "sha256": "0" * 64}),
        ):
            with pytest.raises(PermissionDeniedError) as caught:
                await mine.edit_registry([edit], dry_run=True)
            assert "'acme'" in str(caught.value)
        for tenant, role in ((OTHER, "user"), ("acme", "operator"), ("acme", "admin")):
            with pytest.raises(PermissionDeniedError):
                await mine.create_key(tenant, role=role)
        with pytest.raises(PermissionDeniedError):
            await mine.set_operating_point("demo", None)


@pytest.mark.parametrize("models", [None, ["demo", "large"], ["large"]])
async def test_a_key_gets_no_more_than_its_maker_has(models: list[str] | None) -> None:
    scope = Scope(Caller("acme", Role.TENANT_OPERATOR, models=frozenset({"demo"})))
    with pytest.raises(Exception, match=r"models .* is not allowed") as caught:
        scope.check_key({"tenant": "acme", **({"models": models} if models else {})})
    assert "allowed: demo" in str(caught.value)
    scope.check_key({"tenant": "acme", "models": ["demo"]})


SOON, LATER = "2030-01-01T00:00:00+00:00", "2031-01-01T00:00:00+00:00"


async def test_a_key_lives_no_longer_than_its_makers() -> None:
    ends_ms = datetime.datetime.fromisoformat(SOON).timestamp() * 1000
    credential = Credential(CredentialKind.API_KEY, "mine", ends_ms)
    scope = Scope(Caller("acme", Role.TENANT_OPERATOR, credential=credential))
    scope.check_key({"tenant": "acme", "expires": SOON})
    for wrong in ({}, {"expires": LATER}):
        with pytest.raises(Exception, match=r"expires .* is not allowed"):
            scope.check_key({"tenant": "acme", **wrong})
        edit = Edit("key", "mine", json.dumps({"tenant": "acme", **wrong}).encode())
        with pytest.raises(Exception, match=r"expires .* is not allowed"):
            scope.check(edit, {"tenant": "acme", "expires": SOON})
    # What an admin has given may stay, and can be taken back.
    present = {"tenant": "acme", "role": "tenant_operator"}
    scope.check(Edit("key", "x", json.dumps({"tenant": "acme"}).encode()), present)
    scope.check(Edit("key", "x", None), present)


async def test_no_answer_says_whether_another_tenants_key_exists(stack: Stack, keys: Tenants) -> None:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=400)
    async with client(stack, keys.admin) as admin, client(stack, keys.mine) as mine:
        made = [(await admin.create_key(OTHER)).id, (await admin.create_key(OTHER, not_before=later)).id]

        async def told(work: Awaitable[object], key: str) -> str:
            with pytest.raises(PermissionDeniedError) as caught:
                await work
            return str(caught.value).replace(key, "KEY")

        for value in (None, {"tenant": "acme"}, {"tenant": OTHER}, {"role": "none"}, {}):
            answers = [
                await told(mine.edit_registry([RegistryEdit("key", key, value)]), key) for key in (*made, FREE, FIXED)
            ]
            assert 1 == len(set(answers))
        assert 1 == len({await told(mine.replace_key(key), key) for key in (*made, FREE, FIXED)})
        with pytest.raises(InvalidArgumentError, match=r"fixed by the setting registry\.fixed"):
            await admin.edit_registry([RegistryEdit("key", FIXED, None)])
        with pytest.raises(
            InvalidArgumentError, match=rf"replaces: key '{FIXED}' is fixed by the setting registry\.fixed"
        ):
            await admin.replace_key(FIXED)


async def test_an_operator_with_few_models_does_not_rule_over_keys_with_more() -> None:
    scope = Scope(Caller("acme", Role.TENANT_OPERATOR, models=frozenset({"small"})))
    scope.check(Edit("key", "x", None), {"tenant": "acme", "models": ["small"]})
    for wider in ({}, {"models": ["small", "large"]}):
        with pytest.raises(Exception, match="keys of its tenant and of its rights"):
            scope.check(Edit("key", "x", None), {"tenant": "acme", **wider})
