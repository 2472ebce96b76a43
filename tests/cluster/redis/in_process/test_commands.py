"""Redis in process and a real Redis answer the same commands alike, whatever they are."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from cluster.clock import ManualClock
from cluster.redis.in_process import runtime
from cluster.redis.in_process.server import InProcessRedis
from cluster.redis.script import Script
from tests.cluster.queue.backends import flush
from tests.cluster.queue.servers import Server
from tests.support.stores import USUAL

KEYS = ("h1", "h2", "z1", "z2", "lex1", "lex2", "r1", "s1", "t1", "free")
FIELDS = ("a", "b", "c\0d", "größe", "", "7")
MEMBERS = ("a", "b", "b\0c", "b\0d\0e", "router\0g\0x", "router\0r\0x", "ÿ", "")
NUMBERS = ("0", "1", "-1", "7", "12", "-3", "1000000000000", "5000000000000000")
SCORES = (*NUMBERS, "0.1", "-2.5", "1e20", "1e-7", "inf", "-inf", "+inf", "0x10", "3.0000000000000004")
WRONG = ("", "x", "1.5", " 1", "1 ", "nan", "1e", "0b11", "--1", "9223372036854775808")
SCORE_BOUNDS = (*SCORES, "(1", "(-inf", "(0.1", "(5000000000000000")
MEMBER_BOUNDS = ("-", "+", "[a", "(a", "[b\0", "(b\1", "[router\0g\0", "(router\0g\1", "[", "(", "a", "")
SORTED_REPLIES = {"KEYS", "SMEMBERS"}
DRAWN = {"HRANDFIELD", "ZRANDMEMBER"}


class Chance:
    """Draws commands."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def some(self, of: tuple[str, ...], most: int = 3) -> list[str]:
        """Draw one or more."""
        return [self.random.choice(of) for _ in range(self.random.randint(1, most))]

    def one(self, of: tuple[str, ...], wrong: tuple[str, ...] = WRONG) -> str:
        """Draw one, now and then a wrong one."""
        return self.random.choice(wrong) if self.random.random() < 0.04 else self.random.choice(of)

    def key(self, kind: str) -> str:
        """Draw a key of a type, now and then one that has or gets another."""
        if kind == "lex":
            # Ranges by member have no meaning where scores differ, so other commands leave these sets alone.
            return self.random.choice(("lex1", "lex2", "lex1", "lex2", "h1", "none"))
        others = tuple(name for name in KEYS if not name.startswith("lex"))
        fitting = tuple(name for name in others if name.startswith(kind) or name == "free")
        return self.random.choice(others if self.random.random() < 0.05 else fitting)

    def limit(self) -> list[str]:
        """Draw the option LIMIT or nothing."""
        if self.random.random() < 0.6:
            return []
        return ["LIMIT", self.one(("0", "1", "2", "-1")), self.one(("0", "1", "3", "-1"))]

    def scored(self) -> list[str]:
        """Draw scores with members."""
        count = self.random.randint(1, 3)
        pairs = [part for _ in range(count) for part in (self.one(SCORES), self.random.choice(MEMBERS))]
        return [*self.one(((), (), (), ("NX",), ("XX",), ("XX", "INCR"))), *pairs]

    def command(self) -> list[str]:
        """Draw a command."""
        name = self.random.choice(sorted(COMMANDS))
        words = [name.split()[0], *COMMANDS[name](self)]
        if self.random.random() < 0.02:
            words = words[: self.random.randint(1, len(words))]
        return words


def _position(chance: Chance) -> str:
    return chance.one(("0", "1", "2", "5", "-1", "-2", "-9"))


