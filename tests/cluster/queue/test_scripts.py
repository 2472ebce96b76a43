"""The scripts' text: names, headers, and what they must not do."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from cluster.queue.entries import MAX_CHOICES, QueueLimits
from cluster.queue.redis.keys import POOL_KEYS, bell_channel, pool_keys
from cluster.queue.redis.scripts import SCRIPTS, SHARED, STEPS, load_constants, load_scripts
from cluster.queue.settings import limits_from
from cluster.settings import QueueSettings

LUA = files("cluster.queue.redis") / "lua"


def test_every_key_has_the_pool_as_its_hash_tag() -> None:
    assert all(key.startswith("penstock:1:{demo}:") for key in pool_keys("demo"))
    assert len(set(POOL_KEYS)) == len(POOL_KEYS)


def test_the_scripts_name_the_keys_in_the_order_in_which_they_are_sent() -> None:
    numbers = {name: int(number) for name, number in load_constants().items()}
    names = {"ACTIVE": "active:0", "IDLE": "idle:0", "CLIENT_KEYS": "keys"}
    # The keys come first in names.lua, numbered from 1 upwards.
    keys = dict(list(numbers.items())[: len(POOL_KEYS) - 4])

    assert {names.get(name, name.lower()): n for name, n in keys.items()} == {
        name: n for n, name in enumerate(POOL_KEYS, 1) if not re.search(r":[12]$", name)
    }


def test_both_implementations_look_for_as_many_choices() -> None:
    assert str(MAX_CHOICES) == load_constants()["CHOICES"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_builds_no_key_and_leaves_no_name_behind(name: str) -> None:
    source = load_scripts()[name].source.decode()

    words = set(re.findall(r"(?<![\w'.])[A-Z][A-Z_]+(?![\w'])", source))
    assert words <= {"KEYS", "ARGV"}
    # The only name with the prefix is the bell's channel, which is no key.
    assert set(re.findall(r"'penstock[^']*'", source)) <= {f"'{bell_channel('')}'"}
    assert re.findall(r"call\('[A-Z]+', (?!K\[|key\b|'server'|'penstock)", source) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_what_it_takes_and_returns(name: str) -> None:
    header = (LUA / f"{name}.lua").read_text().split("\n\n")[0]

    assert "-- A: " in (LUA / f"{name}.lua").read_text()
    assert "-- Reply: " in (LUA / f"{name}.lua").read_text()
    assert header.startswith("-- ")


def test_every_shared_function_is_used() -> None:
    shared = set()
    for part in ("common", *SHARED):
        shared |= set(re.findall(r"^function Q\.(\w+)", (LUA / f"{part}.lua").read_text(), re.MULTILINE))
    sent = set()
    for script in load_scripts().values():
        sent |= set(re.findall(r"^function Q\.(\w+)", script.source.decode(), re.MULTILINE))

    assert sent == shared | {f"step_{name}" for name in STEPS}


def test_a_turn_takes_exactly_the_steps_that_the_queue_sends() -> None:
    taken = re.findall(r"(\w+) = Q\.step_(\w+)", (LUA / "turn.lua").read_text())

    assert {name: name for name in STEPS} == dict(taken)


def test_limits_come_from_the_settings() -> None:
    settings = QueueSettings(lease_s=6, heartbeat_s=1.5, attach_grace_s=2.5, max_waiting=7, lookahead=9)

    assert limits_from(settings) == QueueLimits(lease_ms=6000, attach_grace_ms=2500, max_waiting=7, lookahead=9)
    assert limits_from(QueueSettings()) == QueueLimits()
