"""What Redis in process is beside its commands: faults, scripts, time, bells and threads."""

from __future__ import annotations

import hashlib
import sys
import threading

import pytest
import redis

from cluster.clock import ManualClock
from cluster.errors import PenstockError, QueueUnavailableError, SettingsError
from cluster.queue.redis.bell import RedisBell
from cluster.queue.redis.keys import bell_channel
from cluster.redis.in_process import runtime
from cluster.redis.in_process.server import InProcessRedis
from cluster.redis.script import PLAIN, Script, pack


def script(text: str) -> Script:
    source = text.encode()
    return Script("test", source, hashlib.sha1(source, usedforsecurity=False).hexdigest())


def evalsha(of: Script, *words: str | int) -> bytes:
    return pack("EVALSHA", of.sha, 1, "key", *words)


async def test_a_store_that_is_down_refuses_everything_and_keeps_its_data() -> None:
    server = InProcessRedis()
    pipeline = server.open_pipeline()
    await pipeline.call(PLAIN, pack("SET", "s", "x"))
    server.down = True
    for command in (pack("GET", "s"), pack("PING")):
        with pytest.raises(QueueUnavailableError, match="down"):
            await pipeline.call(PLAIN, command)
    server.down = False
    assert b"x" == await pipeline.call(PLAIN, pack("GET", "s"))


async def test_a_restart_changes_the_run_id_and_may_forget() -> None:
    server = InProcessRedis()
    before = server.run_id
    server.execute("SET", "s", "x")
    server.restart()
    assert server.run_id != before
    assert f"run_id:{server.run_id}\r\n".encode() in server.execute("INFO", "server")
    assert b"x" == server.execute("GET", "s")
    server.restart(forget=True)
    assert server.execute("GET", "s") is None


async def test_scripts_read_the_clock_of_the_server() -> None:
    clock = ManualClock(wall_ms=1_790_000_000_123)
    server = InProcessRedis(clock)
    assert [b"1790000000", b"123000"] == server.execute("TIME")
    clock.advance(1)
    told = script("local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000")
    assert 1_790_000_001_123 == await server.open_pipeline().call(told, evalsha(told, ""))


async def test_calls_that_begin_alike_keep_their_own_last_argument() -> None:
    pipeline = InProcessRedis().open_pipeline()
    echo = script("return {KEYS[1], #ARGV, ARGV[1], ARGV[2], ARGV[3]}")
    for words in (("a", "b", "c"), ("a", "b", "\r\n$1\r\nx\r\n"), ("a", "b", ""), ("a", "B", "c"), ("a", "b", "c")):
        assert [b"key", 3, *(word.encode() for word in words)] == await pipeline.call(echo, evalsha(echo, *words))


async def test_a_script_that_fails_is_a_bug_and_a_refused_command_is_none() -> None:
    pipeline = InProcessRedis().open_pipeline()
    await pipeline.call(PLAIN, pack("SET", "key", "x"))
    wrong = script("return redis.call('HGET', KEYS[1], 'f')")
    with pytest.raises(PenstockError, match=r"queue script failed: WRONGTYPE .*user_script"):
        await pipeline.call(wrong, evalsha(wrong, ""))
    with pytest.raises(QueueUnavailableError, match="WRONGTYPE"):
        await pipeline.call(PLAIN, pack("HGET", "key", "f"))


async def test_a_closed_pipeline_takes_no_call() -> None:
    pipeline = InProcessRedis().open_pipeline()
    await pipeline.close()
    await pipeline.close()
    with pytest.raises(QueueUnavailableError, match="closed"):
        await pipeline.call(PLAIN, pack("GET", "s"))


async def test_a_bell_is_heard_from_another_thread_until_it_is_closed() -> None:
    server = InProcessRedis()
    bell = RedisBell(server, "A")
    await bell.start()
    ring = threading.Thread(target=server.execute, args=("PUBLISH", bell_channel("A"), "demo"))
    ring.start()
    assert "demo" == await bell.wait()
    ring.join()
    assert 1 == server.execute("PUBLISH", bell_channel("A"), "demo")
    await bell.close()
    assert 0 == server.execute("PUBLISH", bell_channel("A"), "demo")
    with pytest.raises(QueueUnavailableError):
        await bell.start()


async def test_a_message_is_delivered_after_the_script_that_sent_it() -> None:
    """Who hears it may ask at once, and finds everything done."""
    server = InProcessRedis()
    seen: list[bytes] = []
    server.subscribe("c", lambda message: seen.extend((message, server.execute("GET", "s"))))
    pipeline = server.open_pipeline()
    both = script("redis.call('PUBLISH', 'c', 'm') redis.call('SET', 's', 'after') return 7")
    assert 7 == await pipeline.call(both, evalsha(both, ""))
    assert [b"m", b"after"] == seen


def test_threads_take_turns() -> None:
    server = InProcessRedis()

    def count() -> None:
        for _ in range(500):
            server.execute("HINCRBY", "h", "n", 1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert b"2000" == server.execute("HGET", "h", "n")


def test_replies_may_be_long() -> None:
    server = InProcessRedis()
    names = [f"{number:05d}" for number in range(3000)]
    server.execute("RPUSH", "l", *names)
    assert [name.encode() for name in names] == server.execute("LRANGE", "l", 0, -1)


def test_an_unknown_command_is_named() -> None:
    with pytest.raises(redis.exceptions.ResponseError, match="unknown command 'GEOADD'"):
        InProcessRedis().execute("GEOADD", "k")


def test_without_its_runtime_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lupa.luajit21", "lupa.lua51"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingsError, match=r"pip install 'penstock-llm\[loadtest\]'"):
        InProcessRedis()


def test_lua_5_1_takes_the_place_of_luajit(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS lupa has no LuaJIT."""
    monkeypatch.setitem(sys.modules, "lupa.luajit21", None)
    assert "lua51" in runtime._find_runtime().__name__
    server = InProcessRedis()
    server.execute("HSET", "h", "f", "12345.12345678899999957")
    assert b"12345.22345678899999921" == server.execute("HINCRBYFLOAT", "h", "f", "0.1")
