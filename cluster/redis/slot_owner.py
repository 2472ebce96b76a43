"""Connections to the server of a Redis Cluster that owns a key's slot."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, TypeAlias

from redis import exceptions
from redis.asyncio.connection import Connection, SSLConnection
from redis.crc import key_slot

from cluster.redis.url import ClusterUrl

_PARTS = 4
"""Servers that may fail to answer within the time for one call."""

Address: TypeAlias = tuple[str, int]


class SlotOwner:
    """Makes connections that look for the owner each time they connect: slots and primaries move.

    Whoever answers is asked, which may be any server that was ever named. Nobody's word lasts: an owner that is not the
    owner any more says so, and is left.
    """

    def __init__(self, url: ClusterUrl, key: str, timeout_s: float, options: dict[str, Any]) -> None:
        self.slot = key_slot(key.encode())
        self.patience_s = timeout_s / _PARTS
        """For connecting to a server and its answer, in seconds."""
        self._seeds = url.servers
        self._known: tuple[Address, ...] = ()
        self._hint: tuple[Address, ...] = ()
        tls = {"ssl_ca_certs": url.ca_file} if url.tls else {}
        self._kind: type[OwnerConnection] = SecureOwnerConnection if url.tls else OwnerConnection
        self._options = {**options, **tls, "username": url.username, "password": url.password}

    def make_connection(self) -> OwnerConnection:
        """Build a connection that is not connected yet."""
        return self._kind(self, **self._options)

    def hint(self, host: str, port: int) -> None:
        """Ask this server first next time."""
        self._hint = ((host, port),) if host else ()

    def candidates(self) -> list[Address]:
        """List whom to ask, in this order."""
        hint, self._hint = self._hint, ()
        # In turns: a server that was cut off may be sure of what is not true any more.
        known = random.sample(self._known, len(self._known))
        return list(dict.fromkeys((*hint, *known, *random.sample(self._seeds, len(self._seeds)))))

    def learn(self, asked: Address, slots: Sequence[Any]) -> Address:
        """Read what a server said of all slots; returns the owner.

        Raises:
            ConnectionError: it knows of none.
        """
        named = {address: None for _, _, *servers in slots for one in servers if (address := _address(asked, one))}
        self._known = tuple(named)
        for first, last, primary, *_ in slots:
            if first <= self.slot <= last and (owner := _address(asked, primary)) is not None:
                return owner
        raise exceptions.ConnectionError(f"no server of the cluster owns slot {self.slot}")


class OwnerConnection(Connection):
    """Leads to the owner of the slot at the time it connects."""

    def __init__(self, slots: SlotOwner, **options: Any) -> None:
        super().__init__(**options)
        self._slots = slots

    async def connect(self) -> None:
        """Find the owner and connect.

        Raises:
            ConnectionError: nobody who answers leads to a server that does.
        """
        if self.is_connected:
            return
        why: BaseException | None = None
        for address in self._slots.candidates():
            try:
                async with asyncio.timeout(self._slots.patience_s):
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
        if owner != address:
            await self.disconnect(nowait=True)
            await self._connect_to(owner)

    async def _connect_to(self, address: Address) -> None:
        self.host, self.port = address
        await super().connect()  # type: ignore[no-untyped-call]  # redis-py


class SecureOwnerConnection(OwnerConnection, SSLConnection):
    """Speaks TLS."""


def _address(asked: Address, server: Sequence[Any]) -> Address | None:
    """Read one server of a reply; without a name it is where the one that was asked is, and "?" is nowhere."""
    host, port = server[0], int(server[1])
    name = asked[0] if not host else host.decode() if isinstance(host, bytes) else str(host)
    return None if name == "?" else (name, port)
