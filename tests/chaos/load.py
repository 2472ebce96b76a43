"""The clients of a run. Each sends one request after the other and notes everything that it sees."""

from __future__ import annotations

import asyncio
import enum
import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc

from penstock.client import AsyncClient, GenerateOptions, RetryPolicy, Sampling
from penstock.v1 import inference_pb2 as api
from penstock.v1 import inference_pb2_grpc
from penstock.v1 import types_pb2 as types
from penstock.values.errors import PenstockClientError, UnavailableError, from_rpc_error
from penstock.values.events import Delta, Queued, Started
from penstock.values.events import Finished as StreamFinished
from penstock.values.events import Resumed as StreamResumed
from tests.chaos.golden import Golden
from tests.chaos.history import Accepted, Attempted, Cancelled, Failed, Finished, History, Request, Resumed, Tokens
from tests.chaos.http_load import HttpCalls, OpenAICalls, Reader, body

AGAIN_S = 0.2
"""Longest pause of a client of ours before it calls again, where no router names one."""


class Kind(enum.StrEnum):
    """Says how a client behaves."""

    SDK = "sdk"
    """Uses the Python client's stream and nothing else."""
    RESUMING = "resuming"
    """Opens another stream at the resume point when one breaks, as an application does."""
    PLAIN = "plain"
    """Uses bare gRPC; when a call ends UNAVAILABLE it repeats the request with its key at the next router."""
    UNARY = "unary"
    """Uses the Python client's `generate`."""
    FICKLE = "fickle"
    """Cancels each stream after some tokens."""
    HTTP = "http"
    """Uses bare HTTP; when a stream breaks it sends the request with its key and `Last-Event-ID` to the next router."""
    OPENAI = "openai"
    """Uses OpenAI's SDK at one router, without a key."""


@dataclass(frozen=True, slots=True)
class Load:
    """Says who asks for what."""

    kind: Kind = Kind.RESUMING
    clients: int = 6
    output_tokens: int = 100
    prompt_tokens: int = 24
    deadline_s: float = 20.0
    targets: int = 0
    """Routers that a client knows; 0 is all."""
    retries: bool = True
    """False: one call per request, and its failure is the end."""
    greedy: bool = False
    """No request is sampled: real engines draw anew at each start."""
    pause_s: float = 0.0
    """Between a client's requests."""
    api_keys: tuple[tuple[str, str], ...] = ()
    """Tenant and key; clients take them in turns."""
    start_s: float = 0.5
    """Clients come one after the other over this time, so that streams are at different places."""


