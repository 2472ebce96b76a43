"""Addresses of Redis. Pure, and without the Redis client."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

PLAIN_SCHEMES = ("redis", "rediss", "unix")
SENTINEL_SCHEMES = ("redis+sentinel", "rediss+sentinel")
CLUSTER_SCHEMES = ("redis+cluster", "rediss+cluster")
SENTINEL_PORT = 26379
CLUSTER_PORT = 6379
_SENTINEL_OPTIONS = frozenset({"sentinel_username", "sentinel_password"})
_CLUSTER_OPTIONS = frozenset({"ssl_ca_certs"})
LAST_PORT = 65535
_AUTHORITY_END = re.compile("[/?#]")
_PORT = re.compile(r":([0-9]{1,9})$")


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """Address of a Redis that sentinels know: redis+sentinel://[user:password@]host[:port],.../service[/database].
    With rediss+sentinel:// Redis and sentinels use TLS. The sentinels' own credentials are options
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
        """Parse a URL.

        Raises:
            ValueError: the URL is not of this form.
        """
        parts = _split(url, "Sentinel")
        username, password, hosts = _authority(parts)
        service, _, database = parts.path.strip("/").partition("/")
        if not service or not (database or "0").isdecimal():
            raise ValueError("a Sentinel address ends with /service or /service/database, as in .../mymaster/0")
        options = _options(parts, "Sentinel", _SENTINEL_OPTIONS)
        return cls(
            sentinels=_hosts(hosts, "Sentinel", SENTINEL_PORT),
            service=unquote(service),
            database=int(database or 0),
            tls=parts.scheme.startswith("rediss"),
            username=username,
            password=password,
            sentinel_username=options.get("sentinel_username"),
            sentinel_password=options.get("sentinel_password"),
        )


@dataclass(frozen=True, slots=True)
class ClusterUrl:
    """Address of a Redis Cluster: redis+cluster://[user:password@]host[:port],... One server that answers is enough to
    find the others. With rediss+cluster:// they use TLS; ?ssl_ca_certs=file names the authority to trust.
    """

    servers: tuple[tuple[str, int], ...]
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: str | None = None

    @classmethod
    def parse(cls, url: str) -> ClusterUrl:
        """Parse a URL.

        Raises:
            ValueError: the URL is not of this form.
        """
        parts = _split(url, "Redis Cluster")
        username, password, hosts = _authority(parts)
        if parts.path.strip("/") not in ("", "0"):
            raise ValueError("a Redis Cluster has database 0 only; its address ends with the servers or /0")
        tls = parts.scheme.startswith("rediss")
        options = _options(parts, "Redis Cluster", _CLUSTER_OPTIONS if tls else frozenset())
        return cls(
            servers=_hosts(hosts, "Redis Cluster", CLUSTER_PORT),
            tls=tls,
            username=username,
            password=password,
            ca_file=options.get("ssl_ca_certs"),
        )


def is_sentinel(url: str) -> bool:
    """Return whether a URL names sentinels."""
    return url.split("://", 1)[0] in SENTINEL_SCHEMES


def is_cluster(url: str) -> bool:
    """Return whether a URL names servers of a Redis Cluster."""
    return url.split("://", 1)[0] in CLUSTER_SCHEMES


def check_redis_url(url: str) -> None:
    """Check a URL as far as possible without connecting.

    Raises:
        ValueError: it is no address of a Redis. The message does not repeat it, because it may contain a password.
    """
    scheme = url.split("://", 1)[0] if "://" in url else ""
    if scheme in SENTINEL_SCHEMES:
        SentinelUrl.parse(url)
    elif scheme in CLUSTER_SCHEMES:
        ClusterUrl.parse(url)
    elif scheme not in PLAIN_SCHEMES:
        known = ", ".join(f"{name}://" for name in (*PLAIN_SCHEMES, *SENTINEL_SCHEMES, *CLUSTER_SCHEMES))
        raise ValueError(f"must begin with one of {known}, got {scheme + '://' if scheme else 'no scheme'}")
    elif scheme != "unix":
        _check_plain(url, scheme)


def _check_plain(url: str, scheme: str) -> None:
    _check_port(_AUTHORITY_END.split(url.partition("://")[2], 1)[0])
    try:
        parts = urlsplit(url)
        # Reading the port makes Python check it.
        good = (parts.port or 0) >= 0 and (parts.path.strip("/") or "0").isdecimal()
    except ValueError:
        good = False
    if not good:
        raise ValueError(
            f"must be {scheme}://[user:password@]host[:port][/database], with / ? and # of a password percent-encoded"
        )


def _check_port(host: str) -> None:
    port = _PORT.search(host)
    # The number is not told: where an address lacks its host, it may be of a password.
    if port is not None and not 1 <= int(port[1]) <= LAST_PORT:
        raise ValueError(f"its port must be from 1 to {LAST_PORT}")


def _split(url: str, kind: str) -> SplitResult:
    scheme, _, rest = url.partition("://")
    authority = _AUTHORITY_END.split(rest, 1)[0]
    credentials, at, hosts = authority.rpartition("@")
    after = rest[len(authority) :]
    try:
        # With one host each: newer Pythons take brackets only where an authority's one host has them.
        parts = [urlsplit(f"{scheme}://{credentials}{at}{host}{after}") for host in hosts.split(",")]
        return parts[0]._replace(netloc=authority)
    except ValueError:
        # Python's error repeats the whole authority, which may contain a password.
        raise ValueError(
            f"a {kind} address has brackets around IPv6 addresses only, and special characters percent-encoded"
        ) from None


def _authority(parts: SplitResult) -> tuple[str | None, str | None, str]:
    credentials, _, hosts = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    return unquote(username) or None, unquote(password) or None, hosts


def _hosts(text: str, kind: str, default_port: int) -> tuple[tuple[str, int], ...]:
    return tuple(_host(one, kind, default_port) for one in text.split(","))


def _host(text: str, kind: str, default_port: int) -> tuple[str, int]:
    _check_port(text)
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port or default_port
    except ValueError:
        host = None
    if not host:
        raise ValueError(f"a {kind} address names hosts as host or host:port, separated by commas")
    return host, port


def _options(parts: SplitResult, kind: str, allowed: frozenset[str]) -> dict[str, str]:
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if unknown := sorted(options.keys() - allowed):
        raise ValueError(f"unknown options {unknown}; a {kind} address takes {sorted(allowed)}")
    return options
