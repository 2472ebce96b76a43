"""Who may do what, over the real port of two routers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from cluster.errors import SettingsError
from cluster.settings import load_settings
from penstock.v1 import admin_pb2, announced_pb2, jobs_pb2, outlook_pb2, registry_pb2, rollout_pb2
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.build import build_router
from router.identity.key import mint_key
from router.identity.new_key import KeyPlan, add_key
from router.stores import QueueFactory
from tests.support.keys import Keys, bearer
from tests.support.stack import SECRET, Stack, collect, request, running_stack, sim_pool, stream_request
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG = {"max_tokens": 20_000, "ignore_eos": True}
OPERATORS = "ops"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> AsyncIterator[Stack]:
    pools = {"demo": sim_pool(base_ms=2.0, max_num_seqs=1), "large": sim_pool()}
    sections = {"auth": {"keys_file": str(keys.path), "failures_per_minute": 0}}
    folder = tmp_path_factory.mktemp("stack")
    async with running_stack(folder, routers=2, pools=pools, sections=sections) as running:
        yield running


async def refusal(call: Any) -> tuple[grpc.StatusCode, dict[str, str]]:
    """Return code and facts of a call that fails, with the reason among the facts."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if hasattr(call, "read") else call)
    status = await rpc_status.aio.from_call(call)
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert 1 == sum(detail.Unpack(info) for detail in status.details)
    return caught.value.code(), {**info.metadata, "reason": info.reason}


def denied(subject: str, value: str, tenant: str = "acme") -> tuple[grpc.StatusCode, dict[str, str]]:
    return grpc.StatusCode.PERMISSION_DENIED, {subject: value, "tenant": tenant, "reason": "PERMISSION_DENIED"}


UNAUTHENTICATED = (grpc.StatusCode.UNAUTHENTICATED, {"reason": "UNAUTHENTICATED"})


def every_call(stack: Stack, metadata: Any) -> list[Any]:
    """Begin a call of every method."""
    stub = stack.inference()
    return [
        stub.Generate(request(max_tokens=1), metadata=metadata),
        stub.StreamGenerate(stream_request(max_tokens=1), metadata=metadata),
        stub.Cancel(api.CancelRequest(request_id="x"), metadata=metadata),
        stub.ListModels(api.ListModelsRequest(), metadata=metadata),
        stub.GetModel(api.GetModelRequest(model="demo"), metadata=metadata),
        stub.CountTokens(api.CountTokensRequest(model="demo", prompt=types.Prompt(text="x")), metadata=metadata),
        stub.Detokenize(api.DetokenizeRequest(model="demo", token_ids=[1]), metadata=metadata),
        stack.admin().GetClusterStatus(admin_pb2.GetClusterStatusRequest(), metadata=metadata),
        stack.admin().GetUsage(admin_pb2.GetUsageRequest(), metadata=metadata),
        stack.admin().ListDecisions(admin_pb2.ListDecisionsRequest(), metadata=metadata),
        stack.admin().SetOperatingPoint(admin_pb2.SetOperatingPointRequest(pool="demo"), metadata=metadata),
        stack.admin().Explain(admin_pb2.ExplainRequest(request_id="x"), metadata=metadata),
        stack.admin().ListRequests(admin_pb2.ListRequestsRequest(), metadata=metadata),
        stack.admin().GetCosts(admin_pb2.GetCostsRequest(), metadata=metadata),
        stack.admin().WhoAmI(admin_pb2.WhoAmIRequest(), metadata=metadata),
        stack.admin().ListRegistry(registry_pb2.ListRegistryRequest(), metadata=metadata),
        stack.admin().EditRegistry(registry_pb2.EditRegistryRequest(), metadata=metadata),
        stack.admin().ListRegistryChanges(registry_pb2.ListRegistryChangesRequest(), metadata=metadata),
        stack.admin().CreateKey(registry_pb2.CreateKeyRequest(), metadata=metadata),
        stack.admin().StartRollout(rollout_pb2.StartRolloutRequest(), metadata=metadata),
        stack.admin().GetRollout(rollout_pb2.GetRolloutRequest(), metadata=metadata),
        stack.admin().ChangeRollout(rollout_pb2.ChangeRolloutRequest(), metadata=metadata),
        stack.admin().AnnounceLoad(announced_pb2.AnnounceLoadRequest(), metadata=metadata),
        stack.admin().ListAnnouncedLoad(announced_pb2.ListAnnouncedLoadRequest(), metadata=metadata),
        stack.admin().WithdrawAnnouncedLoad(announced_pb2.WithdrawAnnouncedLoadRequest(), metadata=metadata),
        stack.admin().GetOutlook(outlook_pb2.GetOutlookRequest(), metadata=metadata),
    ]