COMMANDS: dict[str, Callable[[Chance], list[str]]] = {
    "GET": lambda c: [c.key("s")],
    "SET": lambda c: [c.key("s"), c.one(("value", "\0", "12", ""))],
    "SETBIT": lambda c: [c.key("s"), c.one(("0", "3", "7", "8", "77")), c.one(("0", "1"))],
    "GETBIT": lambda c: [c.key("s"), c.one(("0", "3", "8", "77", "4000"))],
    "EXISTS": lambda c: [c.key(""), c.key("")],
    "DEL": lambda c: c.some(KEYS, 2) if c.random.random() < 0.3 else ["none"],
    "UNLINK": lambda c: c.some(KEYS, 2) if c.random.random() < 0.3 else ["none"],
    "TYPE": lambda c: [c.key("")],
    "KEYS": lambda _: ["*"],
    "RPUSH": lambda c: [c.key("r"), *c.some(MEMBERS)],
    "LPUSH": lambda c: [c.key("r"), *c.some(MEMBERS)],
    "LLEN": lambda c: [c.key("r")],
    "LRANGE": lambda c: [c.key("r"), _position(c), _position(c)],
    "LTRIM": lambda c: [c.key("r"), _position(c), _position(c)],
    "SADD": lambda c: [c.key("t"), *c.some(MEMBERS)],
    "SMEMBERS": lambda c: [c.key("t")],
    "HSET": lambda c: [c.key("h"), *(part for name in c.some(FIELDS) for part in (name, c.one(NUMBERS)))],
    "HSETNX": lambda c: [c.key("h"), *c.some(FIELDS, 1), c.one(SCORES)],
    "HGET": lambda c: [c.key("h"), *c.some(FIELDS, 1)],
    "HMGET": lambda c: [c.key("h"), *c.some(FIELDS)],
    "HGETALL": lambda c: [c.key("h")],
    "HDEL": lambda c: [c.key("h"), *c.some(FIELDS)],
    "HLEN": lambda c: [c.key("h")],
    "HEXISTS": lambda c: [c.key("h"), *c.some(FIELDS, 1)],
    "HSTRLEN": lambda c: [c.key("h"), *c.some(FIELDS, 1)],
    "HINCRBY": lambda c: [c.key("h"), *c.some(FIELDS, 1), c.one(("1", "-1", "20", "0"))],
    "HINCRBYFLOAT": lambda c: [
        c.key("h"),
        *c.some(FIELDS, 1),
        c.one(("0.1", "12345.123456789", "-3", "0.000000000001", "1e-9", "2.5e3")),
    ],
    "HRANDFIELD": lambda c: [c.key("h"), *([] if c.random.random() < 0.5 else [c.one(("0", "2", "9", "-3"))])],
    "ZADD": lambda c: [c.key("z"), *c.scored()],
    "ZADD by member": lambda c: [c.key("lex"), *(part for name in c.some(MEMBERS) for part in ("0", name))],
    "ZREM by member": lambda c: [c.key("lex"), *c.some(MEMBERS)],
    "ZREM": lambda c: [c.key("z"), *c.some(MEMBERS)],
    "ZSCORE": lambda c: [c.key("z"), *c.some(MEMBERS, 1)],
    "ZCARD": lambda c: [c.key("z")],
    "ZRANK": lambda c: [c.key("z"), *c.some(MEMBERS, 1)],
    "ZRANDMEMBER": lambda c: [c.key("z")],
    "ZRANGE": lambda c: [
        c.key("z"),
        _position(c),
        _position(c),
        *(["WITHSCORES"] if c.random.random() < 0.5 else []),
    ],
    "ZRANGEBYSCORE": lambda c: [c.key("z"), c.one(SCORE_BOUNDS), c.one(SCORE_BOUNDS), *c.limit()],
    "ZCOUNT": lambda c: [c.key("z"), c.one(SCORE_BOUNDS), c.one(SCORE_BOUNDS)],
    "ZREMRANGEBYSCORE": lambda c: [c.key("z"), c.one(SCORE_BOUNDS), c.one(SCORE_BOUNDS)],
    "ZRANGEBYLEX": lambda c: [c.key("lex"), c.one(MEMBER_BOUNDS), c.one(MEMBER_BOUNDS), *c.limit()],
    "ZREVRANGEBYLEX": lambda c: [c.key("lex"), c.one(MEMBER_BOUNDS), c.one(MEMBER_BOUNDS), *c.limit()],
    "ZLEXCOUNT": lambda c: [c.key("lex"), c.one(MEMBER_BOUNDS), c.one(MEMBER_BOUNDS)],
}


