"""New connections of an HTTP port, which take turns with open streams.

A server of asyncio accepts all connections that wait, and does the TLS handshakes of all of them in one turn of the
loop. A thousand clients that connect at once then hold up every stream for a second. Here each turn accepts a few
connections and begins fewer handshakes. The dear part of a handshake, the signature, follows the first bytes. So
a connection waits for these first, outside the line of handshakes, where clients that send nothing hold up nobody.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from cluster.lifecycle import TaskOwner

_LOG = logging.getLogger(__name__)

BACKLOG = 1024
"""Connections that wait in the kernel, where it allows so many (net.core.somaxconn)."""
_ACCEPTED = 16
"""Connections that a turn of the loop accepts."""
_BEGUN = 2
"""Handshakes that a turn of the loop begins; each takes about half a millisecond."""
_IN_LINE = 256
"""Accepted connections without a handshake from which on further ones wait in the kernel."""
_SILENT = 4096
"""Connections that may be without their first bytes; the oldest makes room for the newest."""
_FIRST_S = 10.0
"""Longest time in seconds until the first bytes of a connection with TLS, and then until its handshake has ended."""
_AGAIN_S = 0.2
"""Pause in seconds after the system refused a connection, such as for want of files."""


class Acceptor:
    """Server of listening sockets."""

    def __init__(
        self, sockets: Sequence[socket.socket], protocol: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None
    ) -> None:
        """Take sockets that are bound; `protocol` makes the protocol of a connection."""
        self.sockets = tuple(sockets)
        """The sockets that listen."""
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._tls = tls
        self._silent: OrderedDict[socket.socket, float] = OrderedDict()
        """Connections without their first bytes, and since when; the oldest first."""
        self._line: deque[socket.socket] = deque()
        """Connections whose handshake may begin."""
        self._owner = TaskOwner("acceptor")
        self._paused = False
        self._serving = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to accept."""
        for each in self.sockets:
            each.setblocking(False)
            each.listen(BACKLOG)
            self._loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """Stop to listen, and close connections that have no protocol yet."""
        for each in self.sockets:
            self._loop.remove_reader(each)
            each.close()
        self.sockets = ()
        if self._timer is not None:
            self._timer.cancel()
        for each in self._silent:
            self._loop.remove_reader(each)
        for each in (*self._silent, *self._line):
            each.close()
        self._silent.clear()
        self._line.clear()

    async def wait_closed(self) -> None:
        """Wait until no handshake is in progress."""
        await self._owner.close()

    # --- in turns -----------------------------------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED):
            try:
                accepted, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _LOG.warning("http.not_accepted", extra={"error": str(error)})
                self._pause()
                self._loop.call_later(_AGAIN_S, self._resume)
                return
            accepted.setblocking(False)
            if self._tls is None:
                self._owner.spawn(self._open(accepted), "connection")
            else:
                self._listen_to(accepted)

    def _listen_to(self, accepted: socket.socket) -> None:
        if len(self._silent) >= _SILENT:
            self._drop(next(iter(self._silent)))
        self._silent[accepted] = time.monotonic()
        self._loop.add_reader(accepted, self._spoke, accepted)
        if self._timer is None:
            self._timer = self._loop.call_later(_FIRST_S, self._drop_silent)

    def _spoke(self, accepted: socket.socket) -> None:
        self._loop.remove_reader(accepted)
        del self._silent[accepted]
        self._line.append(accepted)
        if len(self._line) >= _IN_LINE:
            self._pause()
        if not self._serving:
            self._serving = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        for _ in range(min(_BEGUN, len(self._line))):
            self._owner.spawn(self._open(self._line.popleft()), "handshake")
        if self._paused and len(self._line) < _IN_LINE // 2:
            self._resume()
        self._serving = bool(self._line)
        if self._serving:
            # In the next turn, after everything that has come meanwhile.
            self._loop.call_soon(self._serve)

    async def _open(self, accepted: socket.socket) -> None:
        handshake_s = None if self._tls is None else _FIRST_S
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, accepted, ssl=self._tls, ssl_handshake_timeout=handshake_s
            )
        except OSError as error:
            # Among them are errors of TLS, and handshakes that take too long. The connection has been closed.
            _LOG.debug("http.no_connection", extra={"error": str(error)})

    # --- bounds -------------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        self._paused = True
        for each in self.sockets:
            self._loop.remove_reader(each)

    def _resume(self) -> None:
        self._paused = False
        for each in self.sockets:
            self._loop.add_reader(each, self._accept, each)

    def _drop(self, accepted: socket.socket) -> None:
        del self._silent[accepted]
        self._loop.remove_reader(accepted)
        accepted.close()

    def _drop_silent(self) -> None:
        self._timer = None
        until = time.monotonic() - _FIRST_S
        while self._silent and (oldest := next(iter(self._silent))) and self._silent[oldest] <= until:
            self._drop(oldest)
        if self._silent:
            left_s = next(iter(self._silent.values())) - until
            self._timer = self._loop.call_later(left_s, self._drop_silent)
