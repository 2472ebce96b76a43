"""Tokens and limits over both APIs, with a real router and issuer."""

from __future__ import annotations

import time
from pathlib import Path

import aiohttp
import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from cluster.clock import ManualClock
from penstock.v1 import admin_pb2
from penstock.v1 import inference_pb2 as api
from tests.support.issuer import AUDIENCE, IssuerServer
from tests.support.keys import Keys, bearer
from tests.support.stack import request, running_stack
from tests.support.waiting import until


async def test_an_issuer_that_is_away_holds_a_router_up_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("router.server.ISSUERS_S", 0.2)
    table = {"issuer": "http://127.0.0.1:9", "audiences": [AUDIENCE], "tenant": "a", "min_refresh_s": 0.1}
    keys = Keys(tmp_path / "keys.toml")
    auth = {"keys_file": str(keys.path), "jwt": {"away": table}}
    async with running_stack(tmp_path / "stack", sections={"auth": auth}) as stack:
        found = await stack.inference().ListModels(api.ListModelsRequest(), metadata=bearer(keys.acme))
        assert ["demo"] == [model.name for model in found.models]
        samples = stack.routers[0]._metrics.registry.get_sample_value
        labels = {"issuer": "away", "outcome": "bad"}
        await until(lambda: (samples("penstock_router_issuer_fetches_total", labels) or 0) > 1)
    assert ["away"] == next(vars(one)["issuers"] for one in caplog.records if one.msg == "router.issuers_away")


async def test_a_token_calls_over_grpc_and_http_beside_keys(tmp_path: Path) -> None:
    keys, issuer = Keys(tmp_path / "keys.toml"), IssuerServer()
    async with issuer.running():
        table = {
            "issuer": issuer.issuer,
            "audiences": [AUDIENCE],
            "tenant_claim": "tenant",
            "role_claim": "scope",
            "roles": {"ops": "operator"},
        }
        auth = {"keys_file": str(keys.path), "jwt": {"idp": table}, "failures_per_minute": 1}
        async with running_stack(tmp_path / "stack", router={"http": {"port": 0}}, sections={"auth": auth}) as stack:
            http, status = stack.routers[0].http, stack.admin().GetClusterStatus
            assert http is not None
            source = stack.routers[0]._parts.authenticator._issuers[0].keys
            # A router that serves has the keys already.
            assert source.current() is not None
            asked = admin_pb2.GetClusterStatusRequest()
            # A long token: some providers put hundreds of groups into it.
            token = issuer.token(scope="openid ops", groups=["group-of-people"] * 450)
            assert 8_192 < len(token) < 16_384
            assert await status(asked, metadata=bearer(token))
            assert await status(asked, metadata=bearer(keys.operator))
            url = f"http://127.0.0.1:{http.port}/v1/models"
            async with aiohttp.ClientSession() as session:
                for headers in ({"authorization": f"Bearer {token}"}, {"x-api-key": token}):
                    assert 200 == (await session.get(url, headers=headers)).status
                expired = {"authorization": f"Bearer {issuer.token(exp=time.time() - 60)}"}
                answer = await session.get(url, headers=expired)
                assert (401, "the token is expired") == (answer.status, (await answer.json())["error"]["message"])
                # The limit is that of the address, over both APIs.
                answer = await session.get(url, headers={"x-api-key": keys.acme})
                assert 429 == answer.status
                assert 0 < int(answer.headers["retry-after"]) <= 60
                assert "too_many_attempts" == (await answer.json())["error"]["code"]
                assert 200 == (await session.get(url, headers={"x-api-key": token})).status
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await status(asked, metadata=bearer(keys.admin))
            assert grpc.StatusCode.RESOURCE_EXHAUSTED == caught.value.code()
            found = rpc_status.from_call(caught.value)  # type: ignore[arg-type]
            assert found is not None
            assert any(detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR) for detail in found.details)
            assert await status(asked, metadata=bearer(keys.operator)), "it was right a moment ago"
            # A token that expires ends no stream. The next call needs a new one.
            clock = stack.routers[0]._parts.authenticator._clock = ManualClock(int(time.time() * 1000))
            asked_long = api.StreamGenerateRequest(generate=request(max_tokens=50, ignore_eos=True))
            events = aiter(stack.inference().StreamGenerate(asked_long, metadata=bearer(token)))
            assert (await anext(events)).HasField("started")
            clock.advance(7_200)
            assert "finished" in [event.WhichOneof("event") async for event in events]
            with pytest.raises(grpc.aio.AioRpcError, match="the token is expired"):
                await status(asked, metadata=bearer(token))
            samples = stack.routers[0]._metrics.registry.get_sample_value
            assert 2 == samples("penstock_router_blocked_attempts_total")
            assert 1 == samples("penstock_router_issuer_fetches_total", {"issuer": "idp", "outcome": "good"})
