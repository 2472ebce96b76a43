"""The executor of an engine with one worker on a CPU: it runs the worker in the engine core's own process.

vLLM's own executor for that, "uni", is closed to CPUs, because OpenMP takes its threads and their cores from the
environment of a new process. The engine core is one too: `startup/launch.py` sets what vLLM sets for a worker. Written
for vLLM 0.32, it relies on every call to the worker going through `collective_rpc`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.v1.executor.uniproc_executor import UniProcExecutor


class InCoreExecutor(UniProcExecutor):
    """Executor without a process of its own. The worker's work runs on the worker's cores. Everything else of the
    engine core may use all cores of the replica: its sockets' threads, and the compilation of grammars.
    """

    def _init_executor(self) -> None:
        # OpenMP bound this thread when it was loaded. Threads that it starts inherit its cores.
        self._worker_cores = os.sched_getaffinity(0)
        self._replica_cores = os.sched_getaffinity(os.getppid())
        with self._on_worker_cores():
            super()._init_executor()

    def collective_rpc(self, *arguments: Any, **named: Any) -> Any:
        """Call the worker on its cores."""
        with self._on_worker_cores():
            return super().collective_rpc(*arguments, **named)

    @contextmanager
    def _on_worker_cores(self) -> Iterator[None]:
        os.sched_setaffinity(0, self._worker_cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, self._replica_cores)
