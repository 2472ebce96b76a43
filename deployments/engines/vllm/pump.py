"""The reader of the engine process's messages. It handles each in the turn of the loop in which it comes.

vLLM's own way from the socket to a sequence takes a pyzmq future, a task, a queue and another task for each step.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import zmq

_AT_ONCE = 8
"""Messages read in one turn of the loop. Other callbacks need their turn too."""


class OutputPump:
    """Replacement for the task in which vLLM's AsyncMPClient reads its socket.

    Args:
        client: vLLM's AsyncMPClient, inside a running loop; its own task must not have begun yet.
        on_outputs: takes one EngineCoreOutputs with outputs or statistics.
        on_error: called once when no more messages will come, unless `close` was called before.
    """

    def __init__(self, client: Any, on_outputs: Callable[[Any], None], on_error: Callable[[Exception], None]) -> None:
        self._client = client
        self._on_outputs = on_outputs
        self._on_error = on_error
        self._closed = False
        resources = client.resources
        if resources.output_queue_task is not None:
            resources.output_queue_task.cancel()
        self._socket: Any = zmq.Socket.shadow(resources.output_socket)
        # Our own descriptor: vLLM closes the socket before it reports it, and its number may belong to another file by
        # then.
        self._readable = os.dup(int(self._socket.getsockopt(zmq.FD)))
        self._loop = asyncio.get_running_loop()
        # vLLM cancels the task in this place when it closes the socket, also after the engine's death.
        self._guard = self._loop.create_task(_forever(), name="engine-outputs")
        self._guard.add_done_callback(self._given_up)
        resources.output_queue_task = self._guard
        self._loop.add_reader(self._readable, self._read)
        self._loop.call_soon(self._read)

    def close(self) -> None:
        """Deliver no more messages. May be called twice."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._readable)
        os.close(self._readable)
        self._guard.cancel()

    def _read(self) -> None:
        try:
            for _ in range(_AT_ONCE):
                if self._closed:
                    return
                self._hand_on(self._socket.recv_multipart(zmq.DONTWAIT, copy=False))
        except zmq.Again:
            return
        except Exception as error:  # noqa: BLE001
            self._fail(error)
            return
        # The descriptor reports messages that came since the last read, not those that are left.
        self._loop.call_soon(self._read)

    def _hand_on(self, frames: list[Any]) -> None:
        self._client.resources.validate_alive(frames)
        outputs = self._client.decoder.decode(frames)
        if outputs.utility_output is not None:
            self._answer(outputs.utility_output)
        elif outputs.outputs or outputs.scheduler_stats is not None:
            self._on_outputs(outputs)

    def _answer(self, output: Any) -> None:
        call = self._client.utility_results.pop(output.call_id, None)
        if call is None or call.done():
            # The caller is gone.
            return
        if output.failure_message is not None:
            call.set_exception(RuntimeError(output.failure_message))
        else:
            call.set_result(output.result.result)

    def _given_up(self, _guard: asyncio.Task[None]) -> None:
        if not self._closed:
            self._fail(RuntimeError("vLLM closed the engine's socket"))

    def _fail(self, error: Exception) -> None:
        self.close()
        # vLLM's EngineDeadError where that is the cause.
        error = self._client._format_exception(error)
        for call in self._client.utility_results.values():
            if not call.done():
                call.set_exception(error)
        self._on_error(error)


async def _forever() -> None:
    await asyncio.get_running_loop().create_future()
