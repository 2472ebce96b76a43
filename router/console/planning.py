"""What-ifs of the planner: `penstock plan` in a process of its own, because it computes for seconds."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import sys
import tempfile
from typing import Any

from aiohttp import web

from router.console.answers import answer
from router.console.bodies import field, optional_number, read_body
from router.console.caller import CLIENT
from router.console.reads import TIMEOUT_S

_NEEDED = ("loadtest", "numpy", "lupa")
_PLAN_S = 300.0
"""Longest time of a plan, seconds."""
_NICE = 10
_QUICK = ("--simulate", "2", "--draws", "3")
"""Less than the command does by itself: somebody waits before the page."""
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""A model or an accelerator by its well-known name; never a path."""
_PROGRAM = re.compile(r"^(error|penstock( plan)?): (argument )?")
_NUMBERS = {
    "rate": "--rate",
    "prompt_tokens": "--prompt-tokens",
    "output_tokens": "--output-tokens",
    "slo_ttft": "--slo-ttft",
    "slo_itl": "--slo-itl",
    "slo_tpot": "--slo-tpot",
    "confidence": "--confidence",
    "prefix_hit": "--prefix-hit",
    "attainment": "--attainment",
}
MOST_GPUS = 8


def planner_installed() -> bool:
    """Return whether the extra with the planner is installed."""
    return all(importlib.util.find_spec(name) is not None for name in _NEEDED)


class PlanRoutes:
    """Handlers of plans. One runs at a time."""

    def __init__(self) -> None:
        self._running = asyncio.Lock()

    def add_to(self, app: web.Application) -> None:
        app.router.add_post("/api/plan", self.plan)

    async def plan(self, request: web.Request) -> web.StreamResponse:
        """Plan for a load."""
        words = _words(await read_body(request))
        # Whoever may call the cluster may use this machine's time.
        await request.app[CLIENT].list_models(timeout=TIMEOUT_S)
        if self._running.locked():
            raise web.HTTPTooManyRequests(reason="another plan is being made: try again in a moment")
        async with self._running:
            return answer(await _run(words))


def _words(body: dict[str, Any]) -> list[str]:
    """Return the flags of `penstock plan`.

    Raises:
        ValueError: a name is none.
        TypeError: a field is of another type.
    """
    gpus = [_word("gpus", each) for each in field(body, "gpus", list, ["h100"])]
    if not 1 <= len(gpus) <= MOST_GPUS:
        raise ValueError(f"gpus: must have 1 to {MOST_GPUS} names, got {len(gpus)}")
    words = ["--model", _word("model", field(body, "model", str, "")), "--gpu", ",".join(gpus)]
    for name, flag in _NUMBERS.items():
        value = optional_number(body, name)
        if value is not None:
            words += [flag, repr(value)]
    prices = field(body, "prices", dict, {})
    for gpu in prices:
        price = optional_number(prices, gpu)
        if price is not None:
            words += ["--price", f"{_word('prices', gpu)}={price!r}"]
    return words


def _word(name: str, value: object) -> str:
    if not isinstance(value, str) or _WORD.fullmatch(value) is None:
        raise ValueError(f"{name}: must be a well-known name, such as llama-3.1-8b or h100, got {str(value)[:80]!r}")
    return value


async def _run(words: list[str]) -> Any:
    """Run the command and return its result.

    Raises:
        ValueError: the command refuses its flags; has its words.
    """
    command = [sys.executable, "-m", "cluster.cli.main", "plan", *words, "--json", "--no-store", *_QUICK]
    # In an empty folder no name is that of a file.
    with tempfile.TemporaryDirectory(prefix="penstock-plan-") as folder:
        process = await asyncio.create_subprocess_exec(
            *command,
            "--state-dir",
            folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
        )
        try:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
            async with asyncio.timeout(_PLAN_S):
                found, said = await process.communicate()
        except TimeoutError:
            raise web.HTTPGatewayTimeout(reason=f"the plan took longer than {_PLAN_S:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if found.strip():
        return json.loads(found)
    raise ValueError(_complaint(said.decode(errors="replace")))


def _complaint(said: str) -> str:
    """Return the command's words for a mistake, without the program's name and the pointer to its help."""
    lines = [line for line in said.strip().splitlines() if not line.startswith("see `")]
    last = lines[-1] if lines else "the planner said nothing"
    return _PROGRAM.sub("", last).replace("--", "")