class Both:
    """Asks a real Redis and one in process."""

    def __init__(self, server: Server) -> None:
        flush(server)
        client = server.client()
        self.version = tuple(map(int, client.info("server")["redis_version"].split(".")[:2]))
        client.close()
        self._pool = redis.ConnectionPool.from_url(server.plain_url, protocol=2)
        self._connection = self._pool.get_connection()
        self.local = InProcessRedis(ManualClock())

    def close(self) -> None:
        self._pool.disconnect()

    def real(self, *words: Any) -> Any:
        """Ask the real one."""
        self._connection.send_command(*words)
        return _outcome(self._connection.read_response)

    def ask(self, *words: str) -> Any:
        """Ask both for a command; returns the answer they share."""
        name = words[0]
        here, there = _outcome(lambda: self.local.execute(*words)), self.real(*words)
        if name in DRAWN and len(words) < 4 and not isinstance(there, str):
            self._check_drawn(words, here, there)
            return there
        if name == "HGETALL" and isinstance(there, list):
            here, there = (dict(zip(one[::2], one[1::2], strict=True)) for one in (here, there))
        if name in SORTED_REPLIES and isinstance(there, list):
            here, there = sorted(here), sorted(there)
        assert (words, here) == (words, there)
        return there

    def _check_drawn(self, words: tuple[str, ...], here: Any, there: Any) -> None:
        known = self.local.execute(*(("HMGET", words[1], *FIELDS) if words[0][0] == "H" else ("EXISTS", words[1])))
        assert type(here) is type(there), (words, known)
        if isinstance(there, list):
            assert len(here) == len(there), words
            if "-" not in words[2]:
                assert len(set(here)) == len(here)
        elif here is not None:
            exists = "HEXISTS" if words[0][0] == "H" else "ZSCORE"
            assert self.local.execute(exists, words[1], here)

    def script(self, text: str, *arguments: str) -> Any:
        """Ask both to run a script."""
        source = text.encode()
        script = Script("test", source, hashlib.sha1(source, usedforsecurity=False).hexdigest())
        parts = [one.encode() for one in (*arguments, "")]
        prepared = _outcome(lambda: self.local.prepare(script, [], parts))
        here = prepared if isinstance(prepared, str) else _outcome(lambda: self.local.run(prepared, b""))
        there = self.real("EVAL", text, 0, *parts)
        if isinstance(there, str) and self.version < (7, 0):
            # Redis 6.2 words scripts' failures in another way.
            assert isinstance(here, str), text
        else:
            assert (text, here) == (text, there)
        return there


