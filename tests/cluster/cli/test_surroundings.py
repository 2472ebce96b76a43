"""Every command that needs no Ray ends, wherever it is started: on a terminal, in a pipe, without any input, under
`nohup`, as a service, and as process 1 of a container.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from tests.support.container import contained
from tests.support.stack import Stack, running_stack
from tests.support.terminal import PENSTOCK, Terminal, run_in_terminal
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

HELD_S = 60.0
LOAD = ("loadtest", "--scenario", "smoke", "--rate", "20", "--prompt-tokens", "24", "--output-tokens", "8")
SHORT = ("--rate", "4", "--duration", "6")
"""A connection may take as long as the test: longer than any halt of the machine."""
needs_locust = pytest.mark.skipif(importlib.util.find_spec("locust") is None, reason="Locust is not installed")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("state"), sim={"base_ms": 1.0}) as running:
        yield running


def target(stack: Stack) -> tuple[str, str]:
    return "--target", f"127.0.0.1:{stack.routers[0].port}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that commands read."""
    (tmp_path / "keys.toml").write_text("")
    (tmp_path / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n")
    body = '{"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}'
    line = f'{{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {body}}}\n'
    (tmp_path / "requests.jsonl").write_text(line)
    (tmp_path / "state" / "run").mkdir(parents=True)
    (tmp_path / "state" / "run" / "redis.log").write_text("ready\n")
    return tmp_path


CALLS = (
    "generate hi --max-tokens 4",
    "status",
    "usage",
    "decisions",
    "operating-point --itl-p95-ms 40",
    "operating-point --from-settings",
    "jobs submit requests.jsonl",
    "jobs list",
)
OTHERS = (
    "config show",
    "config check",
    "config init new.toml",
    "keys list --file keys.toml",
    "keys new --file keys.toml --tenant acme",
    "logs --state-dir state",
    "down --state-dir state",
    "completion bash",
    "simulate --trace trace.csv",
    "profile --engine sim --rounds 1 --out profiles",
    "plan --model llama-3.1-8b --rate 1 --simulate 1 --draws 1 --no-store",
)


def named(words: Sequence[str], folder: Path) -> list[str]:
    """Return the words with the names of files in a folder."""
    files = ("keys.toml", "trace.csv", "requests.jsonl", "new.toml", "state", "profiles")
    return [str(folder / word) if word in files else word for word in words]


@pytest.mark.parametrize("line", CALLS)
async def test_every_call_ends_on_a_terminal(line: str, stack: Stack, folder: Path) -> None:
    words = named(line.split(), folder)
    status, said = await asyncio.to_thread(run_in_terminal, [*words, *target(stack)])
    assert 0 == status, said


async def test_every_command_of_a_job_ends_on_a_terminal(stack: Stack, folder: Path) -> None:
    submit = ["jobs", "submit", str(folder / "requests.jsonl"), "--detach", *target(stack)]
    status, said = await asyncio.to_thread(run_in_terminal, submit)
    assert 0 == status, said
    job = said.split()[-1]
    for action in ("watch", "results", "get", "cancel", "delete"):
        status, said = await asyncio.to_thread(run_in_terminal, ["jobs", action, job, *target(stack)])
        assert 0 == status, f"{action}: {said}"


@pytest.mark.parametrize("line", OTHERS)
async def test_every_other_command_ends_on_a_terminal(line: str, folder: Path) -> None:
    status, said = await asyncio.to_thread(run_in_terminal, named(line.split(), folder))
    assert 0 == status, said


@needs_locust
async def test_a_load_test_ends_on_a_terminal(stack: Stack, folder: Path) -> None:
    """Locust reads keys from a terminal, for which the kernel would stop it: it is in a process group of its own."""
    words = [*LOAD, *SHORT, *target(stack), "--report", str(folder / "out")]
    status, said = await asyncio.to_thread(run_in_terminal, words)
    assert 0 == status, said
    assert "requests/s" in said


@needs_locust
async def test_ctrl_c_on_a_terminal_ends_a_load_test_with_a_report(stack: Stack, folder: Path) -> None:
    words = [*LOAD, "--duration", "300", *target(stack), "--report", str(folder / "out")]
    with Terminal(*PENSTOCK, *words) as terminal:
        await until(lambda: stack.routers[0].pools["demo"].active, HELD_S)
        terminal.type("\x03")
        assert 130 == await asyncio.to_thread(terminal.ended), terminal.said
    assert (folder / "out.json").exists()


@needs_locust
async def test_a_load_test_ends_when_its_terminal_is_closed(stack: Stack, folder: Path) -> None:
    words = [*LOAD, "--duration", "300", *target(stack), "--report", str(folder / "out")]
    with Terminal(*PENSTOCK, *words) as terminal:
        await until(lambda: stack.routers[0].pools["demo"].active, HELD_S)
        family = psutil.Process(terminal.pid).children(recursive=True)
        os.kill(terminal.pid, signal.SIGHUP)
        assert 128 + signal.SIGHUP == await asyncio.to_thread(terminal.ended)
    assert family
    await until(lambda: not any(each.is_running() for each in family), HELD_S)


# --- without a terminal -----------------------------------------------------------------------------------------------


def piped(words: Sequence[str]) -> dict[str, Any]:
    return {"args": words, "stdin": subprocess.PIPE}


def without_input(words: Sequence[str]) -> dict[str, Any]:
    return {"args": ["sh", "-c", 'exec "$@" <&-', "sh", *words]}


def under_nohup(words: Sequence[str]) -> dict[str, Any]:
    return {"args": ["nohup", *words], "stdin": subprocess.DEVNULL}


def as_a_service(words: Sequence[str]) -> dict[str, Any]:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return {"args": words, "stdin": subprocess.DEVNULL, "start_new_session": True, "env": environ}


def in_a_container(words: Sequence[str]) -> dict[str, Any]:
    return {"args": contained(words), "stdin": subprocess.DEVNULL}


Surroundings = Callable[[Sequence[str]], dict[str, Any]]
KINDS = (piped, without_input, under_nohup, as_a_service, in_a_container)


async def run(kind: Surroundings, *words: str) -> tuple[int, str, str]:
    def to_the_end() -> tuple[int, str, str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(**kind([*PENSTOCK, *words]), **pipes) as process:
            out, errors = process.communicate(timeout=HELD_S)
            return process.returncode, out, errors

    return await asyncio.to_thread(to_the_end)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_comes_in_all_surroundings(kind: Surroundings, stack: Stack) -> None:
    status, out, errors = await run(kind, "generate", "hi", "--max-tokens", "4", *target(stack))
    assert 0 == status, errors
    assert out.strip()


@needs_locust
@pytest.mark.parametrize("kind", KINDS)
async def test_a_load_test_ends_in_all_surroundings(kind: Surroundings, stack: Stack, folder: Path) -> None:
    words = [*LOAD, *SHORT, *target(stack), "--report", str(folder / "out"), "--json"]
    status, _, errors = await run(kind, *words)
    assert 0 == status, errors
    assert (folder / "out.json").exists()


@pytest.mark.parametrize("words", [("generate", "-"), ("jobs", "submit", "-"), ("chat",)])
async def test_input_that_is_closed_is_an_error_of_one_line(words: tuple[str, ...], stack: Stack) -> None:
    status, _, errors = await run(without_input, *words, *target(stack))
    assert (2, "penstock: standard input is closed, so there is nothing to read") == (status, errors.strip())


async def test_closed_outputs_do_no_harm(stack: Stack) -> None:
    command = ["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh", *PENSTOCK, "status", *target(stack)]
    ended = await asyncio.to_thread(subprocess.run, command, check=False, timeout=HELD_S)
    assert 0 == ended.returncode


# --- process 1 --------------------------------------------------------------------------------------------------------

ORPHAN = """
import os, subprocess, sys, time
from pathlib import Path
from cluster.cli.first_process import split_off

split_off()
# The child of this shell gets process 1 as its parent, and ends.
subprocess.run(["sh", "-c", "sleep 0.2 & exit"], check=True)
def zombies():
    return [p for p in os.listdir("/proc") if p.isdecimal() and "State:\\tZ" in Path("/proc", p, "status").read_text()]
deadline = time.monotonic() + 30
time.sleep(0.5)
while zombies() and time.monotonic() < deadline:
    time.sleep(0.05)
print(os.getpid(), zombies(), flush=True)
if sys.argv[1] == "wait":
    time.sleep(600)
sys.exit(7)
"""


async def test_process_1_collects_orphans_and_ends_as_the_command_does() -> None:
    run_ = in_a_container([sys.executable, "-c", ORPHAN, "end"])
    ended = await asyncio.to_thread(subprocess.run, **run_, capture_output=True, text=True, timeout=HELD_S)
    number, _, zombies = ended.stdout.strip().partition(" ")
    assert (7, "[]") == (ended.returncode, zombies), ended.stderr
    assert "1" != number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_process_1_passes_signals_on(number: int) -> None:
    def passed() -> int:
        started = in_a_container([sys.executable, "-c", ORPHAN, "wait"])
        with subprocess.Popen(**started, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            # `unshare` ignores these signals while it waits. Its child is process 1.
            [first] = psutil.Process(process.pid).children()
            first.send_signal(number)
            return process.wait(HELD_S)

    assert 128 + number == await asyncio.to_thread(passed)
