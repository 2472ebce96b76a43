"""Addresses of Redis; pure, and without the Redis client."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

PLAIN_SCHEMES = ("redis", "rediss", "unix")
SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
SENTINEL_PORT = 26379
_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """Is a Redis whose address sentinels know, from redis+sentinel://[user:password@]host[:port],.../service[/database].
    With rediss+sentinel:// Redis and sentinels speak TLS. The sentinels' own credentials are options
    ?sentinel_username=..&sentinel_password=..
    """

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int = 0
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, url: str) -> SentinelUrl:
        """Take a URL apart.

        Raises:
            ValueError: it is not as it must be.
        """
        parts = urlsplit(url)
        credentials, _, hosts = parts.netloc.rpartition("@")
        username, _, password = credentials.partition(":")
        service, _, database = parts.path.strip("/").partition("/")
        if not service or not (database or "0").isdecimal():
            raise ValueError("a Sentinel address ends with /service or /service/database, as in .../mymaster/0")
        options = _options(parts)
        return cls(
            sentinels=tuple(_host(one) for one in hosts.split(",")),
            service=unquote(service),
            database=int(database or 0),
            tls=parts.scheme.startswith("rediss"),
            username=unquote(username) or None,
            password=unquote(password) or None,
            sentinel_username=options.get("sentinel_username"),
            sentinel_password=options.get("sentinel_password"),
        )


def is_sentinel(url: str) -> bool:
    """Say whether a URL names sentinels."""
    return url.split("://", 1)[0] in SENTINEL_SCHEMES


def check_redis_url(url: str) -> None:
    """Check what can be checked without connecting.

    Raises:
        ValueError: it is no address of a Redis; the message does not repeat it, because it may hold a password.
    """
    scheme = url.split("://", 1)[0] if "://" in url else ""
    if scheme in SENTINEL_SCHEMES:
        SentinelUrl.parse(url)
    elif scheme not in PLAIN_SCHEMES:
        known = ", ".join(f"{name}://" for name in (*PLAIN_SCHEMES, *SENTINEL_SCHEMES))
        raise ValueError(f"must begin with one of {known}, got {scheme + '://' if scheme else 'no scheme'}")


def _host(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or SENTINEL_PORT
    except ValueError:
        host = None
    if not host:
        raise ValueError("a Sentinel address names hosts as host or host:port, separated by commas")
    return host, port


def _options(parts: SplitResult) -> dict[str, str]:
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if unknown := sorted(options.keys() - _OPTIONS):
        raise ValueError(f"unknown options {unknown}; a Sentinel address takes {sorted(_OPTIONS)}")
    return options