def _outcome(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except redis.exceptions.ResponseError as error:
        # The number of the line is not always known in process.
        return re.sub(r"user_script:[\d?]+", "user_script:n", str(error))


@pytest.fixture(params=["lupa.luajit21", "lupa.lua51"])
def both(
    request: pytest.FixtureRequest, redis_servers: dict[str, Server], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Both]:
    """An empty pair, with each runtime."""
    monkeypatch.setattr(runtime, "_RUNTIMES", (request.param,))
    pair = Both(redis_servers[USUAL])
    yield pair
    pair.close()


@pytest.mark.parametrize("seed", range(6))
def test_clients_commands_get_the_answers_of_redis(both: Both, seed: int) -> None:
    chance = Chance(seed)
    for _ in range(1500):
        both.ask(*chance.command())
    assert len(both.ask("KEYS", "*")) > 2


@pytest.mark.parametrize("seed", range(3))
def test_scripts_commands_get_the_answers_of_redis(both: Both, seed: int) -> None:
    """Arguments are Lua numbers where they look like numbers, so their form as text is tested, too."""
    chance = Chance(100 + seed)
    for _ in range(700):
        name, *rest = chance.command()
        if name not in DRAWN | SORTED_REPLIES | {"HGETALL"}:
            both.script(f"return redis.call({', '.join(map(_literal, (name, *rest)))})")


def _literal(word: str) -> str:
    try:
        # A whole number, or a fraction, as scripts compute them.
        if word.strip() == word and "_" not in word and abs(float(word)) < 1e19 and not word.startswith(("+", "0x")):
            return word
    except ValueError:
        pass
    return "'" + "".join(f"\\{byte:03d}" for byte in word.encode()) + "'"


VALUES = (
    "0, 1, -1, 127, 128, 255, 256, 65535, 65536, 4294967295, 4294967296, 1790000000000, 5000000000000000",
    "-32, -33, -128, -129, -32768, -32769, -2147483648, -2147483649, -5000000000000000",
    "0.5, 0.1, -0.1, 1e300, -1e-300, 5e-324, 3.4e38, 1e-40, 1.5e-45, 16777217.5, 2^63, -2^63, 2^64, 1/0, -1/0, -0.0",
    "'', 'a', ('x'):rep(31), ('x'):rep(32), ('x'):rep(255), ('x'):rep(256), ('x'):rep(70000), '\\0\\255'",
    "true, false, {}, {{}}, {1, {2, {'three'}}}, {a = 1}, {[3] = 'x'}, {[0.5] = 1}",
)


@pytest.mark.parametrize("values", VALUES)
def test_packed_records_have_the_bytes_of_redis(both: Both, values: str) -> None:
    assert both.script(f"local out = {{}} for i, v in ipairs({{{values}}}) do out[i] = cmsgpack.pack(v) end return out")


def test_long_lists_are_packed_like_those_of_redis(both: Both) -> None:
    for n in (15, 16, 70_000):
        both.script(f"local t = {{}} for i = 1, {n} do t[i] = i end return cmsgpack.pack(t)")


@pytest.mark.parametrize("values", VALUES)
def test_a_record_that_was_stored_is_read_as_it_was_written(both: Both, values: str) -> None:
    """Also by a script that gets its bytes from a client."""
    store = f"redis.call('SET', 's', cmsgpack.pack({{{values}}}))"
    read = """
    local function shown(v)
      if type(v) ~= 'table' then return type(v) == 'number' and string.format('%.17g', v) or tostring(v) end
      local out = {}
      for key, one in pairs(v) do out[#out + 1] = shown(key) .. '=' .. shown(one) end
      table.sort(out)
      return '{' .. table.concat(out, ' ') .. '}'
    end
    return shown(cmsgpack.unpack(redis.call('GET', 's')))"""
    assert both.script(f"{store} {read}")
    stored = both.local.execute("GET", "s")
    both.local.execute("SET", "s", stored)
    both.real("SET", "s", stored)
    assert both.script(read)


def test_a_records_length_is_that_of_its_bytes(both: Both) -> None:
    for n in (1, 30, 200):
        both.script(f"redis.call('HSET', 'h', 'f', cmsgpack.pack({{('x'):rep({n}), 1}})) return 1")
        assert both.ask("HSTRLEN", "h", "f") > n
        both.ask("HGET", "h", "f")


@pytest.mark.parametrize(
    "text",
    [
        "return {1.9, -1.9, true, false, 'a', {2, {}}, 3, nil, 4}",
        "return {1, 2, nil, 4}",
        "return -0.5",
        "return nil",
        "return {ok = 'fine'}",
        "return nil + 1",
        "\n\nreturn redis.call('HGET', 'x')",
        "return redis.call('NOPE')",
        "redis.call('SET', 's', 'x') return redis.call('HGET', 's', 'f')",
        "return redis.call('SET', 's', {})",
        "return redis.call('hset', 'h', 'f', 0.1)",
        "local t = redis.call('TIME') return #t",
        "return cmsgpack.unpack('\\193')",
        "return tostring(5000000000000000) .. tostring(0.1) .. 1e14 .. -0.0",
        "return string.format('%d', 3.0) .. string.format('%.0f', 5e15)",
        "error('mine')",
    ],
)
def test_scripts_end_as_in_redis(both: Both, text: str) -> None:
    both.script(text)


@pytest.mark.parametrize("text", ["x = 1", "return x", "return os", "return require", "return print"])
def test_scripts_have_no_globals_of_their_own(both: Both, text: str) -> None:
    """Redis words these failures differently from one version to the next."""
    source = text.encode()
    script = Script("test", source, hashlib.sha1(source, usedforsecurity=False).hexdigest())
    assert isinstance(_outcome(lambda: both.local.run(both.local.prepare(script, [], [b""]), b"")), str)
    assert isinstance(both.real("EVAL", text, 0), str)
