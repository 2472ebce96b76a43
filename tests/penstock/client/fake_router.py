"""A router without a cluster: answers the public API from a script. Also runs alone, for clients in other languages."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import grpc

from cluster.errors import ModelNotFoundError, RequestNotFoundError
from penstock.v1 import admin_pb2, admin_pb2_grpc, types_pb2
from penstock.v1 import inference_pb2 as pb
from penstock.v1 import inference_pb2_grpc as services
from router.status import abort
from router.validation import (
    RequestLimits,
    check_cancel,
    check_count,
    check_detokenize,
    check_get_model,
    check_request,
    check_stream,
)

MODEL = pb.Model(
    name="demo",
    max_context_tokens=2_000,
    vocabulary_size=1_000,
    lora_adapters=["poet"],
    capabilities=pb.Capabilities(logprobs=True, max_logprobs=20, seed=True, chat=True),
    ready_replicas=2,
    digest="abc",
)
_LIMITS = RequestLimits()


class FakeRouter(services.InferenceServiceServicer, admin_pb2_grpc.AdminServiceServicer):
    """Plays a router. Token i is i with the text "wi "; `max_tokens` defaults to 4, or 2,000 with ignore_eos."""

    def __init__(self, pace_s: float = 0.0) -> None:
        self.failures: deque[Exception | None] = deque()
        """What the next calls end with before they do anything; None lets one through."""
        self.script: list[pb.StreamGenerateResponse | Exception] | None = None
        """Replaces the events of every stream; an exception ends it."""
        self.broken: Exception | None = None
        """What unary generations end with once they have begun."""
        self.resumed_script: list[pb.StreamGenerateResponse | Exception] | None = None
        """Replaces `script` for streams that go on with one."""
        self.hold_after: int | None = None
        """Stops after so many tokens until the call ends or `release` is set."""
        self.release = asyncio.Event()
        self.requests: list[Any] = []
        self.metadata: list[dict[str, Any]] = []
        self.asked = asyncio.Event()
        """Set by the first call."""
        self.abandoned = asyncio.Event()
        """Set when a client cancels a call."""
        self._pace_s = pace_s
        self._live: dict[str, asyncio.Event] = {}
        self._keys: dict[str, str] = {}
        self._count = 0

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:  # noqa: N802
        """Collect a stream."""
        await self._admit(request, context, lambda: check_request(request, _LIMITS))
        await context.send_initial_metadata((("penstock-resume-token-bin", b"t1"),))
        if self.broken is not None:
            await abort(context, self.broken)
        answer = pb.GenerateResponse()
        choices: dict[int, pb.Choice] = {}
        async for event in self._events(request):
            match event.WhichOneof("event"):
                case "delta":
                    choice = choices.setdefault(event.delta.choice_index, pb.Choice(index=event.delta.choice_index))
                    choice.text += event.delta.text
                    choice.token_ids.extend(event.delta.token_ids)
                    choice.logprobs.extend(event.delta.logprobs)
                case "finished":
                    for end in event.finished.choices:
                        choices[end.index].finish_reason = end.finish_reason
                    answer.request_id = event.finished.request_id
                    answer.usage.CopyFrom(event.finished.usage)
                    answer.receipt.CopyFrom(event.finished.receipt)
        answer.choices.extend(choices[index] for index in sorted(choices))
        return answer

    async def StreamGenerate(  # noqa: N802
        self, request: pb.StreamGenerateRequest, context: Any
    ) -> AsyncIterator[pb.StreamGenerateResponse]:
        """Play the script, or generate."""
        await self._admit(request, context, lambda: check_stream(request, _LIMITS))
        try:
            if self.script is None:
                skip = request.resume.received_tokens[0] if request.resume.received_tokens else 0
                async for event in self._events(request.generate, skip):
                    yield event
                return
            resumed = self.resumed_script is not None and request.HasField("resume")
            for step in (self.resumed_script if resumed else self.script) or ():
                if isinstance(step, Exception):
                    await abort(context, step)
                yield step
        except (asyncio.CancelledError, GeneratorExit):
            self.abandoned.set()
            raise

    async def Cancel(self, request: pb.CancelRequest, context: Any) -> pb.CancelResponse:  # noqa: N802
        """Cancel a live stream."""
        await self._admit(request, context, lambda: check_cancel(request))
        name = request.request_id or self._keys.get(request.idempotency_key, "")
        if name not in self._live:
            await abort(context, RequestNotFoundError(request.request_id or request.idempotency_key))
        self._live[name].set()
        return pb.CancelResponse(request_id=name)

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:  # noqa: N802
        """List the one model."""
        await self._admit(request, context, lambda: None)
        return pb.ListModelsResponse(models=[MODEL])

    async def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.GetModelResponse:  # noqa: N802
        """Describe the one model."""
        await self._admit(request, context, lambda: check_get_model(request))
        return pb.GetModelResponse(model=MODEL)

    async def CountTokens(self, request: pb.CountTokensRequest, context: Any) -> pb.CountTokensResponse:  # noqa: N802
        """Count one token per word."""
        await self._admit(request, context, lambda: check_count(request, _LIMITS))
        words = len(request.prompt.text.split())
        return pb.CountTokensResponse(tokens=words, token_ids=range(words))

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Any) -> pb.DetokenizeResponse:  # noqa: N802
        """Return one word per token."""
        await self._admit(request, context, lambda: check_detokenize(request))
        return pb.DetokenizeResponse(text=" ".join(f"w{token}" for token in request.token_ids))

    async def GetClusterStatus(  # noqa: N802
        self, request: admin_pb2.GetClusterStatusRequest, context: Any
    ) -> admin_pb2.GetClusterStatusResponse:
        """Show one pool with one replica."""
        await self._admit(request, context, lambda: None)
        replica = admin_pb2.ReplicaStatus(
            replica_id="r1", state=admin_pb2.REPLICA_STATE_READY, running=3, batch_limit=8, kv_usage=0.5, linked=True
        )
        replica.heartbeat_age.FromMilliseconds(250)
        pool = admin_pb2.PoolStatus(name="demo", waiting=1, running=3, replicas=[replica], reachable=True)
        return admin_pb2.GetClusterStatusResponse(pools=[pool], version="0", router_id="fake")

    async def _admit(self, request: Any, context: Any, check: Any) -> None:
        self.requests.append(request)
        self.asked.set()
        self.metadata.append(dict(context.invocation_metadata()))
        failure = self.failures.popleft() if self.failures else None
        model = getattr(request, "model", "") or getattr(getattr(request, "generate", None), "model", "")
        try:
            if failure is not None:
                raise failure
            check()
            if model and model != MODEL.name:
                raise ModelNotFoundError(model, [MODEL.name])
        except Exception as error:  # noqa: BLE001  # as the router's own edge does
            await abort(context, error)

    async def _events(self, request: pb.GenerateRequest, skip: int = 0) -> AsyncIterator[pb.StreamGenerateResponse]:
        self._count += 1
        name = f"req-{self._count}"
        cancelled = self._live[name] = asyncio.Event()
        self._keys[request.idempotency_key] = name
        choices = max(request.sampling.n, 1)
        wanted = request.sampling.max_tokens or (2_000 if request.sampling.ignore_eos else 4)
        try:
            yield pb.StreamGenerateResponse(queued=pb.Queued(request_id=name, resume_token=b"t0", position=1))
            for choice in range(choices):
                started = pb.Started(
                    request_id=name, resume_token=b"t1", choice_index=choice, replica_id="r1", prompt_tokens=3
                )
                yield pb.StreamGenerateResponse(started=started)
            done = skip
            while done < wanted and not cancelled.is_set():
                if done == self.hold_after:
                    await self._hold(cancelled)
                    continue
                for choice in range(choices):
                    yield pb.StreamGenerateResponse(delta=_delta(choice, done, request.sampling))
                done += 1
                await asyncio.sleep(self._pace_s)
            reason = types_pb2.FINISH_REASON_CANCELLED if cancelled.is_set() else types_pb2.FINISH_REASON_LENGTH
            yield pb.StreamGenerateResponse(finished=_finished(name, choices, done, reason))
        finally:
            del self._live[name]

    async def _hold(self, cancelled: asyncio.Event) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (cancelled, self.release)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self.hold_after = None


def _delta(choice: int, token: int, sampling: types_pb2.SamplingParams) -> pb.Delta:
    delta = pb.Delta(choice_index=choice, text=f"w{token} ", token_ids=[token], offset=token)
    if sampling.HasField("logprobs"):
        delta.logprobs.add(chosen=types_pb2.TokenLogprob(token_id=token, logprob=-0.5))
    return delta


def _finished(name: str, choices: int, tokens: int, reason: types_pb2.FinishReason.ValueType) -> pb.Finished:
    ends = [pb.ChoiceEnd(index=index, finish_reason=reason, output_tokens=tokens) for index in range(choices)]
    usage = types_pb2.Usage(prompt_tokens=3, output_tokens=tokens * choices, cached_tokens=1)
    receipt = types_pb2.Receipt(exact=True, router_id="fake", gpu_seconds=0.25, cost=0.5)
    receipt.attempts.add(replica_id="r1", group_id="g", output_tokens=tokens).queue_time.FromMilliseconds(20)
    receipt.total_time.FromMilliseconds(100)
    receipt.time_to_first_token.FromMilliseconds(30)
    return pb.Finished(choices=ends, usage=usage, receipt=receipt, request_id=name)


@contextlib.asynccontextmanager
async def serving(
    router: FakeRouter, port: int = 0, credentials: grpc.ServerCredentials | None = None
) -> AsyncIterator[int]:
    """Serve a fake router on the loopback address; gives the port."""
    server = grpc.aio.server()
    services.add_InferenceServiceServicer_to_server(router, server)
    admin_pb2_grpc.add_AdminServiceServicer_to_server(router, server)
    address = f"127.0.0.1:{port}"
    bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(None)


async def _serve_alone() -> None:
    async with serving(FakeRouter(pace_s=0.002)) as port:
        sys.stdout.write(f"127.0.0.1:{port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve_alone())
