"""A process with many light connections. It answers each line of JSON with one."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from cluster.open_files import raise_open_files
from loadtest.benchmarks.child import Child, answer
from loadtest.benchmarks.connections.wire import Api, CrowdTally, GrpcStream, HttpStream, LightStream, request_of

HOST = "127.0.0.1"
_HANDSHAKE_S = 60.0


class Crowd:
    """Streams of one process, and storms of handshakes."""

    def __init__(self, number: int, ports: Mapping[Api, int], *, watched: bool, tls: bool) -> None:
        """`watched`: whether the times between messages are kept."""
        # Each process has addresses of its own, so that ports of closed connections are no limit.
        self._source = f"127.0.{1 + number}.1"
        self._ports = ports
        self._watched = watched
        self._tally = CrowdTally()
        self._streams: list[LightStream] = []
        self._tls = {"http": client_tls(), "grpc": client_tls("h2")} if tls else {}

    async def open(self, api: Api, shares: Sequence[int], at_once: int, model: str, tokens: int) -> dict[str, Any]:
        """Open connections with so many streams each, some of them at the same time."""
        began = time.perf_counter()
        gate = asyncio.Semaphore(at_once)
        await asyncio.gather(*(self._open(api, gate, model, tokens, streams) for streams in shares))
        return {"seconds": time.perf_counter() - began, **self.look()}

    async def _open(self, api: Api, gate: asyncio.Semaphore, model: str, tokens: int, streams: int) -> None:
        gaps = self._tally.gaps_s.setdefault(api, []) if self._watched else None
        made = HttpStream if api == "http" else GrpcStream
        stream = made(request_of(api, model, f"Stream {len(self._streams)}", tokens, streams), self._tally, gaps)
        self._streams.append(stream)
        async with gate:
            try:
                await self._connect(api, lambda: stream)
            except OSError as error:
                self._tally.ends[type(error).__name__] += 1

    async def _connect(self, api: Api, protocol: Any) -> asyncio.Transport:
        transport, _ = await asyncio.get_running_loop().create_connection(
            protocol,
            HOST,
            self._ports[api],
            local_addr=(self._source, 0),
            **self._secured(api),
        )
        return transport

    def _secured(self, api: Api) -> dict[str, Any]:
        if not self._tls:
            return {}
        return {"ssl": self._tls[api], "server_hostname": "localhost", "ssl_handshake_timeout": _HANDSHAKE_S}

    async def storm(self, api: Api, seconds: float, at_once: int) -> dict[str, Any]:
        """Connect and leave again, as often as possible."""
        times: list[float] = []
        failures = Counter[str]()
        began = time.perf_counter()

        async def connect() -> None:
            while time.perf_counter() - began < seconds:
                at = time.perf_counter()
                try:
                    transport = await self._connect(api, asyncio.Protocol)
                except OSError as error:
                    failures[type(error).__name__] += 1
                    await asyncio.sleep(0.01)
                    continue
                times.append(time.perf_counter() - at)
                # gRPC waits for the end of the connection, not for that of TLS.
                transport.abort()

        await asyncio.gather(*(connect() for _ in range(at_once)))
        return {"seconds": time.perf_counter() - began, "times_s": times, "failures": failures}

    def look(self) -> dict[str, Any]:
        """Return the counts."""
        tally = self._tally
        process = psutil.Process()
        spent = process.cpu_times()
        counts = {"open": tally.open, "begun": tally.begun, "messages": tally.messages, "ends": tally.ends}
        return {**counts, "rss_mb": process.memory_info().rss / 1e6, "cpu_s": spent.user + spent.system}

    def take(self) -> dict[str, Any]:
        """Return the times between messages since the last call."""
        taken = {api: list(gaps) for api, gaps in self._tally.gaps_s.items()}
        for gaps in self._tally.gaps_s.values():
            gaps.clear()
        return taken

    def leave(self) -> dict[str, Any]:
        """Close everything."""
        for stream in self._streams:
            stream.close()
        self._streams.clear()
        return self.look()


def client_tls(*protocols: str) -> ssl.SSLContext:
    """Return the TLS of a client that trusts everybody: what it checks costs the router nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


async def _serve(options: argparse.Namespace) -> None:
    ports: dict[Api, int] = {"http": options.http, "grpc": options.grpc}
    crowd = Crowd(options.number, ports, watched=options.watched, tls=options.tls)

    def obey(line: str) -> Any:
        order = json.loads(line)
        return getattr(crowd, order.pop("do"))(**order)

    await answer(obey)
    # At once: a process that closes thousands of connections in order takes long.
    os._exit(0)


class CrowdProcess(Child):
    """Process of a crowd, seen from its parent."""

    @classmethod
    async def join(
        cls, number: int, ports: Mapping[Api, int], *, tls: bool, nice: int = 0, watched: bool = False
    ) -> CrowdProcess:
        """Start it. A `nice` one takes the time that others leave."""
        return await cls.start(
            "loadtest.benchmarks.connections.crowd",
            *("--number", str(number), "--http", str(ports["http"]), "--grpc", str(ports["grpc"])),
            *("--nice", str(nice), *(("--watched",) if watched else ()), *(("--tls",) if tls else ())),
        )

    async def tell(self, do: str, **order: Any) -> dict[str, Any]:
        """Give an order, and return what came of it."""
        return dict(await self.ask(json.dumps({"do": do, **order})))


def main() -> None:
    """Serve until standard input ends."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--http", type=int, required=True)
    parser.add_argument("--grpc", type=int, required=True)
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--watched", action="store_true")
    parser.add_argument("--tls", action="store_true")
    options = parser.parse_args()
    os.nice(options.nice)
    raise_open_files()
    uvloop.run(_serve(options))


if __name__ == "__main__":
    main()
