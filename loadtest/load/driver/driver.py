"""The streams of one Locust process, in a process of its own.

gevent replaces threads in the process that Locust runs in. A grpc.aio call made there did not return, probably because
its poller is a thread. In this process nothing is replaced, nothing else takes the interpreter lock, and all CPU time
belongs to the generator.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from cluster.errors import PenstockError, SettingsError
from cluster.gc_tuning import settle_heap
from cluster.lifecycle import TaskOwner
from loadtest.load.driver.frames import Unframer, frame
from loadtest.load.driver.grpc_transport import CONNECT_S, GrpcTransport
from loadtest.load.driver.http_transport import HttpTransport
from loadtest.load.driver.stream import StreamObservation
from loadtest.load.driver.target import Target
from loadtest.load.driver.transport import Observers, StreamFailedError, Transport
from loadtest.load.results.tally import Window
from loadtest.load.schedule.plan import PlannedRequest
from loadtest.load.schedule.prompts import Prompts
from penstock.client import PenstockClientError
from penstock.v1 import types_pb2
from penstock.values.slo import ClassSlo

_PROBE_S = 0.02
"""Seconds between two measurements of how late the event loop is."""
_REPORT_S = 0.1
_CHUNK = 1 << 16
UNFINISHED = "UNFINISHED"
"""Reason of requests that were cut off at the end of a run."""


class Driver:
    """Sender of the requests of its Locust process, each at its time. It reports what it saw."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, owner: TaskOwner) -> None:
        self._reader = reader
        self._writer = writer
        self._owner = owner
        self._streams: set[asyncio.Task[None]] = set()
        """With those that wait until they are due."""
        self._running = 0
        """Number of requests that were sent and have not ended."""
        self._run: _Run | None = None
        self._ended: list[list[Any]] = []
        self._window = Window(0)
        self._cpu = time.process_time()

    async def serve(self) -> None:
        """Follow the Locust process's commands until it closes."""
        self._owner.spawn(self._probe(), name="driver.probe")
        self._owner.spawn(self._report(), name="driver.report")
        messages = Unframer()
        while data := await self._reader.read(_CHUNK):
            for kind, body in messages.feed(data):
                if kind == "hello":
                    self._send("hello", None)
                elif kind == "start":
                    await self._start(body)
                elif kind == "arrive":
                    self._arrive(PlannedRequest(**body))
                elif kind == "drain":
                    self._owner.spawn(self._drain(body), name="driver.drain")

    async def _start(self, body: Any) -> None:
        await self._cut()
        try:
            run = await _open(body)
        except (PenstockError, PenstockClientError) as error:
            self._send("start", {"failed": str(error)})
            return
        if self._run is not None:
            await self._run.close()
        self._run = run
        self._window = Window(0)
        self._cpu = time.process_time()
        # After the answer has travelled back, or the first requests would be late.
        run.starts_at = time.monotonic() + body["delay_s"]
        self._send("start", {"starts_at": run.starts_at, "model": run.model, "context": run.context})

    def _arrive(self, planned: PlannedRequest) -> None:
        if self._run is None:
            return
        task = asyncio.create_task(self._stream(self._run, planned))
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)

    async def _stream(self, run: _Run, planned: PlannedRequest) -> None:
        prompt, output = run.content(planned)
        due_at = run.starts_at + planned.at_s
        if (wait := due_at - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        counted = planned.at_s >= run.warmup_s
        seen = StreamObservation(due_at)
        lag = max(0.0, time.monotonic() - due_at)
        if counted:
            self._window.generator.lag.add(lag)
        reason, detail = "", ""
        observers = Observers(
            (lambda ttft, tokens: self._first(run, planned.kind, ttft, tokens)) if counted else _nothing,
            (lambda gap, tokens: self._gap(run, planned.kind, gap, tokens)) if counted else _nothing,
        )
        self._running += 1
        try:
            await run.transport.send(planned, prompt, output, seen, observers)
            reason, detail = _verdict(seen)
        except StreamFailedError as error:
            reason, detail = error.reason, error.detail
        except asyncio.CancelledError:
            reason, detail = UNFINISHED, "it still ran when the run was over"
        finally:
            self._running -= 1
        if counted:
            self._end(run, planned, seen, reason, detail)

    def _first(self, run: _Run, kind: str, ttft: float, tokens: int) -> None:
        tally = self._window.of(kind)
        tally.times["ttft"].add(ttft)
        tally.output_tokens += tokens
        tally.messages += 1
        self._window.last_s = time.monotonic() - run.starts_at

    def _gap(self, run: _Run, kind: str, gap: float, tokens: int) -> None:
        tally = self._window.of(kind)
        tally.times["itl"].add(gap)
        tally.output_tokens += tokens
        tally.messages += 1
        self._window.last_s = time.monotonic() - run.starts_at

    def _end(self, run: _Run, planned: PlannedRequest, seen: StreamObservation, reason: str, detail: str) -> None:
        tally = self._window.of(planned.kind)
        tally.ended += 1
        self._window.last_s = time.monotonic() - run.starts_at
        if reason or seen.finished is None:
            tally.errors[reason] += 1
            self._ended.append(
                [planned.kind, reason, detail, max(0.0, time.monotonic() - seen.due_at), *([None] * 3), 0]
            )
            return
        tally.completed += 1
        tally.good += seen.within(run.slos.get(planned.kind, ClassSlo()))
        tally.prompt_tokens += seen.finished.usage.prompt_tokens
        tally.cached_tokens += seen.finished.usage.cached_tokens
        for name, value in (("e2e", seen.e2e_s), ("queue", seen.queue_s), ("tpot", seen.tpot_s)):
            if value is not None:
                tally.times[name].add(value)
        row = [planned.kind, "", "", seen.e2e_s, seen.ttft_s, seen.queue_s, seen.tpot_s, seen.tokens]
        self._ended.append(row)

    async def _probe(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(_PROBE_S)
            self._window.generator.loop_lag.add(max(0.0, time.monotonic() - before - _PROBE_S))

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            self._flush()
            run = self._run
            if run is not None and not run.over and time.monotonic() >= run.starts_at + self._window.second + 1:
                self._close_window(run)

    def _flush(self) -> None:
        if self._ended:
            self._send("ended", self._ended)
            self._ended = []

    def _close_window(self, run: _Run) -> None:
        now, cpu = time.monotonic(), time.process_time()
        window = self._window
        spent = cpu - self._cpu
        window.generator.cpu_s = spent
        elapsed = now - run.starts_at - window.second
        window.generator.busiest = spent / elapsed if elapsed > _REPORT_S else 0.0
        window.running = self._running
        self._cpu = cpu
        self._window = Window(max(window.second + 1, int(now - run.starts_at)))
        self._send("window", window.to_wire())

    async def _drain(self, seconds: float) -> None:
        if self._streams:
            await asyncio.wait(self._streams, timeout=seconds)
        await self._cut()
        self._flush()
        if self._run is not None:
            self._close_window(self._run)
            self._run.over = True
        self._send("drain", {"clipped": self._run.clipped if self._run is not None else 0})

    async def _cut(self) -> None:
        streams = list(self._streams)
        for task in streams:
            task.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    def _send(self, kind: str, body: Any) -> None:
        self._writer.write(frame(kind, body))

    async def close(self) -> None:
        """End all streams."""
        await self._cut()
        if self._run is not None:
            await self._run.close()


def _verdict(seen: StreamObservation) -> tuple[str, str]:
    if seen.finished is None:
        return "PROTOCOL", "the stream ended without its last event"
    for choice in seen.finished.choices:
        if choice.finish_reason not in (types_pb2.FINISH_REASON_STOP, types_pb2.FINISH_REASON_LENGTH):
            name = types_pb2.FinishReason.Name(choice.finish_reason)
            return name, f"the stream ended well, but with {name}"
    return "", ""


def _nothing(*_values: object) -> None:
    pass


class _Run:
    """State that all requests of a run share."""

    def __init__(self, body: Any, transport: Transport) -> None:
        served = transport.served
        self.transport = transport
        self.model = served.name
        self.context = served.context
        self.warmup_s: float = body["warmup_s"]
        self.slos = {kind: ClassSlo(*slo) for kind, slo in body["slos"].items()}
        self.starts_at = 0.0
        self.clipped = 0
        """Number of requests that were longer than the model's context."""
        self.over = False
        """Whether everything was reported. Seconds until the next run do not belong to this one."""
        self._prompts = Prompts(served.vocabulary, served.context, body["seed"])

    def content(self, planned: PlannedRequest) -> tuple[Sequence[int], int]:
        """Return the prompt of a request, and its output tokens."""
        prompt, output = self._prompts.lengths(planned)
        self.clipped += (prompt, output) != (planned.prompt_tokens, planned.output_tokens)
        return self._prompts.ids(planned, prompt), output

    async def close(self) -> None:
        await self.transport.close()


async def _open(body: Any) -> _Run:
    target = Target.from_wire(body["target"])
    transport: Transport = await (HttpTransport if target.http else GrpcTransport).open(target)
    try:
        await transport.connect()
    except TimeoutError:
        await transport.close()
        raise SettingsError(f"no connection to all of {', '.join(target.routers)} in {CONNECT_S:g} s") from None
    except PenstockError:
        await transport.close()
        raise
    return _Run(body, transport)


async def _main(descriptor: int) -> None:
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
    owner = TaskOwner("driver")
    driver = Driver(reader, writer, owner)
    settle_heap()
    try:
        await driver.serve()
    except ConnectionError:
        pass  # The Locust process is gone.
    finally:
        await driver.close()
        await owner.close()
        writer.close()


def main() -> int:
    """Serve one Locust process, over a socket that it opened."""
    import uvloop

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True, help="descriptor of a connected socket")
    # Ctrl-C reaches the whole terminal. Locust decides about the open streams.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_main(parser.parse_args().socket))
    return 0


if __name__ == "__main__":
    sys.exit(main())
