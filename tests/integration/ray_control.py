"""Looks at Ray's control plane, and at a pool beside it."""

from __future__ import annotations

from collections import Counter

import psutil

from cluster.errors import BootstrapError
from cluster.ray_serve.config import app_name
from penstock.client import Client, Delta, Event, Finished, PenstockClientError, RetryPolicy, Sampling
from tests.support.running import ClusterThread

POOL = "toy"
"""Two simulated replicas."""
BACK_S = 180.0
"""How long Ray and two replicas may take to be there again; a machine that does other work needs most of it."""


def ray_processes(toy: ClusterThread, word: str) -> list[psutil.Process]:
    """Return processes of our Ray by a word of their command line."""
    host = toy.cluster.ray_host
    assert host is not None
    return [p for p in psutil.Process(host.pid).children(recursive=True) if any(word in part for part in _words(p))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        # It ended meanwhile.
        return []


def ended(process: psutil.Process) -> bool:
    """Say whether a process is gone; its parent may not have noticed."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def stream(toy: ClusterThread, tokens: int, router: int = 0) -> tuple[list[int], Finished]:
    """Stream one request to its end; greedy output of the simulated engine follows from prompt and seed."""
    sampling = Sampling(temperature=0.0, seed=1, max_tokens=tokens, ignore_eos=True)
    events: list[Event] = []
    with Client(toy.target(router), retry=RetryPolicy(max_attempts=1)) as client:
        try:
            events.extend(client.stream(POOL, [5, 6, 7], sampling, timeout=BACK_S))
        except PenstockClientError as error:
            # What it heard last tells where it stood.
            error.add_note(f"router {router}; heard {Counter(type(event).__name__ for event in events)}, {events[-1:]}")
            raise
    end = events[-1]
    assert isinstance(end, Finished)
    return [token for event in events if isinstance(event, Delta) for token in event.token_ids], end


def running_replicas(toy: ClusterThread) -> int:
    serve = toy.cluster.serve
    assert serve is not None
    try:
        app = toy.run(serve.status()).get(app_name(POOL))
    except BootstrapError:
        # Its dashboard ends or starts.
        return 0
    return app.running if app is not None and app.status == "RUNNING" else 0
