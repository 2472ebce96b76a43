"""`penstock demo`: start a cluster, answer one prompt, stop."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from cluster.bootstrap.state_dir import claimed
from cluster.bootstrap.without_ray import local_cluster
from cluster.lifecycle import stop_signals
from cluster.settings import Settings, load_settings
from cluster.terminal.console import screen
from cluster.terminal.progress import StepDisplay
from cluster.terminal.receipt import print_receipt

MODEL = "demo"


def run_demo(options: argparse.Namespace) -> int:
    """Start a cluster in a folder of its own, stream one answer through the public client, stop everything."""
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        flags: dict[str, Any] = {
            "cluster": {"state_dir": options.state_dir or folder, "log_level": "info"},
            # Any free port: the demo must not collide with a running cluster. It needs no key, so no other machine may
            # reach it.
            "router": {"port": 0, "host": "127.0.0.1"},
            "auth": {"anonymous": True},
            "pools": {MODEL: {"engine": options.engine}},
        }
        settings = load_settings(Path(options.settings) if options.settings else None, flags)
        with claimed(settings.cluster.folder):
            try:
                return asyncio.run(_demo(settings, options.prompt, screen()))
            except asyncio.CancelledError:
                return 130


async def _demo(settings: Settings, prompt: str, console: Console) -> int:
    with stop_signals(_cancel_once()), StepDisplay(console) as display:
        async with local_cluster(settings, display) as cluster:
            console.rule("[bold]chat")
            console.print(f"[bold]{escape(prompt)}[/]", highlight=False)
            # In a thread, because the demo uses the client for applications without asyncio.
            await asyncio.to_thread(ask, cluster.target, prompt, console)
            console.rule()
    console.print("everything is stopped")
    return 0


def _cancel_once() -> Callable[[], None]:
    """Return a function that cancels this task at its first call; a second Ctrl-C must not cut the stop short."""
    task, calls = asyncio.current_task(), itertools.count()

    def cancel() -> None:
        if task is not None and next(calls) == 0:
            task.cancel()

    return cancel


def ask(target: str, prompt: str, console: Console) -> None:
    """Stream the answer to one question and print its receipt."""
    from penstock.client import Client, Delta, Finished, Message, Sampling

    with Client(target) as client:
        sampling = Sampling(temperature=0.0, max_tokens=128)
        for event in client.stream(MODEL, [Message("user", prompt)], sampling, timeout=60.0):
            if isinstance(event, Delta):
                sys.stdout.write(event.text)
                sys.stdout.flush()
            elif isinstance(event, Finished):
                sys.stdout.write("\n\n")
                sys.stdout.flush()
                print_receipt(event, console)
