"""Work in progress by the key that it came with, so that a key's revocation can end it.

A revocation is an entry of the registry. Every router hears it, also one that was away, and one that starts later: work
of the key that another router left behind ends where it is taken up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from cluster.errors import KeyRevokedError
from router.identity.caller import Caller

SKEW_MS = 5_000
"""Most milliseconds by which clocks of routers may be ahead of Redis'."""


class Work:
    """Work in progress, from its creation until `close`."""

    __slots__ = ("_end", "_open", "credential", "revoked")

    def __init__(self, credential: str, end: Callable[[], object], siblings: dict[str, set[Work]]) -> None:
        self.credential = credential
        self.revoked = False
        """Whether the revocation of its key ends it."""
        self._end = end
        self._open = siblings
        siblings.setdefault(credential, set()).add(self)

    def beside(self, end: Callable[[], object]) -> Work:
        """Return more work of the same key, which outlives this one."""
        return Work(self.credential, end, self._open)

    def revoke(self) -> None:
        """End it."""
        self.revoked = True
        self._end()

    def close(self, _task: object = None) -> None:
        """Forget it. May be called twice."""
        siblings = self._open.get(self.credential, set())
        siblings.discard(self)
        if not siblings:
            self._open.pop(self.credential, None)


_CALL: ContextVar[Work | None] = ContextVar("work", default=None)
"""The call whose task runs, or whose task has started this one."""


class Revocations:
    """Keys whose work ends, and the work that is in progress at this router."""

    def __init__(self) -> None:
        self._at_ms: dict[str, int] = {}
        self._open: dict[str, set[Work]] = {}

    def tracked(self, authenticate: Callable[[Any], Caller]) -> Callable[[Any], Caller]:
        """Return a function that authenticates calls and notes the tasks of those that come with a key."""

        def track(context: Any) -> Caller:
            caller = authenticate(context)
            if caller.api_key and (task := asyncio.current_task()) is not None:
                call = _CALL.get()
                if call is None or call.credential != caller.api_key:
                    call = Work(caller.api_key, task.cancel, self._open)
                    _CALL.set(call)
                    task.add_done_callback(call.close)
            return caller

        return track

    def began(self, credential: str, began_ms: int, end: Callable[[], object]) -> Work:
        """Note work that no call waits for. It ends at once where its key was revoked after it began."""
        work = Work(credential, end, self._open)
        if credential and began_ms <= self._at_ms.get(credential, -SKEW_MS) + SKEW_MS:
            work.revoke()
        return work

    def revoke(self, credential: str, at_ms: int) -> int:
        """End all work of a key. Return how much there was. `at_ms`: milliseconds since the Unix epoch."""
        self._at_ms[credential] = at_ms
        found = list(self._open.get(credential, ()))
        for work in found:
            work.revoke()
        return len(found)

    def forget(self, credential: str) -> None:
        """Forget a key's revocation. No work that it would end is left."""
        self._at_ms.pop(credential, None)


def revoked() -> bool:
    """Return whether the call whose task runs ends because its key was revoked."""
    call = _CALL.get()
    return call is not None and call.revoked


def seen(error: BaseException) -> BaseException:
    """Return the error that a call ends with. It is another one where a revocation cancelled the call's task."""
    call, task = _CALL.get(), asyncio.current_task()
    if not isinstance(error, asyncio.CancelledError) or call is None or not call.revoked:
        return error
    if task is not None:
        # The task goes on, to tell its client.
        task.uncancel()
    return KeyRevokedError(call.credential)


@contextmanager
def outliving(end: Callable[[], object]) -> Iterator[None]:
    """Do what goes on after its call. A revocation of the call's key calls `end`."""
    call = _CALL.get()
    if call is None:
        yield
        return
    work = call.beside(end)
    try:
        if call.revoked:
            work.revoke()
        yield
    finally:
        work.close()
