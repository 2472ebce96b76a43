"""The queue in Redis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack

from cluster.clock import Clock
from cluster.queue.cells.cell import CellOrders
from cluster.queue.cells.layout import SETTLE_S, CellRecord
from cluster.queue.cells.names import pool_of
from cluster.queue.checks import check_entry, check_id, check_mark, check_router_beat
from cluster.queue.entries import (
    Adopted,
    CostLine,
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
from cluster.queue.heartbeats import (
    PoolView,
    ReplicaBeat,
    ReplicaBeatReply,
    ReplicaTimes,
    RouterBeat,
    RouterBeatReply,
)
from cluster.queue.line import ASKED, Line
from cluster.queue.redis import codec
from cluster.queue.redis.keys import pool_keys
from cluster.queue.redis.line import read_line
from cluster.queue.redis.scripts import STEPS, load_scripts
from cluster.redis.connections import RedisTarget
from cluster.redis.pipeline import DEFAULT_TIMEOUT_S, open_pipeline
from cluster.redis.script import Script, ScriptStep

_STEP_PREFIXES = {name: b"\x92" + msgpack.packb(name, use_bin_type=False) for name in STEPS}
"""Beginning of a step: a list of two, of which the second is the script's own arguments."""


class RedisQueue:
    """One pool's queue in Redis (6.2 or later). It belongs to the event loop that makes the first call. A thread with a
    loop of its own, such as one that only sends heartbeats, needs its own instance.
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
        """Create a queue that connects at the first call.

        Args:
            target: a URL as in the setting redis.url; or a client, whose connection pool is used to connect; or an
                `InProcessRedis`.
            pool: the pool's name; must not contain braces.
            limits: the same at every router and replica of the pool.
            timeout_s: how long a call may wait for Redis, in seconds.
            clock: replaces Redis' own time; for tests.
            run_id: replaces Redis' own run id; for tests.
        """
        if not pool or "{" in pool or "}" in pool:
            raise ValueError(f"a pool's name must not be empty or contain braces, got {pool!r}")
        self.pool = pool
        self.limits = limits or QueueLimits()
        self._clock = clock
        self._run_id = run_id
        self._pipeline = open_pipeline(target, timeout_s, pool_keys(pool)[0])
        self._scripts = load_scripts()
        self._heads = self._command_heads()
        self._live = clock is not None or run_id is not None

    async def submit(self, router_id: str, entry: QueueEntry) -> Submitted:
        check_id("router_id", router_id)
        check_entry(entry)
        reply = await self._call("submit", codec.pack_entry(router_id, entry))
        return codec.read_submitted(pool_of(self.pool), self.limits.max_waiting, entry, reply)

    async def release(self, router_id: str, request_id: str, attempt: str, settlement: Settlement) -> Mail:
        arguments = codec.pack_settlement(router_id, request_id, attempt, settlement)
        return codec.read_grants(await self._call("release", arguments))

    async def requeue(self, router_id: str, request_id: str, attempt: str, settlement: Settlement) -> Mail:
        used = (settlement.output_tokens, settlement.gpu_seconds, settlement.cost)
        return codec.read_grants(await self._call("requeue", codec.pack(router_id, request_id, attempt, *used)))

    async def withdraw(
        self, router_id: str, request_id: str, used: Settlement | None, *, refused: bool = False
    ) -> Mail:
        arguments = codec.pack_withdrawal(router_id, request_id, used, refused=refused)
        return codec.read_grants(await self._call("withdraw", arguments))

    async def adopt(self, router_id: str, tenant: str, request_id: str) -> Adopted | None:
        check_id("router_id", router_id)
        return codec.read_adopted(request_id, await self._call("adopt", codec.pack(router_id, tenant, request_id)))

    async def find_key(self, tenant: str, client_key: str, request_id: str, digest: str) -> KnownRequest | None:
        reply = await self._call("find_key", codec.pack(tenant, client_key, request_id, digest))
        return codec.read_known(client_key, reply)

    async def finish_key(self, router_id: str, tenant: str, client_key: str, request_id: str, result: bytes) -> bool:
        arguments = codec.pack(router_id, tenant, client_key, request_id, result)
        return bool(await self._call("finish_key", arguments))

    async def await_key(self, tenant: str, client_key: str, request_id: str, *, note: bool) -> bool:
        return bool(await self._call("await_key", codec.pack(tenant, client_key, request_id, int(note))))

    async def usage(self, tenant: str, first_day: int, last_day: int, limit: int = 10_000) -> Sequence[UsageLine]:
        """Read the ledger in several calls if it is large, so that Redis serves others in between."""
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
        return codec.read_grants(await self._call("refuse", codec.pack(router_id, request_id, attempt)))

    async def cancel(self, router_id: str, tenant: str, target: str, *, by_key: bool = False) -> str | None:
        reply = await self._call("cancel", codec.pack(router_id, tenant, target, int(by_key)))
        return None if reply is None else str(reply, "utf-8")

    async def collect(self, router_id: str) -> Mail:
        return codec.read_mailbox(await self._call("collect", codec.pack(router_id)))

    async def heartbeat_router(self, beat: RouterBeat) -> RouterBeatReply:
        check_router_beat(beat)
        return codec.read_router_reply(await self._call("heartbeat_router", codec.pack_router_beat(beat)))

    async def heartbeat_replica(self, beat: ReplicaBeat) -> ReplicaBeatReply:
        check_id("replica_id", beat.replica_id)
        return codec.read_replica_reply(await self._call("heartbeat_replica", codec.pack_replica_beat(beat)))

    async def account(self, replica_id: str, times: ReplicaTimes, told: ReplicaTimes | None = None) -> None:
        check_id("replica_id", replica_id)
        await self._call("account", codec.pack_account(replica_id, times, told))

    async def costs(self, first_hour: int, last_hour: int) -> Sequence[CostLine]:
        lines: list[CostLine] = []
        first_hour = max(0, first_hour)
        while first_hour >= 0:
            first_hour, more = codec.read_costs(await self._call("read_costs", codec.pack(first_hour, last_hour)))
            lines += more
        return lines

    async def holdings(self, router_id: str, after: bytes = b"", limit: int = 500) -> Holdings:
        return codec.read_holdings(await self._call("holdings", codec.pack(router_id, after, limit)))

    async def observe(self, *, whole: bool = True) -> PoolView:
        return codec.read_view(await self._call("observe", codec.pack("")))

    async def line(self, ask: Sequence[str] = ()) -> Line:
        return read_line(await self._call("show_line", codec.pack(list(ask[:ASKED]))))

    async def quarantine(self, router_id: str, mark: Mark | None = None) -> Marks:
        if mark is not None:
            check_mark(mark)
        what = (mark.content, mark.incident, mark.left_ms) if mark is not None else (b"", "", 0)
        return codec.read_marks(await self._call("quarantine", codec.pack(router_id, *what)))

    async def retire_router(self, router_id: str, *, keep: bool = False) -> None:
        arguments = codec.pack(router_id, "router", int(keep))
        # Thousands of waiting entries take several calls, so that none blocks Redis for long.
        while await self._call("retire", arguments):
            pass

    async def retire_replica(self, replica_id: str) -> None:
        await self._call("retire", codec.pack(replica_id, "replica", 0))

    async def reap(self) -> int:
        return int(await self._call("reap", codec.pack("")))

    async def cells(self, count: int, most: int = 0) -> CellRecord:
        return CellRecord(*await self._call("cells", codec.pack("", count, most, round(SETTLE_S * 1000))))

    async def take_out(self, router_id: str, request_id: str) -> Mail | None:
        reply = await self._call("take_out", codec.pack(router_id, request_id))
        return None if reply is None else codec.read_grants(reply)

    async def read_orders(self) -> CellOrders:
        point, relief, relief_ms, standby, standby_ms = await self._call("read_orders", codec.pack(""))
        return CellOrders(point, relief.decode(), relief_ms, standby or b"", standby_ms)

    async def copy_orders(self, orders: CellOrders) -> None:
        words = orders.point or b"", orders.relief, orders.relief_ms, orders.standby, orders.standby_ms
        await self._call("copy_orders", codec.pack("", *words))

    async def close(self) -> None:
        await self._pipeline.close()

    async def _call(self, name: str, arguments: bytes) -> Any:
        script, head = self._head_of(name)
        command = b"%b$%d\r\n%b\r\n" % (head, len(arguments), arguments)
        prefix = _STEP_PREFIXES.get(name)
        step = None if prefix is None else ScriptStep(*self._head_of("turn"), prefix + arguments)
        return await self._pipeline.call(script, command, step)

    def _head_of(self, name: str) -> tuple[Script, bytes]:
        if not self._live:
            return self._heads[name]
        script = self._scripts[name]
        return script, self._head(script)

    def _command_heads(self) -> Mapping[str, tuple[Script, bytes]]:
        return {name: (script, self._head(script)) for name, script in self._scripts.items()}

    def _head(self, script: Script) -> bytes:
        """Pack an EVALSHA command without its last argument. Calls share this part, so it is packed once."""
        now = "" if self._clock is None else str(self._clock.wall_ms())
        run_id = "" if self._run_id is None else self._run_id()
        keys = pool_keys(self.pool)
        words = ["EVALSHA", script.sha, str(len(keys)), *keys, now, run_id, self.pool]
        parts = [*(word.encode() for word in words), *codec.pack_limits(self.limits)]
        return b"*%d\r\n" % (len(parts) + 1) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
