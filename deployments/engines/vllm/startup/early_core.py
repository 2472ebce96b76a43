"""The engine core's process, started before this process imports vLLM. Both then import it at the same time, which
takes each of them 8 s on a slow core.

Written for vLLM 0.32. It relies on `vllm.v1.engine.utils` making the process by `get_mp_context().Process(target=...,
name=..., kwargs=...)` and then calling its `start()`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from cluster.gc_tuning import collect_rarely
from deployments.engines.vllm import plugin
from deployments.engines.vllm.startup.environment import inherited

_SPAWN = multiprocessing.get_context("spawn")
_END_S = 10.0


class EarlyCore(SpawnProcess):
    """Process that imports modules, then waits for its work. It ends with this process, or if `close` comes before
    the work.
    """

    def __init__(self, modules: Sequence[str], variables: Mapping[str, str]) -> None:
        """Start it.

        Args:
            modules: names of modules, in the order of their import.
            variables: environment variables that it has from the beginning, as OpenMP needs them.
        """
        ours, theirs = _SPAWN.Pipe()
        super().__init__(target=_import_and_wait, args=(theirs, tuple(modules)), name="EngineCore")
        with inherited(variables):
            super().start()
        theirs.close()
        # Not before the start, which gives the new process every attribute.
        self._pipe: Connection = ours
        self.work: tuple[Callable[..., None], Mapping[str, Any]] | None = None
        """What it will do, and with which arguments."""

    def start(self) -> None:
        """Give it its work, and the variables and folders of modules that this process has now."""
        if self.work is None:
            raise ValueError("no work")
        # In two messages, as a model's own code must be found when the work is read.
        self._pipe.send((dict(os.environ), sys.path))
        self._pipe.send(self.work)

    def close(self) -> None:
        """End it if it got no work. Returns when it is gone."""
        if self.work is None:
            self.kill()
            self.join(_END_S)
        self._pipe.close()

    @contextmanager
    def taken_by_vllm(self) -> Iterator[None]:
        """Let vLLM take this process where it would make one for an engine core."""
        from vllm.v1.engine import utils

        make = utils.get_mp_context
        utils.get_mp_context = lambda: _Context(self, make())
        try:
            yield
        finally:
            utils.get_mp_context = make


class _Context(SpawnContext):
    def __init__(self, core: EarlyCore, real: Any) -> None:
        self._core, self._real = core, real

    def Process(self, *, target: Any, name: str, kwargs: Mapping[str, Any]) -> Any:  # type: ignore[override]  # noqa: N802
        # A queue of tensors can only be inherited.
        if self._core.work is not None or kwargs.get("tensor_queue") is not None:
            return self._real.Process(target=target, name=name, kwargs=kwargs)
        self._core.work = (target, kwargs)
        return self._core


def _import_and_wait(pipe: Connection, modules: Sequence[str]) -> None:
    collect_rarely()
    plugin.follow_replica()
    for module in modules:
        import_module(module)
    with suppress(ImportError):
        # vLLM sets the process's title by it. It finds the title's place only before variables change.
        import_module("setproctitle").getproctitle()
    try:
        variables, folders = pipe.recv()
        os.environ.update(variables)
        sys.path[:] = folders
        target, arguments = pipe.recv()
    except EOFError:
        return
    target(**arguments)
