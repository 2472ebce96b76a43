"""A check of Redis before anything depends on it: one connection, one script that uses every command of ours once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from redis import exceptions

from cluster.errors import QueueUnavailableError, SettingsError
from cluster.lifecycle import timeout_awake
from cluster.redis.connections import CONNECTION_ERRORS, ConnectionSource
from cluster.redis.explain import RedisTrouble, explain, shown_address
from cluster.redis.keys import PREFIX, pool_key

_LOG = logging.getLogger(__name__)
OLDEST = (6, 2)
"""Oldest version of Redis. All of Valkey are newer."""
ROUND_TRIPS = 50
"""Round trips that a measurement takes."""
_LOOK_S = 1.0
"""Seconds for a look whether a port that fails with TLS speaks without."""

PROBES: Mapping[str, str] = {
    # First, because a full Redis refuses only a script whose first write may need memory.
    "HDEL": "H, 'a'",
    "TIME": "",
    "EXISTS": "S",
    "INFO": "'server'",
    "PUBLISH": "ARGV[1], ''",
    "GET": "S",
    "SET": "S, '1'",
    "GETBIT": "S, 0",
    "SETBIT": "S, 0, 1",
    **dict.fromkeys(("HGETALL", "HLEN", "HRANDFIELD"), "H"),
    **dict.fromkeys(("HEXISTS", "HGET", "HMGET", "HSTRLEN"), "H, 'a'"),
    **dict.fromkeys(("HSET", "HSETNX"), "H, 'a', '1'"),
    **dict.fromkeys(("HINCRBY", "HINCRBYFLOAT"), "H, 'n', 1"),
    "ZADD": "Z, 0, 'a'",
    **dict.fromkeys(("ZCARD", "ZRANDMEMBER"), "Z"),
    **dict.fromkeys(("ZCOUNT", "ZRANGE", "ZRANGEBYSCORE"), "Z, 0, 0"),
    **dict.fromkeys(("ZLEXCOUNT", "ZRANGEBYLEX"), "Z, '-', '+'"),
    "ZREVRANGEBYLEX": "Z, '+', '-'",
    **dict.fromkeys(("ZRANK", "ZSCORE", "ZREM"), "Z, 'a'"),
    "ZREMRANGEBYSCORE": "Z, 0, 0",
    **dict.fromkeys(("LPUSH", "RPUSH"), "L, 'a'"),
    "LLEN": "L",
    "LRANGE": "L, 0, 0",
    "LTRIM": "L, 0, 0",
    "SADD": "M, 'a'",
    "SMEMBERS": "M",
    **dict.fromkeys(("DEL", "UNLINK"), "H, Z, S, L, M"),
}
"""Every command that our scripts and stores use on data, with arguments in Lua that change keys of the check only. The
last ones remove them."""

_KINDS = "HZSLM"
_SCRIPT = (
    "local {names} = {keys}\n"
    "local denied, state = {{}}, ''\n"
    "local function try(name, ...)\n"
    "  local reply = redis.pcall(name, ...)\n"
    "  local err = type(reply) == 'table' and reply.err\n"
    "  if not err then return end\n"
    "  if err:find('permission') or err:find(\"can't run this\") or err:find(\"can't access\")\n"
    "    or err:find(\"can't publish\") or err:find('ACL failure') or err:find('NOPERM') then\n"
    "    denied[#denied + 1] = name\n"
    "  elseif state == '' then\n"
    "    state = err\n"
    "  end\n"
    "end\n"
    "{calls}\n"
    "return {{state, unpack(denied)}}\n"
).format(
    names=", ".join(_KINDS),
    keys=", ".join(f"KEYS[{number + 1}]" for number in range(len(_KINDS))),
    calls="\n".join(f"try('{name}'{', ' if given else ''}{given})" for name, given in PROBES.items()),
)
_UNSAFE = re.compile(r"allkeys-")


@dataclass(frozen=True, slots=True)
class RedisReport:
    """Facts about a Redis that can be used."""

    server: str
    """Name and version, such as Redis 7.0.15 or Valkey 8.1.1; empty where the user may not ask."""
    warnings: tuple[str, ...]
    """What its operator should know, a sentence each."""


async def check_redis(url: str, pool: str, timeout_s: float, *, allow_eviction: bool) -> RedisReport:
    """Connect as the stores do, and check answer, version, memory policy and the user's rights.

    Args:
        url: the setting redis.url.
        pool: a pool's name. The check writes five keys beside the pool's, and removes them.
        timeout_s: how long connecting and the answers may take, in seconds.
        allow_eviction: whether a Redis that removes our keys when its memory is full is accepted.

    Raises:
        SettingsError: only a change of settings, or of Redis' own, helps.
        QueueUnavailableError: Redis does not answer, or is not ready; a later try may succeed.
    """
    source = ConnectionSource(url, timeout_s, pool_key(pool, "check"))
    try:
        connection = source.make()
        try:
            async with timeout_awake(timeout_s):
                await connection.connect()
                await _ask(connection, "PING")
                info = await _info(connection)
                state, *denied = await _probe(connection, pool)
                if await _may_not_subscribe(connection):
                    denied.append("SUBSCRIBE")
        finally:
            await connection.disconnect(nowait=True)
    except (*CONNECTION_ERRORS, exceptions.RedisError) as error:
        if isinstance(error.__cause__, exceptions.NoPermissionError):
            # The only command that connecting to a Redis Cluster needs.
            _check_rights(["CLUSTER SLOTS"], url)
        plain = url.startswith("rediss:") and await _speaks_plain(url)
        raise _error(explain(error, url, speaks_plain=plain)) from error
    finally:
        await source.close()
    _check_rights(denied, url)
    if state:
        kind = exceptions.ReadOnlyError if state.startswith("READONLY") else exceptions.ResponseError
        raise _error(explain(kind(state), url))
    _check_version(info, url)
    return RedisReport(server_of(info), _warnings(info, url, allow_eviction))


def server_of(info: Mapping[str, str]) -> str:
    """Return name and version of a server from its INFO. Valkey's `redis_version` is the one of the Redis that it
    stands for.
    """
    for name, key in (("Valkey", "valkey_version"), ("Redis", "redis_version")):
        if version := info.get(key):
            return f"{name} {version}"
    return ""


async def measure_redis(url: str, timeout_s: float) -> tuple[Mapping[str, str], tuple[float, ...], float]:
    """Return the fields of INFO, some round trips in seconds, and the seconds by which Redis' clock is ahead of ours.

    Raises:
        SettingsError, QueueUnavailableError: as `check_redis`.
    """
    source = ConnectionSource(url, timeout_s, PREFIX)
    try:
        connection = source.make()
        try:
            async with timeout_awake(timeout_s):
                await connection.connect()
            trips = []
            for _ in range(ROUND_TRIPS):
                async with timeout_awake(timeout_s):
                    began = time.perf_counter()
                    await _ask(connection, "PING")
                    trips.append(time.perf_counter() - began)
            async with timeout_awake(timeout_s):
                info = await _info(connection)
                before = time.time()
                seconds, micros = await _ask(connection, "TIME")
                # Redis read its clock in the middle of the round trip, as far as can be known.
                ahead_s = int(seconds) + int(micros) / 1e6 - (before + time.time()) / 2
        finally:
            await connection.disconnect(nowait=True)
    except (*CONNECTION_ERRORS, exceptions.RedisError) as error:
        raise _error(explain(error, url)) from error
    finally:
        await source.close()
    return info, tuple(trips), ahead_s


async def warn_or_refuse(url: str, pool: str, timeout_s: float, *, allow_eviction: bool) -> None:
    """Check Redis for a process that also starts while Redis is away. Log what may pass, and warnings.

    Raises:
        SettingsError: only a change of settings, or of Redis' own, helps.
    """
    try:
        report = await check_redis(url, pool, timeout_s, allow_eviction=allow_eviction)
    except QueueUnavailableError as error:
        _LOG.warning("redis.not_ready", extra={"error": str(error)})
        return
    for warning in report.warnings:
        _LOG.warning("redis.risk", extra={"text": warning})


def _error(trouble: RedisTrouble) -> SettingsError | QueueUnavailableError:
    text = f"redis.url: {trouble.text}"
    return SettingsError(text) if trouble.lasting else QueueUnavailableError(text)


async def _ask(connection: Any, *words: str) -> Any:
    await connection.send_command(*words, check_health=False)
    return await connection.read_response(disable_decoding=True, timeout=math.inf)


async def _info(connection: Any) -> dict[str, str]:
    try:
        text: str = (await _ask(connection, "INFO")).decode(errors="replace")
    except exceptions.NoPermissionError:
        # The probe names it together with all others.
        return {}
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


async def _probe(connection: Any, pool: str) -> list[str]:
    """Run every command once; return the error of a state such as a full memory, and the names of denied commands."""
    source, keys = _SCRIPT.encode(), [pool_key(pool, f"check:{kind}") for kind in _KINDS]
    try:
        await connection.send_command("SCRIPT", "LOAD", source, check_health=False)
        await connection.read_response(disable_decoding=True, timeout=math.inf)
    except exceptions.NoPermissionError:
        return ["", "SCRIPT LOAD"]
    sha = hashlib.sha1(source, usedforsecurity=False).hexdigest()
    try:
        found = await _ask(connection, "EVALSHA", sha, str(len(keys)), *keys, _channel())
    except exceptions.NoPermissionError as error:
        return ["", "EVALSHA" if "evalsha" in str(error) else f"EVALSHA on keys {PREFIX}:*"]
    state, *denied = (word.decode(errors="replace") for word in found)
    return [state.removeprefix("-"), *denied]


async def _may_not_subscribe(connection: Any) -> bool:
    try:
        await _ask(connection, "SUBSCRIBE", _channel())
    except exceptions.NoPermissionError:
        return True
    return False


def _channel() -> str:
    return f"{PREFIX}:bell:check"


def _check_rights(denied: list[str], url: str) -> None:
    if not denied:
        return
    user = urlsplit(url).username or "default"
    # A user that may use all keys or channels can't be given patterns besides. To Redis 6.2 CLUSTER is dangerous.
    patterns = f"resetkeys ~{PREFIX}:* resetchannels &{PREFIX}:*"
    rule = f"ACL SETUSER {user} {patterns} +@all -@dangerous +info +cluster|slots"
    raise SettingsError(
        f"redis.url: the user {user!r} of {shown_address(url)} may not use {', '.join(denied)}, which Penstock needs; "
        f"a rule that suffices is `{rule}`"
    )


def _check_version(info: Mapping[str, str], url: str) -> None:
    version = info.get("redis_version", "")
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) < OLDEST:
        raise SettingsError(
            f"redis.url: {shown_address(url)} is Redis {version}; {OLDEST[0]}.{OLDEST[1]} or newer is needed"
        )


def _warnings(info: Mapping[str, str], url: str, allow_eviction: bool) -> tuple[str, ...]:
    """Return what is worth a warning.

    Raises:
        SettingsError: Redis removes our keys when its memory is full, and this is not allowed.
    """
    where, warnings = shown_address(url), []
    policy = info.get("maxmemory_policy", "")
    # None of our keys has a time to live, so the policies for such keys never remove one of ours.
    if _UNSAFE.match(policy):
        stake = "it removes waiting requests, stored jobs, usage and quotas when its memory is full"
        if not allow_eviction:
            raise SettingsError(
                f"redis.url: {where} has maxmemory-policy {policy}: {stake}; set the policy to noeviction, or set "
                "redis.allow_eviction to accept the loss"
            )
        warnings.append(f"{where} has maxmemory-policy {policy}: {stake}")
    if 0 < int(info.get("maxmemory", "0")) < int(info.get("used_memory", "0")):
        warnings.append(f"{where} is full and takes no new requests: its maxmemory is {info['maxmemory']} bytes")
    if info.get("aof_enabled") == "0":
        warnings.append(f"{where} has no append-only file: what came after its last snapshot is lost when it restarts")
    return tuple(warnings)


async def _speaks_plain(url: str) -> bool:
    """Return whether a Redis without TLS answers at the host and port of a URL."""
    parts = urlsplit(url)
    try:
        async with timeout_awake(_LOOK_S):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 6379)
            try:
                writer.write(b"PING\r\n")
                await writer.drain()
                return await reader.read(1) in (b"+", b"-")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
