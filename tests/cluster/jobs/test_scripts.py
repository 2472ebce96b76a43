"""The job scripts' text: what they declare, and what they must not do."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from cluster.jobs.blob import pack_blob, pack_block, unpack_blob, unpack_block
from cluster.jobs.contract import JobLimits
from cluster.jobs.redis.keys import JOB_KEYS, SHARED_KEYS, job_keys
from cluster.jobs.settings import job_limits_from
from cluster.redis.script import load_scripts
from cluster.settings import JobsSettings

LUA = files("cluster.jobs.redis") / "lua"
SCRIPTS = load_scripts("cluster.jobs.redis")


def test_every_key_has_the_pool_as_its_hash_tag_and_none_is_shared_between_jobs() -> None:
    one, two = job_keys("demo", "demo.1"), job_keys("demo", "demo.2")
    assert all(key.startswith("penstock:1:{demo}:job") for key in one)
    assert set(one[len(JOB_KEYS) :]) == set(one) & set(two)


def test_the_header_lists_the_keys_in_the_order_in_which_they_are_sent() -> None:
    text = (LUA / "common.lua").read_text(encoding="utf-8")
    assert [*JOB_KEYS, *SHARED_KEYS] == re.findall(r"^-- +\d+ [A-Z]+ (\w+)", text, re.MULTILINE)
    numbers = [int(number) for number in re.findall(r"KEYS\[(\d+)\]", text)]
    assert list(range(1, len(job_keys("p", "j")) + 1)) == numbers


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_builds_no_key_and_says_what_it_takes(name: str) -> None:
    source = SCRIPTS[name].source.decode()
    keys = "RECORD|ITEMS|SIZES|RESULTS|DONE|FAILURES|HOLDS|OPEN|DUE|INDEX|FILES|NAMES|USAGE"
    assert [] == re.findall(rf"call\('(?!TIME)[A-Z]+', (?!(?:{keys})\b|KEYS\[)\S+", source)
    header = (LUA / f"{name}.lua").read_text(encoding="utf-8").split("\n\n")[0]
    assert "-- Keys: common.lua" in header
    used = {int(number) for number in re.findall(r"ARGV\[(\d+)\]", source)}
    assert used - {1, 2} <= {int(number) for number in re.findall(r"(?<!\d)(\d+) ", header.partition("ARGV:")[2])}


@pytest.mark.parametrize("data", [b"", b"x", b"abc" * 1_000, bytes(range(256)) * 2])
def test_blobs_come_back_and_shrink_where_that_pays(data: bytes) -> None:
    blob = pack_blob(data)
    assert data == unpack_blob(blob)
    assert len(blob) <= len(data) + 1
    if data.startswith(b"abc"):
        assert len(blob) < len(data) / 10


def test_items_of_a_block_share_what_they_have_in_common() -> None:
    items = [b"You are a careful assistant who answers in one sentence. Question %d?" % n for n in range(32)]
    assert items == unpack_block(pack_block(items))
    assert len(pack_block(items)) < sum(len(pack_blob(item)) for item in items) / 5


def test_settings_and_limits_have_the_same_defaults() -> None:
    assert JobLimits() == job_limits_from(JobsSettings())
