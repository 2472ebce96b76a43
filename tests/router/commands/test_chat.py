"""`penstock chat`: by hand on a terminal, and from a pipe."""

from __future__ import annotations

import asyncio
import builtins
import io
import re
import subprocess
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from rich.console import Console

from router.commands import chat
from tests.support.stack import Stack, running_stack
from tests.support.terminal import PENSTOCK, Terminal
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SHORT = ("--max-tokens", "3", "--ignore-eos", "--receipt")
ENDLESS = ("--max-tokens", "20000", "--ignore-eos")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with running_stack(tmp_path_factory.mktemp("state"), sim={"base_ms": 2.0}) as running:
        yield running


def command(stack: Stack, *words: str) -> list[str]:
    return [*PENSTOCK, "chat", "--target", f"127.0.0.1:{stack.routers[0].port}", *words]


async def talk(stack: Stack, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command(stack, *words), input=text, capture_output=True, text=True, check=False)

    return await asyncio.to_thread(run)


def prompts(said: str) -> list[int]:
    """Return the lengths of the prompts that were sent, from the receipts."""
    return [int(each) for each in re.findall(r"tokens in (\d+)", said)]


async def test_each_line_of_a_pipe_is_a_message_of_one_conversation(stack: Stack) -> None:
    lines = ("same", "", "same", "/reset", "same", "/system Answer briefly.", "same", "/quit", "never sent")
    done = await talk(stack, "\n".join(lines), *SHORT)
    assert 0 == done.returncode, done.stderr
    first, second, anew, with_system = prompts(done.stderr)
    # The second prompt has the first message and its answer, too.
    assert second > first + 3
    assert anew == first
    assert with_system > first


async def test_a_message_that_gets_no_answer_fails_the_chat_and_is_not_kept(stack: Stack) -> None:
    done = await talk(stack, f"same\n{'long ' * 40_000}\nsame\n/rset\n", *SHORT)
    assert 1 == done.returncode or 2 == done.returncode
    first, third = prompts(done.stderr)
    assert first + 3 < third < 3 * first + 20
    assert "context" in done.stderr
    assert "unknown command /rset; did you mean /reset?" in done.stderr


async def test_a_person_can_stop_an_answer_and_go_on(stack: Stack) -> None:
    pool = stack.routers[0].pools["demo"]
    # A failed check of gRPC's own ends the process without a word otherwise.
    with Terminal(*command(stack, *ENDLESS), environ={"GRPC_VERBOSITY": "ERROR"}) as terminal:
        at = await asyncio.to_thread(terminal.until, "> ")
        terminal.type("hello\n")
        await until(lambda: bool(pool.active))
        await asyncio.to_thread(lambda: terminal.until("hello", after=at))
        terminal.type("\x03")
        at = await asyncio.to_thread(lambda: terminal.until("stopped", after=at))
        # Leaving the answer cancels the request.
        await until(lambda: not pool.active)
        at = await asyncio.to_thread(lambda: terminal.until("> ", after=at))
        terminal.type("\x03")
        at = await asyncio.to_thread(lambda: terminal.until("/quit or Ctrl-D ends the chat", after=at))
        at = await asyncio.to_thread(lambda: terminal.until("> ", after=at))
        terminal.type("one \\\n")
        at = await asyncio.to_thread(lambda: terminal.until("... ", after=at))
        terminal.type("message\n")
        await until(lambda: bool(pool.active))
        terminal.type("\x03")
        at = await asyncio.to_thread(lambda: terminal.until("stopped", after=at))
        await asyncio.to_thread(lambda: terminal.until("> ", after=at))
        terminal.type("\x04")
        assert 0 == await asyncio.to_thread(terminal.ended), terminal.said


async def test_a_model_that_nobody_serves_is_said_with_the_nearest_one(stack: Stack) -> None:
    done = await talk(stack, "hi\n", "--model", "demoo")
    assert 1 == done.returncode
    assert "model 'demoo' is not served here; known models: demo; did you mean demo?" in done.stderr


class Interrupted:
    """Chat that Ctrl-C meets once in each of its steps."""

    def __init__(self) -> None:
        self.left = ["prompt", "take"]
        self.taken: list[str] = []

    @property
    def prompt(self) -> str:
        self._meet("prompt")
        return "> "

    def take(self, text: str, *, by_hand: bool) -> bool:
        assert by_hand
        self._meet("take")
        self.taken.append(text)
        return True

    def _meet(self, step: str) -> None:
        if step in self.left:
            self.left.remove(step)
            raise KeyboardInterrupt


async def test_ctrl_c_between_two_prompts_does_not_end_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind an answer, and while its message or the next prompt is made."""
    lines: list[str | type[BaseException]] = ["lost", "half \\", KeyboardInterrupt, "whole"]

    def typed(_prompt: str) -> str:
        if not lines:
            raise EOFError
        line = lines.pop(0)
        if not isinstance(line, str):
            raise line
        return line

    monkeypatch.setattr(builtins, "input", typed)
    met, errors = Interrupted(), Console(file=io.StringIO())
    chat._talk(met, errors)  # type: ignore[arg-type]

    assert (["whole"], []) == (met.taken, met.left)
    assert 3 == errors.file.getvalue().count("/quit or Ctrl-D ends the chat")  # type: ignore[attr-defined]