class Clients:
    """Runs a load until told to stop, then lets what is open come to its end."""

    def __init__(
        self, load: Load, targets: Sequence[str], golden: Golden, history: History, http_targets: Sequence[str] = ()
    ) -> None:
        self._load = load
        self._http_targets = tuple(http_targets)[: load.targets or None]
        self._targets = tuple(targets)[: load.targets or None]
        self._golden = golden
        self._history = history
        self._numbers = itertools.count()
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        for number in range(self._load.clients):
            self._tasks.append(asyncio.create_task(self._client(number), name=f"client-{number}"))

    async def stop(self) -> None:
        """Send nothing new; returns when every client is through."""
        self._stop.set()
        done, late = await asyncio.wait(self._tasks, timeout=self._load.deadline_s + 10)
        for task in late:
            # Its request stays without an end in the history, which is what the checker looks for.
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in done:
            task.result()

    async def abort(self) -> None:
        """End what is left at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def midway(self) -> int:
        """Count the streams that have output and are not through."""
        return sum(
            request.ended_at is None and sum(isinstance(e, Tokens) for e in request.events) >= 3
            for request in self._history.requests
        )

    async def _client(self, number: int) -> None:
        load = self._load
        await asyncio.sleep(load.start_s * number / max(1, load.clients))
        if load.kind in (Kind.HTTP, Kind.OPENAI):
            await self._http_client(number)
            return
        tenant, key = load.api_keys[number % len(load.api_keys)] if load.api_keys else ("", None)
        patient = load.retries and load.kind in (Kind.SDK, Kind.UNARY)
        # The others try again themselves, so that the history has every call.
        retry = RetryPolicy(max_attempts=20, base_delay=0.05, max_delay=0.3) if patient else RetryPolicy(1)
        async with AsyncClient(self._targets, api_key=key, retry=retry) as sdk:
            plain = PlainCalls(self._targets, number)
            calls: dict[Kind, Callable[..., Any]] = {
                Kind.SDK: self._stream,
                Kind.RESUMING: self._stream,
                Kind.FICKLE: self._stream,
                Kind.UNARY: self._unary,
                Kind.PLAIN: self._plain,
            }
            try:
                while not self._stop.is_set():
                    request, prompt, sampling = self._request(number, tenant)
                    await calls[load.kind](plain if load.kind is Kind.PLAIN else sdk, request, prompt, sampling)
                    await asyncio.sleep(load.pause_s)
            finally:
                await plain.close()

    def _request(self, client: int, tenant: str) -> tuple[Request, tuple[int, ...], Sampling]:
        number = next(self._numbers)
        prompt = self._golden.prompt(self._load.prompt_tokens)
        output = self._golden.output(prompt, number, self._load.output_tokens)
        sampling = Sampling(
            max_tokens=self._load.output_tokens,
            # Every second one is sampled: what is drawn must not depend on who delivers it.
            temperature=0.0 if self._load.greedy else float(number % 2),
            seed=number,
            ignore_eos=True,
        )
        request = Request(f"client {client} request {number}", output, self._load.deadline_s, tenant)
        request.events.append(Attempted(time.monotonic(), restart=True))
        self._history.requests.append(request)
        return request, prompt, sampling

    # --- the Python client --------------------------------------------------------------------------------------------

    async def _stream(self, sdk: AsyncClient, request: Request, prompt: Sequence[int], sampling: Sampling) -> None:
        stop_after = random.randrange(1, len(request.golden)) if self._load.kind is Kind.FICKLE else None
        resume = None
        while True:
            left = request.sent_at + request.deadline_s - time.monotonic()
            stream = sdk.stream("demo", prompt, sampling, resume=resume, timeout=max(left, 0.001))
            try:
                async with stream:
                    async for event in stream:
                        note(request, event)
                        if stop_after is not None and isinstance(event, Delta) and event.offset >= stop_after:
                            break
                if request.ended_at is None:
                    request.events.append(Cancelled(time.monotonic()))
                return
            except PenstockClientError as error:
                goes_on = _passing(error) and self._load.retries and left > 0
                goes_on = goes_on and self._load.kind in (Kind.RESUMING, Kind.FICKLE)
                note_failure(request, error, final=not goes_on)
                if not goes_on:
                    return
                wait_s = (error.retry_after or 0.0) + random.uniform(0, AGAIN_S)
                resume = stream.resume_point or resume
            await asyncio.sleep(wait_s)
            request.events.append(Attempted(time.monotonic(), restart=resume is None))

    async def _unary(self, sdk: AsyncClient, request: Request, prompt: Sequence[int], sampling: Sampling) -> None:
        try:
            done = await sdk.generate("demo", prompt, sampling, GenerateOptions(), timeout=request.deadline_s)
        except PenstockClientError as error:
            note_failure(request, error, final=True)
            return
        now, choice = time.monotonic(), done.choices[0]
        request.events.append(Accepted(now, done.request_id))
        request.events.append(Tokens(now, 0, choice.token_ids))
        receipt = done.receipt
        ended = Finished(
            now, choice.finish_reason, done.usage.output_tokens, receipt.exact, len(receipt.attempts), receipt.router_id
        )
        request.events.append(ended)

    # --- HTTP ---------------------------------------------------------------------------------------------------------

    async def _http_client(self, number: int) -> None:
        back = HttpCalls(self._http_targets, number)
        plain = OpenAICalls(self._http_targets[number % len(self._http_targets)])
        try:
            while not self._stop.is_set():
                request, prompt, sampling = self._request(number, "")
                asked = body(prompt, {"max_tokens": sampling.max_tokens, "seed": sampling.seed})
                reader = Reader(request, self._golden.text(request.golden))
                if self._load.kind is Kind.HTTP:
                    await self._http(back, reader, asked)
                elif (refused := await plain.stream(reader, asked, request.deadline_s)) is not None:
                    request.events.append(replace(refused.failed, final=True))
                await asyncio.sleep(self._load.pause_s)
        finally:
            await back.close()
            await plain.close()

    async def _http(self, calls: HttpCalls, reader: Reader, asked: Mapping[str, Any]) -> None:
        request, last = reader.request, list[str]()
        while True:
            left = request.sent_at + request.deadline_s - time.monotonic()
            refused = await calls.stream(reader, asked, last, max(left, 0.001))
            if refused is None:
                return
            goes_on = refused.again and self._load.retries and left > 0
            request.events.append(replace(refused.failed, final=not goes_on))
            if not goes_on:
                return
            await asyncio.sleep((refused.failed.retry_after_s or 0.0) + random.uniform(0, AGAIN_S))
            calls.next()
            request.events.append(Attempted(time.monotonic(), restart=not last))

    # --- bare gRPC ----------------------------------------------------------------------------------------------------

    async def _plain(self, calls: PlainCalls, request: Request, prompt: Sequence[int], sampling: Sampling) -> None:
        wire = api.StreamGenerateRequest(
            generate=api.GenerateRequest(
                model="demo",
                prompt=types.Prompt(tokens=types.TokenPrompt(ids=prompt)),
                sampling=sampling.to_proto(),
                idempotency_key=request.key,
            )
        )
        while True:
            left = request.sent_at + request.deadline_s - time.monotonic()
            try:
                await calls.stream(wire, request, max(left, 0.001))
                return
            except grpc.RpcError as raised:
                error = from_rpc_error(raised)
                goes_on = isinstance(error, UnavailableError) and self._load.retries and left > 0
                note_failure(request, error, final=not goes_on)
                if not goes_on:
                    return
            await asyncio.sleep((error.retry_after or 0.0) + random.uniform(0, AGAIN_S))
            calls.next()
            request.events.append(Attempted(time.monotonic(), restart=True))


def _passing(error: PenstockClientError) -> bool:
    """Whether another call may help. A gRPC server that closes cancels, without a reason of ours, what arrives at that
    very moment; whether a scenario allows that is for its bounds to say.
    """
    return isinstance(error, UnavailableError) or (error.code is grpc.StatusCode.CANCELLED and not error.reason)


class PlainCalls:
    """A client without our SDK: a channel per router, and one router at a time."""

    def __init__(self, targets: Sequence[str], first: int) -> None:
        self._targets = targets
        self._at = first
        self._channels: dict[str, grpc.aio.Channel] = {}

    def next(self) -> None:
        """Turn to the next router."""
        self._at += 1

    async def stream(self, wire: api.StreamGenerateRequest, request: Request, seconds: float) -> None:
        """Make one call."""
        target = self._targets[self._at % len(self._targets)]
        channel = self._channels.get(target)
        if channel is None:
            options = (("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100))
            channel = self._channels[target] = grpc.aio.insecure_channel(target, options=options)
        stub: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        async for event in stub.StreamGenerate(wire, timeout=seconds):
            note_wire(request, event)

    async def close(self) -> None:
        """Hang up."""
        for channel in self._channels.values():
            await channel.close()


def note(request: Request, event: object) -> None:
    """Note an event of the Python client's stream."""
    now = time.monotonic()
    match event:
        case Queued() | Started():
            request.events.append(Accepted(now, event.request_id))
        case Delta():
            request.events.append(Tokens(now, event.offset, event.token_ids))
        case StreamResumed():
            request.events.append(Resumed(now, event.exact))
        case StreamFinished():
            receipt, choice = event.receipt, event.choices[0]
            attempts = len(receipt.attempts)
            reason = choice.finish_reason
            request.events.append(
                Finished(now, reason, event.usage.output_tokens, receipt.exact, attempts, receipt.router_id)
            )


def note_wire(request: Request, event: api.StreamGenerateResponse) -> None:
    """Note an event as it comes over the wire."""
    now = time.monotonic()
    match event.WhichOneof("event"):
        case "queued":
            request.events.append(Accepted(now, event.queued.request_id))
        case "started":
            request.events.append(Accepted(now, event.started.request_id))
        case "delta":
            request.events.append(Tokens(now, event.delta.offset, tuple(event.delta.token_ids)))
        case "resumed":
            request.events.append(Resumed(now, event.resumed.exact))
        case "finished":
            end = event.finished
            request.events.append(
                Finished(
                    now,
                    types.FinishReason.Name(end.choices[0].finish_reason).lower(),
                    end.usage.output_tokens,
                    end.receipt.exact,
                    len(end.receipt.attempts),
                    end.receipt.router_id,
                )
            )


def note_failure(request: Request, error: PenstockClientError, *, final: bool) -> None:
    """Note how a call failed."""
    failed = Failed(time.monotonic(), error.code.name, error.reason, error.retry_after, final)
    request.events.append(failed)
