"""The store of the registry in Redis."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from cluster.clock import Clock
from cluster.errors import RegistryConflictError
from cluster.redis.connections import RedisTarget
from cluster.redis.pipeline import DEFAULT_TIMEOUT_S
from cluster.redis.store_calls import StoreCalls
from cluster.registry.contract import Author, Change, Edit, Entry, Look, Past, Position, Sighting, Watcher
from cluster.registry.redis.keys import REGISTRY_KEYS

PAGE = 1_000
"""Most entries that one look returns. It bounds how long the script keeps Redis busy."""
MOST_HISTORY = 100_000
"""Changes that the history keeps."""
WATCHED_MS = 60_000
"""How long a watcher counts after its last look."""
_DIGEST = 40
"""Hexadecimal digits of SHA-1."""


class RedisRegistryStore:
    """The store in Redis."""

    def __init__(
        self, target: RedisTarget, timeout_s: float = DEFAULT_TIMEOUT_S, page: int = PAGE, *, clock: Clock | None = None
    ) -> None:
        """Create the store. `page`: most entries that one look returns. The others are those of `StoreCalls`."""
        self._page = page
        self._calls = StoreCalls(target, "cluster.registry.redis", REGISTRY_KEYS[0], timeout_s, clock)

    async def look(self, watcher: Watcher, since: Position, after: int | None = None) -> Look:
        report = json.dumps([watcher.kind, watcher.pool]).encode() + b"\n" + watcher.report
        start = "" if after is None else after
        words = (watcher.id, report, since.life, since.version, start, self._page)
        reply = await self._calls.run("look", REGISTRY_KEYS, self._calls.now, *words)
        life, version, whole, more, *rest = reply
        entries = [_entry(bytes(rest[i]), bytes(rest[i + 1])) for i in range(0, len(rest), 2)]
        return Look(Position(_text(life), int(version)), entries, bool(whole), bool(more))

    async def apply(self, edits: Sequence[Edit], author: Author, known: Position) -> Position | None:
        words: list[str | bytes | float] = []
        for edit in edits:
            words += [_id(edit.kind, edit.name), "" if edit.expected is None else edit.expected, _signed(edit.value)]
        reply = await self._calls.run(
            "apply",
            REGISTRY_KEYS,
            self._calls.now,
            known.life,
            known.version,
            secrets.token_hex(8),
            author.tenant,
            author.credential,
            MOST_HISTORY,
            *words,
        )
        match _text(reply[0]):
            case "lost":
                return None
            case "conflict":
                edit = edits[int(reply[1])]
                raise RegistryConflictError(edit.kind, edit.name, edit.expected or 0, int(reply[2]))
        return Position(_text(reply[1]), int(reply[2]))

    async def restore(self, known: Position, entries: Sequence[Entry]) -> int:
        back = 0
        for start in range(0, max(1, len(entries)), self._page):
            some = entries[start : start + self._page]
            # Only with the last entries may the store take the version that the process knows.
            version = known.version if start + self._page >= len(entries) else 0
            words = [word for one in some for word in (_id(one.kind, one.name), _packed(one))]
            now = self._calls.now
            back += int(await self._calls.run("restore", REGISTRY_KEYS, now, known.life, version, *words))
        return back

    async def watchers(self) -> Sequence[Sighting]:
        flat = await self._calls.command("HGETALL", REGISTRY_KEYS[-1]) or []
        seen = [_sighting(_text(flat[i]), bytes(flat[i + 1])) for i in range(0, len(flat), 2)]
        # Ages count from the newest look, by the clock of Redis: ours may be another.
        newest = max((at for at, _ in seen), default=0)
        return [Sighting(each.watcher, each.version, newest - at) for at, each in seen if newest - at <= WATCHED_MS]

    async def history(self, kind: str, name: str, limit: int, before: int | None = None) -> Past:
        start = "" if before is None else before
        reply = await self._calls.run("history", REGISTRY_KEYS, kind, name, limit, start)
        oldest, *lines = reply
        changes = [_change(bytes(lines[i]), _text(lines[i + 1])) for i in range(0, len(lines), 2)]
        return Past(changes, int(oldest))

    async def close(self) -> None:
        await self._calls.close()


def _text(word: Any) -> str:
    return word if isinstance(word, str) else bytes(word).decode()


def _id(kind: str, name: str) -> str:
    return f"{kind}\0{name}"


def _signed(value: bytes | None) -> bytes:
    return b"-" if value is None else b"+" + value


def _packed(entry: Entry) -> bytes:
    return b"%d:%d:%b" % (entry.version, entry.at_ms, _signed(entry.value))


def _entry(name: bytes, packed: bytes) -> Entry:
    version, at_ms, signed = packed.split(b":", 2)
    kind, _, called = name.decode().partition("\0")
    return Entry(kind, called, int(version), int(at_ms), _value(signed))


def _value(signed: bytes) -> bytes | None:
    return signed[1:] if signed[:1] == b"+" else None


def _sighting(name: str, packed: bytes) -> tuple[int, Sighting]:
    at, version, rest = packed.split(b":", 2)
    head, _, report = rest.partition(b"\n")
    kind, pool = json.loads(head)
    return int(at), Sighting(Watcher(name, kind, pool, report), int(version), 0)


def _change(line: bytes, digest_before: str) -> Change:
    digest, packed = line[:_DIGEST].decode(), line[_DIGEST:]
    number, at_ms, tenant, credential, name, version, before, after = _parts(packed)
    kind, _, called = name.decode().partition("\0")
    known = bool(digest_before) or int(number) == 1
    # SHA-1 is what Redis' scripts have. The chain shows that a line was changed or left out by somebody who did not
    # also write the whole history anew.
    expected = hashlib.sha1(digest_before.encode() + packed, usedforsecurity=False).hexdigest()
    return Change(
        number=int(number),
        at_ms=int(at_ms),
        author=Author(tenant.decode(), credential.decode()),
        kind=kind,
        name=called,
        version=int(version),
        before=_value(before),
        after=_value(after),
        digest=digest,
        intact=not known or digest == expected,
    )


def _parts(line: bytes) -> Iterator[bytes]:
    while line:
        length, _, line = line.partition(b":")
        yield line[: int(length)]
        line = line[int(length) :]
