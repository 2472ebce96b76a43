"""Any server with OpenAI's HTTP API under load."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import time
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import aiohttp

from cluster.errors import SettingsError
from cluster.trust.verifying import trusting
from loadtest.load.driver.grpc_transport import CONNECT_S, pick_model
from loadtest.load.driver.stream import StreamObservation
from loadtest.load.driver.target import Target
from loadtest.load.driver.transport import LoadedModel, Observers, StreamFailedError
from loadtest.load.schedule.plan import PlannedRequest
from penstock.models import RequestClass
from penstock.v1 import inference_pb2, types_pb2
from penstock.wire import duration_to_wire

_VOCABULARY = 256
"""Ids that every tokenizer has. The API does not tell how many there are."""
_TIERS = {RequestClass.INTERACTIVE: "priority", RequestClass.BATCH: "flex"}
_REASONS = {"stop": types_pb2.FINISH_REASON_STOP, "length": types_pb2.FINISH_REASON_LENGTH}
_SHOWN = 300
"""Characters of an answer that are kept of an error."""


class HttpTransport:
    """Connections to servers, which take turns. Prompts are completions of token ids."""

    def __init__(
        self, target: Target, served: LoadedModel, session: aiohttp.ClientSession, tls: ssl.SSLContext
    ) -> None:
        self.served = served
        self._target = target
        self._session = session
        self._tls = tls
        self._servers = cycle(target.routers)

    @classmethod
    async def open(cls, target: Target) -> HttpTransport:
        """Find the model.

        Raises:
            SettingsError: the servers do not serve it, or do not answer.
        """
        headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), headers=headers, timeout=aiohttp.ClientTimeout(target.timeout_s)
        )
        try:
            tls = _tls(target)
            async with asyncio.timeout(CONNECT_S):
                models = await _models(session, target.routers[0], tls)
            name = pick_model(target.model, list(models))
        except (aiohttp.ClientError, TimeoutError) as error:
            await session.close()
            raise SettingsError(f"no answer: {_reason(error)}") from error
        except BaseException:
            await session.close()
            raise
        return cls(target, LoadedModel(name, int(models[name].get("max_model_len") or 0), _VOCABULARY), session, tls)

    async def connect(self) -> None:
        async with asyncio.timeout(CONNECT_S):
            for server in self._target.routers:
                try:
                    async with self._session.get(f"{server}/models", ssl=self._tls) as reply:
                        await reply.read()
                except aiohttp.ClientError as error:
                    raise SettingsError(f"no answer of {server}: {_reason(error)}") from error

    async def send(
        self, planned: PlannedRequest, prompt: Sequence[int], output: int, seen: StreamObservation, observers: Observers
    ) -> None:
        body: dict[str, Any] = {
            "model": self.served.name,
            "prompt": list(prompt),
            "max_tokens": output,
            "temperature": 0,
            # The plan decides the length, not the model.
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if tier := _TIERS.get(RequestClass(planned.request_class)):
            body["service_tier"] = tier
        # Other servers ignore both.
        headers = {"x-penstock-receipt": "1"}
        if planned.session:
            headers["X-Session-ID"] = planned.session
        url = f"{next(self._servers)}/completions"
        try:
            async with self._session.post(url, json=body, headers=headers, ssl=self._tls) as reply:
                if reply.status != 200:
                    raise _failed(reply.status, await reply.text())
                await follow_events(reply.content, seen, observers)
        except TimeoutError as error:
            raise StreamFailedError("DEADLINE_EXCEEDED", f"no end within {self._target.timeout_s:g} s") from error
        except (aiohttp.ClientError, ValueError) as error:
            raise StreamFailedError("CONNECTION", str(error) or type(error).__name__) from error
        except (AttributeError, LookupError, TypeError) as error:
            # Else the request would be in no count.
            raise StreamFailedError("PROTOCOL", "a part of the stream is not as OpenAI's API has it") from error

    async def close(self) -> None:
        await self._session.close()


def _reason(error: Exception) -> str:
    if not isinstance(error, aiohttp.ClientConnectorError):
        return str(error) or "in time"
    # The text of the error itself has the address once more, and an object.
    found = error.os_error
    known = isinstance(found, ConnectionError) and found.errno
    return os.strerror(known) if known else str(found.strerror or found)


async def _models(session: aiohttp.ClientSession, server: str, tls: ssl.SSLContext) -> dict[str, Any]:
    url = f"{server}/models"
    async with session.get(url, ssl=tls) as reply:
        text = await reply.text()
    if reply.status != 200:
        raise SettingsError(f"{url}: status {reply.status}: {text[:_SHOWN]}")
    try:
        return {str(model["id"]): model for model in json.loads(text)["data"]}
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{url}: no list of models as OpenAI's API has it: {text[:_SHOWN]}") from error


async def follow_events(lines: Any, seen: StreamObservation, observers: Observers) -> None:
    """Read a stream of completions to its end.

    A chunk has as many tokens as its usage says. Where servers send no usage with each chunk, it counts as one token.

    Raises:
        StreamFailedError: the stream has an error.
        ValueError: a line is not JSON.
    """
    clock, counted, reason = time.monotonic, 0, ""
    async for line in lines:
        if not line.startswith(b"data: {"):
            continue
        now, chunk = clock(), json.loads(line[6:])
        if chunk.get("error"):
            raise _failed(0, json.dumps(chunk))
        usage, choices = chunk.get("usage"), chunk.get("choices")
        if not choices:
            seen.finished = _finished(usage, reason)
            continue
        reason = choices[0].get("finish_reason") or reason
        if usage:
            new, counted = usage.get("completion_tokens", 0) - counted, usage.get("completion_tokens", 0)
        else:
            new = 1 if choices[0].get("text") else 0
        if new <= 0:
            continue
        if seen.first_at is None:
            seen.first_at = now
            observers.first(now - seen.due_at, new)
        else:
            gap = now - seen.last_at
            seen.gaps.append(gap)
            observers.gap(gap, new)
        seen.last_at = now
        seen.tokens += new
    if seen.finished is None and reason:
        seen.finished = _finished({"completion_tokens": seen.tokens}, reason)


def _finished(usage: Mapping[str, Any] | None, reason: str) -> inference_pb2.Finished:
    usage = usage or {}
    details = usage.get("prompt_tokens_details") or {}
    made = inference_pb2.Finished(
        choices=[inference_pb2.ChoiceEnd(finish_reason=_REASONS.get(reason, types_pb2.FINISH_REASON_UNSPECIFIED))],
        usage=types_pb2.Usage(
            prompt_tokens=usage.get("prompt_tokens", 0),
            output_tokens=usage.get("completion_tokens", 0),
            cached_tokens=details.get("cached_tokens") or 0,
        ),
    )
    for attempt in (usage.get("receipt") or {}).get("attempts", ()):
        made.receipt.attempts.add(queue_time=duration_to_wire(attempt["queue_time"]))
    return made


def _failed(status: int, text: str) -> StreamFailedError:
    """Return the error of an answer: its code where it has one, else its status."""
    try:
        error = json.loads(text)["error"]
        code, message = error.get("code") or error.get("type"), error.get("message")
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message = None, text[:_SHOWN]
    return StreamFailedError(str(code or f"HTTP_{status}").upper(), str(message))


def _tls(target: Target) -> ssl.SSLContext:
    try:
        context = trusting(os.path.expanduser(target.ca) or None)
        if target.cert:
            context.load_cert_chain(os.path.expanduser(target.cert), os.path.expanduser(target.key))
    except OSError as error:
        # Those of TLS are such errors too.
        raise SettingsError(f"certificates can't be used: {error}") from error
    return context
