"""Addresses of Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.errors import SettingsError
from cluster.redis.url import ClusterUrl, SentinelUrl
from cluster.settings import load_settings


def test_a_sentinel_address_is_taken_apart() -> None:
    url = (
        "rediss+sentinel://app:p%40ss@a.example,b.example:26380,[::1]:1/main/3?sentinel_username=u&sentinel_password=w"
    )
    assert SentinelUrl.parse(url) == SentinelUrl(
        sentinels=(("a.example", 26379), ("b.example", 26380), ("::1", 1)),
        service="main",
        database=3,
        tls=True,
        username="app",
        password="p@ss",
        sentinel_username="u",
        sentinel_password="w",
    )
    assert SentinelUrl.parse("redis+sentinel://h/main") == SentinelUrl((("h", 26379),), "main")


def test_a_cluster_address_is_taken_apart() -> None:
    url = "rediss+cluster://app:p%40ss@a.example,[::1]:1/0?ssl_ca_certs=/etc/ca.crt"
    assert ClusterUrl.parse(url) == ClusterUrl(
        servers=(("a.example", 6379), ("::1", 1)), tls=True, username="app", password="p@ss", ca_file="/etc/ca.crt"
    )
    assert ClusterUrl.parse("redis+cluster://h") == ClusterUrl((("h", 6379),))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:6379", "no scheme"),
        ("http://secret@h", "must begin with one of redis://, rediss://, unix://, .* got http://"),
        ("redis://h:port", r"must be redis://\[user:password@\]host\[:port\]"),
        ("redis://:secret@h:70000/0", "its port must be from 1 to 65535"),
        ("redis://:secret@h:0", "its port must be from 1 to 65535"),
        ("redis+sentinel://:secret@h,g:65536/main", "its port must be from 1 to 65535"),
        ("redis+cluster://:secret@h,g:65536", "its port must be from 1 to 65535"),
        ("rediss://:a/secret@h:6379/0", "percent"),
        ("redis://:secret#a@h", "percent"),
        ("redis://:secret@h/main", "/database"),
        ("redis+sentinel://secret@h", "ends with /service"),
        ("redis+sentinel://secret@h/main/x", "ends with /service"),
        ("redis+sentinel://secret@h:port/main", "host or host:port"),
        ("redis+sentinel://secret@h,,g/main", "host or host:port"),
        ("redis+sentinel://user\uff1asecret@h/main", "percent-encoded"),
        ("redis+sentinel://secret[@h/main", "percent-encoded"),
        ("redis+sentinel://secret@h/main?db=3", r"unknown options \['db'\]"),
        ("redis+cluster://secret@h/1", "database 0 only"),
        ("redis+cluster://secret@h:port", "a Redis Cluster address names hosts as host or host:port"),
        ("rediss+cluster://:secret\u2100@h,g", "percent-encoded"),
        ("redis+cluster://secret@h?ssl_ca_certs=x", r"unknown options \['ssl_ca_certs'\]"),
    ],
)
def test_a_bad_address_is_an_error_that_repeats_no_password(url: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        load_settings(flags={"redis": {"url": url}}, environ={})
    assert "redis.url" in str(caught.value)
    assert "secret" not in str(caught.value)


GOOD = [
    "redis://h",
    "redis://u:p%2Fw@[::1]:1/3?max_connections=5",
    "rediss://h:1/0",
    "unix:///run/redis.sock",
    "redis://h:65535",
    "redis+sentinel://h/main",
    "rediss+cluster://h,g:1",
]


@pytest.mark.parametrize("url", GOOD)
def test_good_addresses_are_taken(url: str) -> None:
    assert load_settings(flags={"redis": {"url": url}}, environ={}).redis.url == url


@pytest.mark.parametrize(
    "text",
    [
        'redis = "redis://:hunter2@queue"',
        'redis = ["redis://:hunter2@queue"]',
        '[redis]\nurl = ["redis://:hunter2@queue"]',
        'cluster = "redis://:hunter2@queue"',
    ],
)
def test_a_password_in_the_wrong_place_is_not_repeated(text: str, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        load_settings(file, environ={})
    assert "hunter2" not in str(caught.value)
