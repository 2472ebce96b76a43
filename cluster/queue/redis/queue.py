"""The waiting room in Redis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cluster.clock import Clock
from cluster.queue.checks import check_entry, check_id, check_mark, check_router_beat
from cluster.queue.entries import (
    Adopted,
    Holdings,
    KnownRequest,
    Mail,
    Mark,
    Marks,
    QueueEntry,
    QueueLimits,
    Settlement,
    Submitted,
    UsageLine,
)
from cluster.queue.heartbeats import PoolView, ReplicaBeat, ReplicaBeatReply, RouterBeat, RouterBeatReply
from cluster.queue.redis import codec
from cluster.queue.redis.keys import pool_keys
from cluster.queue.redis.scripts import load_scripts
from cluster.redis.connections import ConnectionSource, RedisTarget
from cluster.redis.pipeline import ScriptPipeline
from cluster.redis.script import Script

DEFAULT_TIMEOUT_S = 2.0


class RedisQueue:
    """Is one pool's queue in Redis (6.2 or later). Belongs to the event loop that makes the first call; a thread with a
    loop of its own, such as one that only sends heartbeats, uses its own instance.
    """

    def __init__(
        self,
        target: RedisTarget,
        pool: str,
        limits: QueueLimits | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        clock: Clock | None = None,
        run_id: Callable[[], str] | None = None,
    ) -> None:
        """Connects at the first call.

        Args:
            target: a URL as in the setting redis.url, or a client whose pool says how to connect.
            pool: the pool's name; must not contain braces.
            limits: the same at every router and replica of the pool.
            timeout_s: how long a call may wait for Redis, in seconds.
            clock: for tests: replaces Redis' own time.
            run_id: for tests: replaces Redis' own run id.
        """
        if not pool or "{" in pool or "}" in pool:
            raise ValueError(f"a pool's name must not be empty or contain braces, got {pool!r}")
        self.pool = pool
        self.limits = limits or QueueLimits()
        self._clock = clock
        self._run_id = run_id
        self._pipeline = ScriptPipeline(ConnectionSource(target, timeout_s, pool_keys(pool)[0]), timeout_s)
        self._scripts = load_scripts()
        self._heads = self._command_heads()
        self._live = clock is not None or run_id is not None

    async def submit(self, router_id: str, entry: QueueEntry) -> Submitted:
        """See `Queue.submit`."""
        check_id("router_id", router_id)
        check_entry(entry)
        reply = await self._call("submit", codec.pack_entry(router_id, entry))
        return codec.read_submitted(self.pool, self.limits.max_waiting, entry, reply)

    async def release(self, router_id: str, request_id: str, attempt: str, settlement: Settlement) -> Mail:
        """See `Queue.release`."""
        arguments = codec.pack_settlement(router_id, request_id, attempt, settlement)
        return codec.read_grants(await self._call("release", arguments))

    async def requeue(self, router_id: str, request_id: str, attempt: str, settlement: Settlement) -> Mail:
        """See `Queue.requeue`."""
        used = (settlement.output_tokens, settlement.gpu_seconds, settlement.cost)
        return codec.read_grants(await self._call("requeue", codec.pack(router_id, request_id, attempt, *used)))

    async def withdraw(self, router_id: str, request_id: str, used: Settlement | None) -> Mail:
        """See `Queue.withdraw`."""
        return codec.read_grants(await self._call("withdraw", codec.pack_withdrawal(router_id, request_id, used)))

    async def adopt(self, router_id: str, tenant: str, request_id: str) -> Adopted | None:
        """See `Queue.adopt`."""
        check_id("router_id", router_id)
        return codec.read_adopted(request_id, await self._call("adopt", codec.pack(router_id, tenant, request_id)))

    async def find_key(self, tenant: str, client_key: str, request_id: str, digest: str) -> KnownRequest | None:
        """See `Queue.find_key`."""
        reply = await self._call("find_key", codec.pack(tenant, client_key, request_id, digest))
        return codec.read_known(client_key, reply)

    async def finish_key(self, router_id: str, tenant: str, client_key: str, request_id: str, result: bytes) -> bool:
        """See `Queue.finish_key`."""
        arguments = codec.pack(router_id, tenant, client_key, request_id, result)
        return bool(await self._call("finish_key", arguments))

    async def usage(self, tenant: str, first_day: int, last_day: int, limit: int = 10_000) -> Sequence[UsageLine]:
        """See `Queue.usage`. Many calls where it is much: in between, Redis serves the others."""
        lines: list[UsageLine] = []
        following = b""
        while (left := limit - len(lines)) > 0:
            arguments = codec.pack(tenant, first_day, last_day, left, following)
            following, more = codec.read_usage(await self._call("usage", arguments))
            lines += more
            if not following:
                break
        return tuple(sorted(lines, key=lambda line: (line.day, line.tenant)))

    async def refuse(self, router_id: str, request_id: str, attempt: str) -> Mail:
        """See `Queue.refuse`."""
        return codec.read_grants(await self._call("refuse", codec.pack(router_id, request_id, attempt)))

    async def cancel(self, router_id: str, tenant: str, target: str, *, by_key: bool = False) -> str | None:
        """See `Queue.cancel`."""
        reply = await self._call("cancel", codec.pack(router_id, tenant, target, int(by_key)))
        return None if reply is None else str(reply, "utf-8")

    async def collect(self, router_id: str) -> Mail:
        """See `Queue.collect`."""
        return codec.read_mailbox(await self._call("collect", codec.pack(router_id)))

    async def heartbeat_router(self, beat: RouterBeat) -> RouterBeatReply:
        """See `Queue.heartbeat_router`."""
        check_router_beat(beat)
        return codec.read_router_reply(await self._call("heartbeat_router", codec.pack_router_beat(beat)))

    async def heartbeat_replica(self, beat: ReplicaBeat) -> ReplicaBeatReply:
        """See `Queue.heartbeat_replica`."""
        check_id("replica_id", beat.replica_id)
        return codec.read_replica_reply(await self._call("heartbeat_replica", codec.pack_replica_beat(beat)))

    async def holdings(self, router_id: str, after: bytes = b"", limit: int = 500) -> Holdings:
        """See `Queue.holdings`."""
        return codec.read_holdings(await self._call("holdings", codec.pack(router_id, after, limit)))

    async def observe(self) -> PoolView:
        """See `Queue.observe`."""
        return codec.read_view(await self._call("observe", codec.pack("")))

    async def quarantine(self, router_id: str, mark: Mark | None = None) -> Marks:
        """See `Queue.quarantine`."""
        if mark is not None:
            check_mark(mark)
        what = (mark.content, mark.incident, mark.left_ms) if mark is not None else (b"", "", 0)
        return codec.read_marks(await self._call("quarantine", codec.pack(router_id, *what)))

    async def retire_router(self, router_id: str, *, keep: bool = False) -> None:
        """See `Queue.retire_router`."""
        arguments = codec.pack(router_id, "router", int(keep))
        # Thousands of waiting entries take several calls, so that none holds Redis up for long.
        while await self._call("retire", arguments):
            pass

    async def retire_replica(self, replica_id: str) -> None:
        """See `Queue.retire_replica`."""
        await self._call("retire", codec.pack(replica_id, "replica", 0))

    async def reap(self) -> int:
        """See `Queue.reap`."""
        return int(await self._call("reap", codec.pack("")))

    async def close(self) -> None:
        """See `Queue.close`."""
        await self._pipeline.close()

    async def _call(self, name: str, arguments: bytes) -> Any:
        script, head = self._heads[name]
        if self._live:
            head = self._head(script)
        command = b"%b$%d\r\n%b\r\n" % (head, len(arguments), arguments)
        return await self._pipeline.call(script, command)

    def _command_heads(self) -> Mapping[str, tuple[Script, bytes]]:
        return {name: (script, self._head(script)) for name, script in self._scripts.items()}

    def _head(self, script: Script) -> bytes:
        """Pack everything of an EVALSHA but its last argument; the same for every call, so it is packed once."""
        now = "" if self._clock is None else str(self._clock.wall_ms())
        run_id = "" if self._run_id is None else self._run_id()
        keys = pool_keys(self.pool)
        words = ["EVALSHA", script.sha, str(len(keys)), *keys, now, run_id, self.pool]
        parts = [*(word.encode() for word in words), *codec.pack_limits(self.limits)]
        return b"*%d\r\n" % (len(parts) + 1) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