# --- who calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metadata", [(), bearer(mint_key()), (("authorization", "Basic x"),)])
async def test_no_method_answers_a_caller_that_nobody_knows(stack: Stack, metadata: Any) -> None:
    calls = every_call(stack, metadata)

    assert len(calls) == sum(
        len(service.methods)
        for service in (
            api.DESCRIPTOR.services_by_name["InferenceService"],
            admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
        )
    )
    assert [UNAUTHENTICATED] * len(calls) == [await refusal(call) for call in calls]


async def test_a_call_is_refused_before_its_request_is_looked_at(stack: Stack) -> None:
    generate = stack.channels[0].unary_unary("/penstock.v1.InferenceService/Generate")
    assert UNAUTHENTICATED == await refusal(generate(b"\xff\xff"))


async def test_health_and_reflection_stay_open(stack: Stack) -> None:
    health = health_pb2_grpc.HealthStub(stack.channels[0])
    reply = await health.Check(health_pb2.HealthCheckRequest(service="penstock.v1.InferenceService"))
    assert health_pb2.HealthCheckResponse.SERVING == reply.status
    listing = reflection_pb2_grpc.ServerReflectionStub(stack.channels[0]).ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    )
    assert (await listing.read()).HasField("list_services_response")


async def test_keys_appear_in_no_log_and_no_error(stack: Stack, keys: Keys, caplog: pytest.LogCaptureFixture) -> None:
    wrong = keys.acme[:-4] + "0000"
    with caplog.at_level(logging.DEBUG):
        await stack.inference().Generate(request(max_tokens=1), metadata=bearer(keys.acme))
        call = stack.inference().Generate(request(max_tokens=1), metadata=bearer(wrong))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
    said = "".join(f"{vars(record)}" for record in caplog.records) + repr(caught.value.trailing_metadata())

    assert "call.ended" in said
    assert [] == [key for key in (keys.acme, wrong) if key[21:41] in said]


async def test_keys_come_and_go_without_a_restart(stack: Stack, keys: Keys) -> None:
    before = await asyncio.to_thread(keys.path.read_text)
    fresh = await asyncio.to_thread(add_key, keys.path, KeyPlan("fresh"))

    async def works(router: int) -> bool:
        try:
            await stack.inference(router).ListModels(api.ListModelsRequest(), metadata=bearer(fresh))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                raise
            return False
        return True

    for router in (0, 1):
        await until(lambda router=router: works(router))
    running = stack.inference().StreamGenerate(stream_request(max_tokens=800, ignore_eos=True), metadata=bearer(fresh))
    await until(lambda: stack.replicas[0].table.sequences == 1)
    await asyncio.to_thread(keys.path.write_text, before)

    async def refused(router: int) -> bool:
        return not await works(router)

    for router in (0, 1):
        await until(lambda router=router: refused(router))
    # What began with a good key goes on.
    assert 800 == (await collect(running))[-1].finished.usage.output_tokens


# --- what it may do ---------------------------------------------------------------------------------------------------


