"""The check of a Redis before anything depends on it."""

from __future__ import annotations

import itertools
import re
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from redis import exceptions

from cluster.errors import QueueUnavailableError, SettingsError
from cluster.redis import check
from cluster.redis.check import PROBES, check_redis, measure_redis, warn_or_refuse
from cluster.redis.connections import translate
from cluster.redis.explain import explain, shown_address
from tests.cluster.queue import servers
from tests.cluster.queue.servers import Server, read_program
from tests.support.halt import answered_in_halt

OUTSIDE_SCRIPTS = {"EVALSHA", "SCRIPT", "SUBSCRIBE", "PING", "CLUSTER"}
"""Commands that the check, or connecting, uses themselves."""
EXPIRING = {"EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT", "SETEX", "PSETEX", "GETEX"}


def used_commands() -> set[str]:
    """Read every command off our scripts and stores."""
    found: set[str] = set()
    root = Path(__file__).parents[3]
    for script in root.glob("cluster/**/*.lua"):
        found |= set(re.findall(r"\bcall\('([A-Z]+)'", script.read_text(encoding="utf-8")))
    for module in (*root.glob("cluster/**/*.py"), *root.glob("router/**/*.py")):
        text = module.read_text(encoding="utf-8")
        found |= set(re.findall(r'(?:[._]command|\b_?pack)\(\s*(?:PLAIN, pack\()?"([A-Z]{3,})"', text))
    return found


def test_the_check_uses_every_command_of_ours_and_no_other() -> None:
    used = used_commands() - OUTSIDE_SCRIPTS
    assert {"HSET", "ZADD", "SADD", "RPUSH", "PUBLISH", "INFO", "ZREVRANGEBYLEX"} < used
    assert set() == used - PROBES.keys()
    assert set() == PROBES.keys() - used


def test_no_key_of_ours_expires_so_policies_for_such_keys_remove_none() -> None:
    assert set() == used_commands() & EXPIRING


def rule_of(error: SettingsError) -> list[str]:
    """Read the rule that an error names."""
    rule = re.search(r"`(ACL SETUSER app [^`]*)`", str(error))
    assert rule is not None
    return rule[1].split()


