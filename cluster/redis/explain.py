"""Plain words for the ways in which a Redis can't be used. Pure."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from redis import exceptions

_ERRNO = re.compile(r"\[Errno (\d+)\]|\bError (\d+) connecting\b")
"""Where asyncio tried several addresses, or redis-py wrapped the error, only the text has the number."""
_ENCODE = "special characters of user and password must be percent-encoded"
_CLOSED = ("closed by server", "reset by peer", "closed the connection", "connection lost", "broken pipe")


@dataclass(frozen=True, slots=True)
class RedisTrouble:
    """Reason why a Redis can't be used, and the remedy."""

    text: str
    lasting: bool
    """Whether only a change of settings, or of Redis' own, helps. Otherwise Redis may answer later."""


def shown_address(url: str) -> str:
    """Return the part of a URL that may be shown: hosts or path, without user and password."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return unquote(parts.path)
    return parts.netloc.rpartition("@")[2]


def explain(error: BaseException, url: str, *, speaks_plain: bool = False) -> RedisTrouble:
    """Describe an error of the Redis client.

    Args:
        error: as the client raised it.
        url: address of Redis. Its password is not repeated.
        speaks_plain: whether a Redis without TLS answered at the address.
    """
    where, tls = shown_address(url), url.startswith("rediss")
    if tls and speaks_plain:
        return RedisTrouble(f"{where} answers without TLS, but the address asks for TLS; use redis://", True)
    return _of_login(error, where) or _of_reply(error, where) or _of_network(error, where, tls)


def _of_login(error: BaseException, where: str) -> RedisTrouble | None:
    if not isinstance(error, exceptions.AuthenticationError):
        return None
    text = str(error)
    if "required" in text.lower():
        return RedisTrouble(f"{where} wants a password; use redis://[user]:password@{where}", True)
    if "without any password configured" in text:
        return RedisTrouble(f"{where} has no password for its default user, but the address has one", True)
    return RedisTrouble(f"{where} does not accept the user name or the password; {_ENCODE}", True)


def _of_reply(error: BaseException, where: str) -> RedisTrouble | None:
    text = str(error)
    if isinstance(error, exceptions.BusyLoadingError):
        return RedisTrouble(f"{where} still reads its data", False)
    if isinstance(error, exceptions.NoPermissionError):
        return RedisTrouble(f"the user may not do what Penstock needs at {where}: {text}", True)
    if isinstance(error, exceptions.MovedError):
        return RedisTrouble(f"{where} is one server of a Redis Cluster; use redis+cluster://", True)
    if "DB index is out of range" in text:
        return RedisTrouble(f"{where} has no database of this number; a default Redis has 0 to 15", True)
    if isinstance(error, exceptions.InvalidResponse):
        if "\\x15\\x03" in text:
            return RedisTrouble(f"{where} speaks TLS, but the address does not ask for it; use rediss://", True)
        return RedisTrouble(f"what answers at {where} is no Redis: {text}", True)
    if isinstance(error, (exceptions.ReadOnlyError, exceptions.MasterDownError)):
        return RedisTrouble(f"{where} is a replica, which takes no writes; give the address of the primary", False)
    if isinstance(error, exceptions.ResponseError):
        return RedisTrouble(f"{where} refuses: {text}", False)
    return None


def _of_network(error: BaseException, where: str, tls: bool) -> RedisTrouble:
    chain = list(_chain(error))
    numbers = {number for each in chain for number in _numbers(each)}
    for each in chain:
        if isinstance(each, ssl.SSLCertVerificationError):
            why = f"the certificate of {where} is not trusted ({getattr(each, 'verify_message', each)})"
            return RedisTrouble(f"{why}; name its authority with ?ssl_ca_certs=FILE", True)
    if any(isinstance(each, ssl.SSLError) for each in chain):
        return RedisTrouble(f"{where} does not agree on TLS: {chain[-1]}", True)
    if any(isinstance(each, socket.gaierror) for each in chain):
        return RedisTrouble(f"the host name in {where} is not known", False)
    if errno.ENOENT in numbers:
        return RedisTrouble(f"there is no socket {where}", False)
    if errno.EACCES in numbers:
        return RedisTrouble(f"this user may not open the socket {where}", True)
    if errno.ECONNREFUSED in numbers:
        return RedisTrouble(f"nobody listens at {where}; is Redis running, and is the port right?", False)
    if any(isinstance(each, (exceptions.TimeoutError, TimeoutError)) for each in chain):
        return RedisTrouble(f"{where} does not answer in time; check host, port and firewalls", False)
    text = str(error) or type(error).__name__
    if not tls and any(closed in text.lower() for closed in _CLOSED):
        return RedisTrouble(f"{where} closes the connection at once; if it speaks TLS, use rediss://", False)
    return RedisTrouble(f"{where} can't be used: {text}", False)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Return an error and all that led to it, newest first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _numbers(error: BaseException) -> Iterator[int]:
    if isinstance(error, OSError) and error.errno is not None:
        yield error.errno
    for found in _ERRNO.findall(str(error)):
        yield int(found[0] or found[1])
