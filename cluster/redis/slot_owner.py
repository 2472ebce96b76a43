"""Connections to the server of a Redis Cluster that owns a key's slot."""

from __future__ import annotations

import random
import ssl
from collections.abc import Sequence
from typing import Any, TypeAlias

from redis import exceptions
from redis.asyncio.connection import Connection, SSLConnection
from redis.crc import key_slot

from cluster.lifecycle import timeout_awake
from cluster.redis.url import ClusterUrl

_PARTS = 4
"""Most servers that can be asked within the time for one call; fewer ones share all of it."""

LENIENT: dict[str, Any] = {"ssl_exclude_verify_flags": [ssl.VERIFY_X509_STRICT]}
"""Option of TLS connections that takes certificates as all Pythons before 3.13 do: also those that do not name the key
of their authority.
"""

Address: TypeAlias = tuple[str, int]


class SlotOwner:
    """Factory of connections that find the slot's owner each time they connect, because slots and primaries move.

    Any server that was ever named may be asked. No answer is kept: a former owner reports that it is none, and the
    connection is given up.
    """

    def __init__(
        self, url: ClusterUrl, key: str, timeout_s: float, options: dict[str, Any], *, anywhere: bool = False
    ) -> None:
        self.anywhere = anywhere
        self.slot = key_slot(key.encode())
        self._timeout_s = timeout_s
        self._seeds = url.servers
        self._known: tuple[Address, ...] = ()
        self._hint: tuple[Address, ...] = ()
        tls = {"ssl_ca_certs": url.ca_file, **LENIENT} if url.tls else {}
        self._kind: type[OwnerConnection] = SecureOwnerConnection if url.tls else OwnerConnection
        self._options = {**options, **tls, "username": url.username, "password": url.password}

    def make_connection(self) -> OwnerConnection:
        """Return a connection that is not connected yet."""
        return self._kind(self, **self._options)

    def patience_s(self, servers: int) -> float:
        """Return the seconds for connecting to one of so many servers and its answer."""
        return self._timeout_s / min(_PARTS, servers)

    def hint(self, host: str, port: int) -> None:
        """Ask this server first at the next connect."""
        self._hint = ((host, port),) if host else ()

    def candidates(self) -> list[Address]:
        """Return the servers to ask, in this order."""
        hint, self._hint = self._hint, ()
        # In random order, because a server that was cut off may give outdated answers.
        known = random.sample(self._known, len(self._known))
        return list(dict.fromkeys((*hint, *known, *random.sample(self._seeds, len(self._seeds)))))

    def learn(self, asked: Address, slots: Sequence[Any]) -> Address:
        """Read a server's answer about all slots; return the owner of ours.

        Raises:
            ConnectionError: the answer names no owner.
        """
        named = {address: None for _, _, *servers in slots for one in servers if (address := _address(asked, one))}
        self._known = tuple(named)
        for first, last, primary, *_ in slots:
            if first <= self.slot <= last and (owner := _address(asked, primary)) is not None:
                return owner
        raise exceptions.ConnectionError(f"no server of the cluster owns slot {self.slot}")


class OwnerConnection(Connection):
    """Connection to the server that owns the slot at the time of connecting, or to any that answers."""

    def __init__(self, slots: SlotOwner, **options: Any) -> None:
        super().__init__(**options)
        self._slots = slots

    async def connect(self) -> None:
        """Find the owner and connect.

        Raises:
            ConnectionError: no server answers, or none leads to an owner that does.
        """
        if self.is_connected:
            return
        why: BaseException | None = None
        candidates = self._slots.candidates()
        for address in candidates:
            try:
                async with timeout_awake(self._slots.patience_s(len(candidates))):
                    await self._follow(address)
                    return
            except (exceptions.RedisError, OSError, TimeoutError) as error:
                why = error
                await self.disconnect(nowait=True)
        detail = str(why) or type(why).__name__
        raise exceptions.ConnectionError(f"no server leads to the owner of slot {self._slots.slot}: {detail}") from why

    async def _follow(self, address: Address) -> None:
        await self._connect_to(address)
        await self.send_command("CLUSTER", "SLOTS", check_health=False)
        owner = self._slots.learn(address, await self.read_response(disable_decoding=True))
        if owner != address and not self._slots.anywhere:
            await self.disconnect(nowait=True)
            await self._connect_to(owner)

    async def _connect_to(self, address: Address) -> None:
        self.host, self.port = address
        await super().connect()  # type: ignore[no-untyped-call]  # redis-py


class SecureOwnerConnection(OwnerConnection, SSLConnection):
    """Connection to the slot's owner over TLS."""


def _address(asked: Address, server: Sequence[Any]) -> Address | None:
    """Read one server of a reply. Without a name it has the asked server's host; "?" is an unknown host, None."""
    host, port = server[0], int(server[1])
    name = asked[0] if not host else host.decode() if isinstance(host, bytes) else str(host)
    return None if name == "?" else (name, port)
