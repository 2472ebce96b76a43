"""The store of responses in Redis."""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections.abc import Sequence
from typing import Any

from cluster.clock import Clock
from cluster.errors import ResponseLimitError
from cluster.redis.connections import RedisTarget
from cluster.redis.pipeline import DEFAULT_TIMEOUT_S
from cluster.redis.store_calls import StoreCalls
from cluster.responses.contract import Followed, Held, ResponseClaim, ResponseLimits, ResponseName, ResponseRecord
from cluster.responses.redis.keys import OPEN_KEY, response_keys

_LOOKED_AT = 64
"""Most responses of each kind that one sweep names."""
_CHUNKS = 256
"""Most chunks of a journal that one call reads."""
_LARGE = 32 << 10
"""Bytes that take a good part of a millisecond to compress, and a tenth of one to read again."""
_LEVEL = 1
_ROUNDS = 64
"""Most rounds in which a new response makes room."""
_UNLEASED_MS = 86_400_000
"""How long a response without a lease may run: nobody is told that its router has died."""
_AT_ONCE = 4
"""Responses that make room for bytes in the first round."""
_NOBODY = ResponseName("", "")


class RedisResponseStore:
    """The store in Redis. It has a connection of its own, so that large results never delay the queue's calls."""

    def __init__(
        self,
        target: RedisTarget,
        limits: ResponseLimits | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Create the store. `limits` are the same at every router; the other arguments are those of `StoreCalls`."""
        self.limits = limits or ResponseLimits()
        self._calls = StoreCalls(target, "cluster.responses.redis", OPEN_KEY, timeout_s, clock)

    async def create(self, claim: ResponseClaim, request: bytes, *, leased: bool) -> bool:
        limits, blob = self.limits, await _packed(request)
        lease = limits.lease_ms if leased else ""
        ttl_ms = limits.ttl_ms if leased else min(limits.ttl_ms, _UNLEASED_MS)
        bounds = (ttl_ms, limits.tenant_responses, limits.tenant_bytes)
        for number in range(_ROUNDS):
            # Ever more, as a large response may take the room of very many small ones.
            some = _AT_ONCE << min(number, 7)
            reply = await self._run("create", claim.name, claim.token, blob, lease, *bounds, some)
            if reply in (0, 1):
                return bool(reply)
            if reply == -1:
                break
            await self._delete_all(claim.name.tenant, reply)
        raise ResponseLimitError(limits.tenant_responses, limits.tenant_bytes)

    async def get(self, name: ResponseName) -> ResponseRecord | None:
        found = await self.follow(name, 0, 1 << 31)
        return None if found is None else found.record

    async def claim(self, name: ResponseName, *, force: bool = False) -> ResponseClaim | None:
        token = secrets.token_hex(12)
        taken = await self._run("claim", name, token, self.limits.lease_ms, int(force), self.limits.ttl_ms)
        return ResponseClaim(name, token) if taken else None

    async def renew(self, claim: ResponseClaim) -> Held | None:
        reply = await self._run("renew", claim.name, claim.token, self.limits.lease_ms)
        return Held(bool(reply[0]), reply[1] / 1000) if reply else None

    async def release(self, claim: ResponseClaim) -> None:
        await self._run("release", claim.name, claim.token)

    async def note(
        self,
        claim: ResponseClaim,
        journal: int,
        number: int,
        chunk: bytes,
        *,
        started: bool,
        run: str = "",
        place: bytes = b"",
    ) -> bool:
        blob = await _packed(chunk) if chunk else b""
        words = (journal, number, blob, int(started), run, place)
        return bool(await self._run("note", claim.name, claim.token, *words))

    async def follow(self, name: ResponseName, journal: int, first: int, *, request: bool = True) -> Followed | None:
        reply = await self._run("follow", name, journal, first, _CHUNKS, int(request))
        if not reply:
            return None
        asked, result, started, number, age_ms, leased, owned, chunks, run, place = reply
        record = ResponseRecord(
            name=name,
            request=await _unpacked(asked),
            result=await _unpacked(result),
            started=bool(started),
            journal=int(number or 0),
            run=run.decode(),
            place=place,
            leased=bool(leased),
            age_s=age_ms / 1000,
        )
        return Followed(record, [await _unpacked(chunk) for chunk in chunks], bool(owned))

    async def finish(self, claim: ResponseClaim, result: bytes, *, run: str = "") -> bool:
        limits = self.limits
        bounds = (limits.ttl_ms, limits.tenant_responses, limits.tenant_bytes, _AT_ONCE)
        reply = await self._run("finish", claim.name, claim.token, await _packed(result), *bounds, run)
        if reply == 0:
            return False
        await self._delete_all(claim.name.tenant, reply)
        return True

    async def cancel(self, name: ResponseName) -> None:
        await self._run("cancel", name)

    async def delete(self, name: ResponseName, *, claim: ResponseClaim | None = None) -> bool:
        return bool(await self._run("delete", name, "" if claim is None else claim.token))

    async def sweep(self) -> Sequence[ResponseName]:
        silent, due = await self._run("look", _NOBODY, self.limits.lease_ms, _LOOKED_AT)
        await asyncio.gather(*(self.delete(_name(member)) for member in due))
        return [_name(member) for member in silent if member not in due]

    async def close(self) -> None:
        await self._calls.close()

    async def _delete_all(self, tenant: str, ids: Sequence[bytes]) -> None:
        await asyncio.gather(*(self.delete(ResponseName(tenant, each.decode())) for each in ids))

    async def _run(self, name: str, response: ResponseName, *arguments: str | bytes | float) -> Any:
        words = (self._calls.now, response.tenant, response.response_id, *arguments)
        return await self._calls.run(name, response_keys(response), *words)


def _name(member: bytes) -> ResponseName:
    tenant, response_id = member.decode().rsplit("\0", 1)
    return ResponseName(tenant, response_id)


async def _packed(data: bytes) -> bytes:
    if len(data) > _LARGE:
        # In a thread, because the caller's event loop has streams to serve.
        return await asyncio.to_thread(zlib.compress, data, _LEVEL)
    return zlib.compress(data, _LEVEL)


async def _unpacked(blob: bytes) -> bytes:
    if len(blob) > _LARGE:
        return await asyncio.to_thread(zlib.decompress, blob)
    return zlib.decompress(blob) if blob else b""
