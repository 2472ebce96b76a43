"""Bad input gets a clear error, and the connection lives on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from penstock.v1 import inference_pb2 as api
from penstock.v1 import jobs_pb2 as jobs
from penstock.v1 import types_pb2 as types
from tests.support.stack import Stack, collect, request, running_stack

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    async with running_stack(folder, sim={"max_model_len": 256}) as running:
        yield running


async def failure(call: Any) -> tuple[grpc.StatusCode, str, list[tuple[str, str]]]:
    """Return (code, reason, field violations) of a call that fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    status = await rpc_status.aio.from_call(call)
    reason, violations = "", []
    for detail in status.details if status is not None else ():
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if detail.Unpack(info):
            assert "penstock.dev" == info.domain
            reason = info.reason
        if detail.Unpack(bad):
            violations = [(item.field, item.description) for item in bad.field_violations]
    return caught.value.code(), reason, violations


async def still_alive(stack: Stack) -> None:
    """Check that the same connection serves the next call."""
    assert 3 == (await stack.inference().Generate(request("ok", max_tokens=3, ignore_eos=True))).usage.output_tokens


async def test_every_wrong_field_is_named_with_limit_and_value(stack: Stack) -> None:
    code, reason, violations = await failure(stack.inference().Generate(request(temperature=9.0, top_p=2.0, n=99)))

    assert (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") == (code, reason)
    assert ["sampling.n", "sampling.temperature", "sampling.top_p"] == sorted(field for field, _ in violations)
    assert all("got" in text for _, text in violations)
    await still_alive(stack)


async def test_an_unknown_model_is_not_found_and_the_known_ones_are_named(stack: Stack) -> None:
    call = stack.inference().Generate(request(model="gpt-9"))
    code, reason, _ = await failure(call)
    assert (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND") == (code, reason)
    assert "demo" in await call.details()
    await still_alive(stack)


async def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(stack: Stack) -> None:
    prompt = types.Prompt(tokens=types.TokenPrompt(ids=[5] * 300))
    code, _, violations = await failure(stack.inference().Generate(api.GenerateRequest(model="demo", prompt=prompt)))
    assert grpc.StatusCode.INVALID_ARGUMENT is code
    assert "prompt" == violations[0][0]
    assert "300" in violations[0][1]
    assert "256" in violations[0][1]
    await still_alive(stack)


async def test_more_output_than_the_context_leaves_is_refused(stack: Stack) -> None:
    code, _, violations = await failure(stack.inference().Generate(request(max_tokens=256)))
    assert grpc.StatusCode.INVALID_ARGUMENT is code
    assert ["sampling.max_tokens"] == [field for field, _ in violations]
    await still_alive(stack)


async def test_what_the_engine_cannot_do_is_refused_not_ignored(stack: Stack) -> None:
    structured = types.StructuredOutput(regex="[0-9]+")
    code, _, violations = await failure(stack.inference().Generate(request(structured_output=structured)))
    assert grpc.StatusCode.INVALID_ARGUMENT is code
    assert ["sampling.structured_output"] == [field for field, _ in violations]
    await still_alive(stack)


async def test_an_oversize_message_is_refused(stack: Stack) -> None:
    code, _, _ = await failure(stack.inference().Generate(request("x" * (17 << 20))))
    assert grpc.StatusCode.RESOURCE_EXHAUSTED is code
    await still_alive(stack)


async def test_a_prompt_above_the_byte_bound_is_refused_before_it_is_tokenized(stack: Stack) -> None:
    code, _, violations = await failure(stack.inference().Generate(request("x" * (5 << 20))))
    assert grpc.StatusCode.INVALID_ARGUMENT is code
    assert ["prompt.text"] == [field for field, _ in violations]
    await still_alive(stack)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"\x0a\x02\xff\xfe", id="a string that is not UTF-8"),
        pytest.param(b"\x0a\x7fabc", id="a message cut short"),
        pytest.param(b"\xff\xff\xff", id="no protobuf at all"),
    ],
)
@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
async def test_bytes_that_are_no_message_get_invalid_argument(stack: Stack, raw: bytes, method: str) -> None:
    channel = stack.channels[0]
    path = f"/penstock.v1.InferenceService/{method}"
    if method == "Generate":
        code, reason, _ = await failure(channel.unary_unary(path)(raw))
    else:
        call = channel.unary_stream(path)(raw)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        code, reason = caught.value.code(), "INVALID_REQUEST"
    assert (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") == (code, reason)
    await still_alive(stack)


async def test_a_resume_token_that_is_not_ours_is_refused(stack: Stack) -> None:
    resume = api.Resume(resume_token=b"x" * 64)
    call = stack.inference().StreamGenerate(api.StreamGenerateRequest(generate=request(), resume=resume))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert grpc.StatusCode.INVALID_ARGUMENT is caught.value.code()
    await still_alive(stack)


@pytest.mark.parametrize("n", [1, 2])
async def test_nobody_has_more_tokens_than_were_asked_for(stack: Stack, n: int) -> None:
    """It would be counted as output, and taken for what such requests produce."""
    asked = request("ok", max_tokens=4, ignore_eos=True, n=n)
    events = await collect(stack.inference().StreamGenerate(api.StreamGenerateRequest(generate=asked)))
    token = next(event.started.resume_token for event in reversed(events) if event.HasField("started"))

    resume = api.Resume(resume_token=token, received_tokens=[*[0] * (n - 1), (1 << 32) - 1])
    call = stack.inference().StreamGenerate(api.StreamGenerateRequest(generate=asked, resume=resume))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert grpc.StatusCode.INVALID_ARGUMENT is caught.value.code()
    wrong = f"resume.received_tokens[{n - 1}]: must be at most max_tokens = 4, got 4294967295"
    assert wrong == caught.value.details()
    await still_alive(stack)


async def test_limits_in_seconds_say_so(stack: Stack) -> None:
    wanted = api.StreamGenerateRequest(generate=request(), flush_interval=Duration(seconds=11))
    call = stack.inference().StreamGenerate(wanted)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    assert "flush_interval: must be at least 0 s and at most 10 s, got 11 s" == caught.value.details()


@pytest.mark.parametrize("method", ["GetJob", "CancelJob", "DeleteJob"])
async def test_a_job_that_is_not_named_is_asked_for(stack: Stack, method: str) -> None:
    call = getattr(stack.jobs(), method)(getattr(jobs, f"{method}Request")())
    code, reason, violations = await failure(call)
    assert (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST") == (code, reason)
    assert [("job_id", "is required, got none")] == violations
