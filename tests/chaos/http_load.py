"""The clients of a run that speak HTTP: a small one that comes back, and OpenAI's SDK as it is."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import httpx
import openai

from tests.chaos.history import Accepted, Failed, Finished, Request, Tokens

_CODES = {400: "INVALID_ARGUMENT", 409: "ABORTED", 429: "RESOURCE_EXHAUSTED", 499: "CANCELLED", 503: "UNAVAILABLE"}
"""Codes of a history by HTTP status. Others are INTERNAL."""
_PATH = "/v1/completions"


def body(prompt: Sequence[int], sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body of a stream whose chunks have their tokens."""
    return {
        "model": "demo",
        "prompt": list(prompt),
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **sampling,
    }


class CutError(Exception):
    """An answer that ended without [DONE] and without an error."""


@dataclass(slots=True)
class Reader:
    """What a client knows of one request: what it has, over all its calls."""

    request: Request
    text: str
    """The text that an undisturbed run gives."""
    said: str = ""
    have: int = 0
    """Tokens so far."""
    reasons: list[str] = field(default_factory=list)

    def restart(self) -> None:
        """Begin at the first token."""
        self.said, self.have, self.reasons = "", 0, []

    def chunk(self, chunk: Mapping[str, Any]) -> None:
        """Take a chunk over."""
        now, request = time.monotonic(), self.request
        name = chunk["id"].removeprefix("cmpl-")
        if name not in request.ids:
            request.events.append(Accepted(now, name))
        for choice in chunk["choices"]:
            self.said += choice["text"]
            if ids := tuple(choice.get("token_ids") or ()):
                request.events.append(Tokens(now, self.have, ids))
                self.have += len(ids)
            if choice["finish_reason"]:
                self.reasons.append(choice["finish_reason"])
        if usage := chunk.get("usage"):
            self._end(now, usage)

    def _end(self, now: float, usage: Mapping[str, Any]) -> None:
        receipt, request = usage["receipt"], self.request
        if (self.said, self.reasons) != (self.text, ["length"]):
            request.events.append(Failed(now, "WRONG_TEXT", f"{self.said!r} {self.reasons}", None, final=True))
            return
        request.events.append(
            Finished(
                now,
                self.reasons[0],
                usage["completion_tokens"],
                receipt["exact"],
                len(receipt["attempts"]),
                receipt["router_id"],
            )
        )


@dataclass(frozen=True, slots=True)
class Refused:
    """How a call failed."""

    failed: Failed
    again: bool
    """Whether the same request makes sense once more."""


class HttpCalls:
    """Client that sends a request again to the next router, with the id of the last event that it has."""

    def __init__(self, targets: Sequence[str], first: int) -> None:
        self._targets, self._at = targets, first
        self._session: aiohttp.ClientSession | None = None

    def next(self) -> None:
        """Turn to the next router."""
        self._at += 1

    async def close(self) -> None:
        """Hang up."""
        if self._session is not None:
            await self._session.close()

    async def stream(self, reader: Reader, asked: Mapping[str, Any], last: list[str], seconds: float) -> Refused | None:
        """Make one call; `last` has the id of the last event once there is one. Returns how it failed."""
        session = self._session = self._session or aiohttp.ClientSession()
        headers = {"Idempotency-Key": reader.request.key, "x-penstock-receipt": "1"}
        if last:
            headers["Last-Event-ID"] = last[0]
        else:
            reader.restart()
        url, timeout = f"http://{self._targets[self._at % len(self._targets)]}{_PATH}", aiohttp.ClientTimeout(seconds)
        try:
            async with session.post(url, json=asked, headers=headers, timeout=timeout) as reply:
                if reply.status != 200:
                    return refused(reply.status, reply.headers, (await reply.json())["error"])
                async for event_id, data in _events(reply.content):
                    if "error" in data:
                        return broken(data["error"])
                    reader.chunk(data)
                    last[:] = [event_id] if event_id else last
        except (aiohttp.ClientError, ConnectionError, CutError) as error:
            return Refused(Failed(time.monotonic(), "UNAVAILABLE"), again=not isinstance(error, aiohttp.InvalidURL))
        except TimeoutError:
            return Refused(Failed(time.monotonic(), "DEADLINE_EXCEEDED"), again=False)
        return None


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Give id and object of each whole event up to [DONE].

    Raises:
        CutError: the end came before.
    """
    event_id, data = "", b""
    async for line in content:
        if line.startswith(b"id: "):
            event_id = line[4:].decode().strip()
        elif line.startswith(b"data: "):
            data = line[6:].strip()
        elif not line.strip() and data:
            if data == b"[DONE]":
                return
            yield event_id, json.loads(data)
            data = b""
    raise CutError


def refused(status: int, headers: Mapping[str, str], error: Mapping[str, Any]) -> Refused:
    """Read an answer that is an error."""
    wait = headers.get("retry-after-ms")
    failed = Failed(
        time.monotonic(),
        _CODES.get(status, "INTERNAL"),
        (error["code"] or "").upper(),
        None if wait is None else float(wait) / 1000,
    )
    return Refused(failed, again=headers.get("x-should-retry") == "true")


def broken(error: Mapping[str, Any]) -> Refused:
    """Read an error that ends a stream. It has no headers, so its type decides."""
    passing = error["type"] == "server_error" and error["code"] != "internal"
    # A reason would want a time to come again, which is in headers only.
    failed = Failed(time.monotonic(), "UNAVAILABLE", "") if passing else Failed(time.monotonic(), error["code"].upper())
    return Refused(failed, again=passing)


class OpenAICalls:
    """OpenAI's SDK at one router, without a key and without anything of ours."""

    def __init__(self, target: str) -> None:
        self._sdk = openai.AsyncOpenAI(base_url=f"http://{target}/v1", api_key="none")

    async def close(self) -> None:
        """Hang up."""
        await self._sdk.close()

    async def stream(self, reader: Reader, asked: Mapping[str, Any], seconds: float) -> Refused | None:
        """Make one call, which the SDK may repeat before it begins. Returns how it failed."""
        own = {"ignore_eos": True, "return_token_ids": True}
        known = {name: value for name, value in asked.items() if name not in own}
        receipt = {"x-penstock-receipt": "1"}
        try:
            stream = await self._sdk.completions.create(**known, extra_body=own, extra_headers=receipt, timeout=seconds)
            async for chunk in stream:
                reader.chunk(chunk.model_dump())
        except openai.APIStatusError as error:
            return refused(error.status_code, error.response.headers, error.body)  # type: ignore[arg-type]
        except openai.APIConnectionError:
            return Refused(Failed(time.monotonic(), "UNAVAILABLE"), again=False)
        except openai.APIError as error:
            return broken({"type": error.type, "code": error.code})
        except httpx.TransportError:
            # What the SDK raises where the connection breaks within a stream.
            return Refused(Failed(time.monotonic(), "UNAVAILABLE", ""), again=False)
        if reader.request.ended_at is None:
            # An application would take it for whole.
            return Refused(Failed(time.monotonic(), "CUT_SILENTLY"), again=False)
        return None
