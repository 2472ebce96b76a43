"""`penstock demo`: start a cluster, answer some questions, stop."""

from __future__ import annotations

import argparse
import asyncio
import importlib.resources
import importlib.util
import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from cluster.bootstrap.state_dir import claimed
from cluster.bootstrap.without_ray import local_cluster
from cluster.lifecycle import stop_signals
from cluster.settings import EngineKind, Settings, load_settings
from cluster.terminal.console import screen
from cluster.terminal.progress import StepDisplay
from cluster.terminal.receipt import print_receipt

if TYPE_CHECKING:
    import openai
    from openai.types.chat.chat_completion import ChatCompletion, Choice

MODEL = "demo"


def run_demo(options: argparse.Namespace) -> int:
    """Start a cluster in a folder of its own, ask it through the public client and OpenAI's SDK, stop everything."""
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
            return asyncio.run(_run(settings, options.prompt, screen()))


async def _run(settings: Settings, prompt: str, console: Console) -> int:
    with stop_signals(_cancel_once()) as stopped_by:
        try:
            return await _demo(settings, prompt, console)
        except asyncio.CancelledError:
            return stopped_by.status


async def _demo(settings: Settings, prompt: str, console: Console) -> int:
    with StepDisplay(console) as display:
        async with local_cluster(settings, display) as cluster:
            console.rule("[bold]chat")
            console.print(f"[bold]{escape(prompt)}[/]", highlight=False)
            # In a thread, because the demo uses the client for applications without asyncio.
            await asyncio.to_thread(ask, cluster.target, prompt, console)
            if importlib.util.find_spec("openai") is not None:
                console.rule("[bold]OpenAI's SDK")
                url = f"http://127.0.0.1:{cluster.routers[0].http_port}/v1"
                pool = settings.pools[MODEL]
                able = pool.engine is EngineKind.VLLM and pool.model == MODEL
                await asyncio.to_thread(ask_with_sdk, url, console, able=able)
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


_CLIENT_CODE = """client = OpenAI(base_url="{url}", api_key="none")"""
_TOOL_CODE = """client.chat.completions.create(model="demo", messages=messages, tools=[get_weather])"""
_THINK_CODE = """client.chat.completions.create(model="demo", messages=..., reasoning_effort="low")"""
_TOOL_QUESTION = "Do I need an umbrella in Oslo?"
_THINK_QUESTION = "Why do latency and throughput conflict?"
_WEATHER = {"Berlin": "cloudy", "Cairo": "sunny", "London": "foggy", "Oslo": "rainy", "Tokyo": "windy"}
"""What the tool of the demo tells. No service is asked: the demo needs no network."""


def ask_with_sdk(url: str, console: Console, *, able: bool) -> None:
    """Make calls with OpenAI's own SDK. A model that is able may call a tool, and thinks before an answer."""
    import openai

    console.print(escape(_CLIENT_CODE.format(url=url)), highlight=False, style="dim", soft_wrap=True)
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        if not able:
            _show(_ask(client, "What is the KV cache?", console), console)
            return
        _let_it_call(client, console)
        console.print(f"\n{escape(_THINK_CODE)}", highlight=False, style="dim", soft_wrap=True)
        _show(_ask(client, _THINK_QUESTION, console, reasoning_effort="low"), console)


def _ask(client: openai.OpenAI, question: str, console: Console, **more: Any) -> Choice:
    console.print(f"[bold]{escape(question)}[/]", highlight=False)
    messages: Any = [{"role": "user", "content": question}]
    return _complete(client, messages, **more)


def _complete(client: openai.OpenAI, messages: Any, **more: Any) -> Choice:
    asked: dict[str, Any] = {"model": MODEL, "temperature": 0.0, "max_tokens": 128, **more}
    found: ChatCompletion = client.chat.completions.create(messages=messages, **asked)
    return found.choices[0]


def _let_it_call(client: openai.OpenAI, console: Console) -> None:
    """Ask what only the tool knows, run the tool, and give its result back. The model decides whether it calls."""
    tools = [json.loads((importlib.resources.files("deployments.demo_model") / "weather.json").read_text("utf-8"))]
    console.print(escape(_TOOL_CODE), highlight=False, style="dim", soft_wrap=True)
    choice = _ask(client, _TOOL_QUESTION, console, tools=tools)
    if not choice.message.tool_calls:
        _show(choice, console)
        return
    messages = [{"role": "user", "content": _TOOL_QUESTION}, choice.message.model_dump(exclude_none=True)]
    for call in choice.message.tool_calls:
        if call.type == "function":
            said = _weather(call.function.arguments)
            console.print(f"{escape(call.function.name)}({escape(call.function.arguments)})", highlight=False, end=" ")
            console.print(f"gives {escape(said)!r}", highlight=False, style="dim")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
    _show(_complete(client, messages, tools=tools), console)


def _weather(arguments: str) -> str:
    """Run the tool. What the model got wrong is its result."""
    try:
        return _WEATHER[json.loads(arguments)["city"]]
    except (KeyError, ValueError, TypeError) as error:
        return f"error: {error}"


def _show(choice: Choice, console: Console) -> None:
    # Fields that OpenAI's API does not name are there all the same.
    if reasoning := getattr(choice.message, "reasoning", None):
        console.print(f"[dim]thinks:[/] [italic]{escape(reasoning)}[/]", highlight=False)
    if choice.message.content:
        console.print(escape(choice.message.content), highlight=False)
    console.print(f"finish_reason: {choice.finish_reason}", highlight=False, style="dim")