async def test_a_key_is_held_to_its_models(stack: Stack, keys: Keys) -> None:
    stub, metadata = stack.inference(), bearer(keys.narrow)
    large = {"model": "large", "max_tokens": 1}
    prompt = types.Prompt(text="x")

    for call in (
        stub.Generate(request(**large), metadata=metadata),
        stub.StreamGenerate(stream_request(**large), metadata=metadata),
        stub.GetModel(api.GetModelRequest(model="large"), metadata=metadata),
        stub.CountTokens(api.CountTokensRequest(model="large", prompt=prompt), metadata=metadata),
        stub.Detokenize(api.DetokenizeRequest(model="large", token_ids=[1]), metadata=metadata),
    ):
        assert await refusal(call) in (denied("model", "large"), denied("class", "standard"))
    batch = request(**large)
    batch.request_class = types.REQUEST_CLASS_BATCH
    assert denied("model", "large") == await refusal(stub.Generate(batch, metadata=metadata))
    models = (await stub.ListModels(api.ListModelsRequest(), metadata=metadata)).models
    assert ["demo"] == [model.name for model in models]
    every = (await stub.ListModels(api.ListModelsRequest(), metadata=bearer(keys.acme))).models
    assert ["demo", "large"] == [model.name for model in every]


async def test_a_held_key_does_not_learn_which_models_exist(stack: Stack, keys: Keys) -> None:
    stub = stack.inference()
    for model in ("large", "no-such-model"):
        call = stub.GetModel(api.GetModelRequest(model=model), metadata=bearer(keys.narrow))
        assert denied("model", model) == await refusal(call)


async def test_a_held_key_does_not_learn_of_other_pools_than_its_own(tmp_path: Path) -> None:
    """Nor from an answer that names those there are."""
    path = tmp_path / "keys.toml"
    key = add_key(path, KeyPlan("ops", role="operator", models=("demo", "gone")))
    sections = {"auth": {"keys_file": str(path)}}
    pools = {"demo": sim_pool(), "large": sim_pool()}
    async with running_stack(tmp_path / "stack", pools=pools, sections=sections) as stack:
        admin, metadata = stack.admin(), bearer(key)
        status = await admin.GetClusterStatus(admin_pb2.GetClusterStatusRequest(), metadata=metadata)
        assert ["demo"] == [pool.name for pool in status.pools]
        upload = iter([jobs_pb2.SubmitJobRequest(header=jobs_pb2.JobHeader(model="gone"))])
        for call in (
            admin.GetUsage(admin_pb2.GetUsageRequest(pool="gone"), metadata=metadata),
            admin.ListDecisions(admin_pb2.ListDecisionsRequest(pool="gone"), metadata=metadata),
            stack.inference().GetModel(api.GetModelRequest(model="gone"), metadata=metadata),
            stack.jobs().SubmitJob(upload, metadata=metadata),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert ("demo" in str(caught.value), "large" in str(caught.value)) == (True, False)


async def test_a_key_is_held_to_its_classes(stack: Stack, keys: Keys) -> None:
    stub, metadata = stack.inference(), bearer(keys.narrow)
    allowed = request(max_tokens=1)
    allowed.request_class = types.REQUEST_CLASS_BATCH

    assert denied("class", "standard") == await refusal(stub.Generate(request(max_tokens=1), metadata=metadata))
    assert 1 == (await stub.Generate(allowed, metadata=metadata)).usage.output_tokens


async def test_the_state_of_the_cluster_is_for_operators(stack: Stack, keys: Keys) -> None:
    status = stack.admin().GetClusterStatus
    asked = admin_pb2.GetClusterStatusRequest()

    call = status(asked, metadata=bearer(keys.acme))
    assert denied("method", "AdminService/GetClusterStatus") == await refusal(call)
    assert 2 == len((await status(asked, metadata=bearer(keys.operator))).pools)


# --- starting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("auth", [{}, {"anonymous": False}])
async def test_a_router_that_others_reach_does_not_start_without_keys(tmp_path: Path, auth: dict[str, Any]) -> None:
    flags = {"router": {"host": "0.0.0.0"}, "auth": auth, "cluster": {"state_dir": str(tmp_path)}}  # noqa: S104
    settings = load_settings(flags=flags, environ={})
    queues = QueueFactory(*[lambda *_: pytest.fail("must not connect")] * 10)
    with pytest.raises(SettingsError, match=r"auth\.keys_file: must be set"):
        build_router(settings, SECRET, queues)
