"""`penstock demo`: start a cluster, answer one prompt, stop."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
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
from cluster.settings import EngineKind, Settings, load_settings
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
            "router": {"port": 0, "host": "127.0.0.1", "http": {"port": 0}},
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
            if importlib.util.find_spec("openai") is not None:
                console.rule("[bold]OpenAI's SDK")
                url = f"http://127.0.0.1:{cluster.routers[0].http_port}/v1"
                with_tool = settings.pools[MODEL].engine is EngineKind.VLLM
                await asyncio.to_thread(ask_with_sdk, url, console, with_tool=with_tool)
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


_TOOL_CODE = """client = OpenAI(base_url="{url}", api_key="none")
client.chat.completions.create(model="demo", messages=..., tools=[look_up], tool_choice="required")"""


def ask_with_sdk(url: str, console: Console, *, with_tool: bool) -> None:
    """Make one call with OpenAI's own SDK. With a tool, the engine's grammar makes the model call it."""
    import openai

    topics = ["batching", "the KV cache", "time to first token"]
    parameters = {
        "type": "object",
        "properties": {"topic": {"enum": topics}},
        "required": ["topic"],
        "additionalProperties": False,
    }
    more: dict[str, Any] = {}
    if with_tool:
        look_up = {"name": "look_up", "description": "Look a topic up.", "parameters": parameters, "strict": True}
        more = {"tools": [{"type": "function", "function": look_up}], "tool_choice": "required"}
        console.print(escape(_TOOL_CODE.format(url=url)), highlight=False, style="dim", soft_wrap=True)
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        found = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the KV cache?"}],
            temperature=0.0,
            max_tokens=64,
            **more,
        )
    choice = found.choices[0]
    for call in choice.message.tool_calls or ():
        if call.type == "function":
            console.print(f"[bold]{escape(call.function.name)}[/]({escape(call.function.arguments)})", highlight=False)
    if choice.message.content:
        console.print(escape(choice.message.content), highlight=False)
    console.print(f"finish_reason: {choice.finish_reason}", highlight=False, style="dim")
