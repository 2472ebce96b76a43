"""Calls over HTTP, as the services see them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aiohttp import web
from google.protobuf.message import Message

from penstock.v1 import inference_pb2 as api
from router.admission.budgets import BUDGET_HEADER
from router.call_context import DirectStream, Metadata
from router.http.event_stream import EventStream, SharedStream
from router.inference.forward import ADAPTER_HEADER, MODEL_HEADER

TOLD = web.RequestKey("told", dict[str, str])
"""Headers that a request's answer gets: the budget that is nearly used, and the model that serves an alias."""
_TOLD = (BUDGET_HEADER, MODEL_HEADER, ADAPTER_HEADER)


class HttpContext:
    """A `CallContext` of an HTTP request."""

    __slots__ = ("_keys", "_request", "_stream", "direct", "gone", "request_id")

    def __init__(self, request: web.Request, stream: EventStream | SharedStream | None = None, *, keys: bool) -> None:
        """Begin.

        Args:
            request: the HTTP request.
            stream: the answer; None for a call that answers once.
            keys: whether the router knows API keys. OpenAI's SDKs always send one, which means nothing where it does
                not.
        """
        self._keys = keys
        self.gone = False
        self.request_id = ""
        """The cluster's id of the request; empty until it is known."""
        self._request = request
        self._stream = stream
        self.direct: DirectStream | None = stream if isinstance(stream, EventStream) and stream.chunked else None

    def time_remaining(self) -> float | None:
        return None

    def invocation_metadata(self) -> Metadata | None:
        if not self._keys:
            return ()
        headers = self._request.headers
        keys = [("authorization", value) for value in headers.getall("Authorization", ())]
        return keys or [("authorization", f"Bearer {value}") for value in headers.getall("X-Api-Key", ())]

    def peer_address(self) -> str:
        return self._request.remote or ""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        found = self._request.get_extra_info("peercert") or {}
        names = [value for part in found.get("subject", ()) for key, value in part if key == "commonName"]
        addresses = [value for kind, value in found.get("subjectAltName", ()) if kind == "URI"]
        return {"x509_common_name": [name.encode() for name in names], "peer_uri": [uri.encode() for uri in addresses]}

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        self.request_id = next((str(value) for name, value in metadata if name == "penstock-request-id"), "")
        # For `answer_headers`.
        told = {name: str(value) for name, value in metadata if name in _TOLD}
        self._request[TOLD] = self._request.get(TOLD, {}) | told

    def opened(self, request_id: str) -> None:
        self.request_id = request_id
        if self._stream is not None:
            self._stream.opened(request_id)

    async def write(self, message: Message) -> None:
        if self._stream is None or not isinstance(message, api.StreamGenerateResponse):
            raise TypeError("this call has no stream")
        await self._stream.write(message)
