"""What the store keeps of a response: its request while it runs, its result afterwards. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from penstock.v1 import inference_pb2 as api
from router.http.responses.events import FROM_THE_BEGINNING, UNENDED, Events
from router.http.responses.items import Item
from router.http.responses.pieces import pieces_of_items

_LONG_INT = 1
"""Type of extension for whole numbers that msgpack has no room for. JSON has no largest one, and schemas name them."""


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """Everything that any router needs to run a response and to tell it."""

    generate: bytes
    """The GenerateRequest, with the response's id as its idempotency key."""
    base: Mapping[str, Any]
    """Fields of the response that do not change."""
    items: Sequence[Item]
    """The whole conversation up to the answer."""
    digest: str
    """Digest of the body as the client sent it."""
    api_key: str = ""
    """Public id of the key that it came with; empty for none."""

    @property
    def response_id(self) -> str:
        return str(self.base["id"])

    @property
    def background(self) -> bool:
        """Whether it runs to its end, whoever listens."""
        return bool(self.base["background"])

    def request(self) -> api.GenerateRequest:
        """Return the request to the cluster."""
        return api.GenerateRequest.FromString(self.generate)

    def packed(self) -> bytes:
        return _pack((self.generate, self.base, list(self.items), self.digest, self.api_key))

    @classmethod
    def unpack(cls, data: bytes) -> StoredRequest:
        """Undo `packed`."""
        return cls(*_unpack(data)[:5])


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A response that has ended."""

    response: Mapping[str, Any]
    items: Sequence[Item]
    """The whole conversation up to the answer."""
    digest: str
    started: bool
    """Whether it left the queue."""

    def packed(self) -> bytes:
        return _pack((self.response, list(self.items), self.digest, self.started))

    @classmethod
    def unpack(cls, data: bytes) -> StoredResult:
        """Undo `packed`."""
        return cls(*_unpack(data)[:4])

    def told(self, after: int = FROM_THE_BEGINNING) -> str:
        """Return the events behind a number."""
        response = self.response
        events = Events(str(response["id"]), {**response, **UNENDED}, after)
        lines = [events.begin(queued=bool(response["background"]))]
        if self.started:
            lines.append(events.started())
        lines += map(events.add, pieces_of_items(response["output"]))
        lines.append(events.end(complete=response["status"] == "completed"))
        return "".join([*lines, events.final(response)])


def digest_of(body: Mapping[str, Any]) -> str:
    """Return a digest of a body, to recognize its repeat."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]


def _pack(value: Any) -> bytes:
    return bytes(msgpack.packb(value, default=_long_int))


def _unpack(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_read_ext)


def _long_int(value: object) -> msgpack.ExtType:
    if not isinstance(value, int):
        raise TypeError(f"a response has no {type(value).__name__}")
    return msgpack.ExtType(_LONG_INT, str(value).encode())


def _read_ext(kind: int, data: bytes) -> Any:
    return int(data) if kind == _LONG_INT else msgpack.ExtType(kind, data)