@pytest.mark.slow
async def test_the_rule_that_the_error_names_suffices_in_a_cluster_of_the_oldest_redis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There CLUSTER is one of the dangerous commands."""
    monkeypatch.setattr(servers, "find_program", lambda: None)
    server = servers.start("redis-cluster", tmp_path)
    client = redis.asyncio.Redis.from_url(server.plain_url)
    try:
        rights = ("~*", "allchannels", "+@all", "-@dangerous", "+info")
        await client.execute_command("ACL", "SETUSER", "app", "on", "nopass", *rights)
        url = server.url.replace("://", "://app:@")
        with pytest.raises(SettingsError, match="may not use CLUSTER SLOTS, which Penstock needs") as failed:
            await check_redis(url, "demo", 5.0, allow_eviction=False)
        await client.execute_command(*rule_of(failed.value))
        await check_redis(url, "demo", 5.0, allow_eviction=False)
    finally:
        await client.aclose()
        server.process.kill()
        server.process.wait()


@pytest.fixture
async def client(redis_servers: dict[str, Server], kind: str) -> AsyncIterator[redis.asyncio.Redis]:
    server = redis.asyncio.Redis.from_url(redis_servers[kind].url)
    yield server
    await server.config_set("maxmemory-policy", "noeviction")
    await server.config_set("maxmemory", 0)
    for user in ("app", "none"):
        await server.acl_deluser(user)
    await server.aclose()


@pytest.mark.slow
@pytest.mark.every_store("permissions and refusals are worded differently by versions")
@pytest.mark.parametrize("kind", ["redis-6.2", "redis-7.0"])
class TestOnRealServers:
    async def test_an_address_that_asks_for_another_protocol_gets_ours(
        self, redis_servers: dict[str, Server], kind: str, client: redis.asyncio.Redis
    ) -> None:
        assert await client.ping()
        await check_redis(f"{redis_servers[kind].plain_url}?protocol=3", "demo", 5.0, allow_eviction=False)

    async def test_a_good_one_keeps_no_trace_and_says_what_it_is(
        self, redis_servers: dict[str, Server], kind: str, client: redis.asyncio.Redis
    ) -> None:
        await client.flushall()
        report = await check_redis(redis_servers[kind].url, "demo", 5.0, allow_eviction=False)
        program = read_program(redis_servers[kind].command[0])
        assert program is not None
        assert f"{program.name} {'.'.join(map(str, program.version))}" == report.server
        assert [] == await client.keys("*")

    @pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
    async def test_one_that_removes_keys_of_ours_is_refused_unless_that_is_accepted(
        self, redis_servers: dict[str, Server], kind: str, client: redis.asyncio.Redis, policy: str
    ) -> None:
        await client.config_set("maxmemory-policy", policy)
        url = redis_servers[kind].url
        with pytest.raises(SettingsError, match=rf"maxmemory-policy {policy}: .*stored jobs.*redis\.allow_eviction"):
            await check_redis(url, "demo", 5.0, allow_eviction=False)
        with pytest.raises(SettingsError, match="allow_eviction"):
            await warn_or_refuse(url, "demo", 5.0, allow_eviction=False)
        report = await check_redis(url, "demo", 5.0, allow_eviction=True)
        assert any(policy in warning for warning in report.warnings)

    async def test_one_that_removes_only_keys_that_expire_is_taken(
        self, redis_servers: dict[str, Server], kind: str, client: redis.asyncio.Redis
    ) -> None:
        await client.config_set("maxmemory-policy", "volatile-lru")
        report = await check_redis(redis_servers[kind].url, "demo", 5.0, allow_eviction=False)
        assert not any("volatile" in warning for warning in report.warnings)

    async def test_a_full_one_is_a_warning_because_what_it_holds_must_be_served(
        self, redis_servers: dict[str, Server], kind: str, client: redis.asyncio.Redis
    ) -> None:
        await client.config_set("maxmemory", 1)
        report = await check_redis(redis_servers[kind].url, "demo", 5.0, allow_eviction=False)
        assert any("is full" in warning for warning in report.warnings), report

    @pytest.mark.parametrize("lacking", ["hset", "zrangebylex", "info", "publish", "setbit", "unlink", "smembers"])
    async def test_a_user_who_lacks_a_command_is_told_which(
        self, redis_servers: dict[str, Server], kind: str, client: redis.asyncio.Redis, lacking: str
    ) -> None:
        await client.acl_setuser("app", enabled=True, nopass=True, keys=["*"], categories=["+@all"])
        await client.execute_command("ACL", "SETUSER", "app", "allchannels", f"-{lacking}")
        with pytest.raises(SettingsError, match=f"the user 'app' of .* may not use {lacking.upper()}, which"):
            await check_redis(self.as_app(redis_servers[kind]), "demo", 5.0, allow_eviction=False)

    @pytest.mark.parametrize(
        "rights", [("resetchannels", "+ping"), ("allkeys", "allchannels", "+@all", "-hset")], ids=["few", "one lacks"]
    )
    async def test_the_rule_that_the_error_names_suffices(
        self, redis_servers: dict[str, Server], kind: str, client: redis.asyncio.Redis, rights: tuple[str, ...]
    ) -> None:
        await client.execute_command("ACL", "SETUSER", "app", "on", "nopass", *rights)
        url = self.as_app(redis_servers[kind])
        with pytest.raises(SettingsError) as failed:
            await check_redis(url, "demo", 5.0, allow_eviction=False)
        await client.execute_command(*rule_of(failed.value))
        await check_redis(url, "demo", 5.0, allow_eviction=False)

    async def test_the_rule_of_the_manual_suffices_for_a_new_user(
        self, redis_servers: dict[str, Server], kind: str, client: redis.asyncio.Redis
    ) -> None:
        manual = (Path(__file__).parents[3] / "cluster/README.md").read_text(encoding="utf-8")
        rule = re.search(r"`ACL SETUSER penstock on >PASSWORD ([^`]*)`", manual)
        assert rule is not None
        await client.execute_command("ACL", "SETUSER", "app", "on", "nopass", *rule[1].split())
        await check_redis(self.as_app(redis_servers[kind]), "demo", 5.0, allow_eviction=False)

    async def test_a_denied_command_in_a_script_is_no_bug_of_the_script(
        self, redis_servers: dict[str, Server], kind: str, client: redis.asyncio.Redis
    ) -> None:
        await client.execute_command("ACL", "SETUSER", "app", "on", "nopass", "~*", "+@all", "-info")
        app = redis.asyncio.Redis.from_url(self.as_app(redis_servers[kind]))
        with pytest.raises(exceptions.ResponseError) as refused:
            await app.eval("return redis.call('INFO', 'server')", 0)
        await app.aclose()
        error = translate(refused.value)
        assert isinstance(error, QueueUnavailableError)
        assert "lacks a right" in str(error)

    def as_app(self, server: Server) -> str:
        return server.url.replace("unix://", "unix://app:any@", 1)


async def test_one_that_may_come_later_stops_no_process(caplog: pytest.LogCaptureFixture) -> None:
    await warn_or_refuse("redis://127.0.0.1:1/0", "demo", 1.0, allow_eviction=False)
    assert ["redis.not_ready"] == caplog.messages


def chained(*errors: BaseException) -> BaseException:
    for error, cause in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[0]


@pytest.mark.parametrize(
    ("error", "says", "lasting"),
    [
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), "still reads its data", False),
        (exceptions.MovedError("1 127.0.0.1:7001"), "use redis+cluster://", True),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), "is a replica", False),
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left"), "No space left", False),
        (
            exceptions.ConnectionError("Error Multiple exceptions: [Errno 111] x, [Errno 111] y"),
            "nobody listens",
            False,
        ),
        (
            chained(exceptions.ConnectionError("x"), ssl.SSLCertVerificationError("self-signed")),
            "is not trusted",
            True,
        ),
    ],
)
def test_an_error_is_told_in_plain_words(error: BaseException, says: str, lasting: bool) -> None:
    trouble = explain(error, "redis://user:secret@host:6380/2")
    assert says in trouble.text
    assert "host:6380" in trouble.text
    assert "secret" not in trouble.text
    assert lasting is trouble.lasting


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:p%40ss@host:1/5", "host:1"),
        ("unix:///run/redis%20a.sock?password=x", "/run/redis a.sock"),
        ("redis+sentinel://u:p@a:1,b:2/main", "a:1,b:2"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert shown == shown_address(url)


@pytest.mark.slow
async def test_a_redis_whose_answer_came_while_this_process_stood_still_is_there(
    redis_servers: dict[str, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = check._ask

    async def ask(*arguments: Any) -> Any:
        answer = await real(*arguments)
        return await answered_in_halt(answer, 2.2) if arguments[1:] == ("PING",) else answer

    monkeypatch.setattr(check, "_ask", ask)
    monkeypatch.setattr(check, "ROUND_TRIPS", 1)
    url = redis_servers["redis-7.0"].url
    assert (await check_redis(url, "demo", 2.0, allow_eviction=False)).server
    _info, [trip_s], _ahead_s = await measure_redis(url, 2.0)
    assert trip_s > 2.0
