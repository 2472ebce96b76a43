"""`penstock top` in a real terminal, on a cluster of real routers and replicas with simulated engines."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from router.build import build_router
from tests.support.ports import free_port
from tests.support.stack import SECRET, Stack, request, running_stack, sim_pool
from tests.support.terminal import PENSTOCK, Terminal
from tests.support.waiting import until

pytestmark = pytest.mark.slow

POOL = {
    **sim_pool(base_ms=4.0, max_num_seqs=8),
    "slo": {"standard": {"itl_p95_s": 0.5}},
    "control": {"period_s": 0.1},
    "price_per_gpu_hour": 2.5,
}
_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """A terminal of a given size, and the picture that it shows now."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.terminal._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def lines(self) -> list[str]:
        """Lines of the newest whole picture; each picture begins at the top left and ends by clearing the rest."""
        whole = self.terminal.said.rpartition("\x1b[J")[0]
        return [_SEQUENCE.sub("", line).rstrip() for line in whole.rpartition("\x1b[H")[2].split("\r\n")]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    async def until(self, *texts: str) -> str:
        await until(lambda: all(each in self.text for each in texts) or self.terminal._process.poll() is not None)
        assert all(each in self.text for each in texts), self.text
        return self.text


@contextlib.asynccontextmanager
async def cluster(folder: Path, **fields: object) -> AsyncIterator[Stack]:
    async with running_stack(folder, replicas=2, pools={"demo": {**POOL, "replicas": 2, **fields}}) as stack:
        yield stack


@contextlib.asynccontextmanager
async def top(stack: Stack, *flags: str, environ: dict[str, str] | None = None) -> AsyncIterator[Screen]:
    words = [*PENSTOCK, "top", "--target", f"127.0.0.1:{stack.routers[0].port}", "--every", "0.2", *flags]
    with Terminal(*words, environ=environ) as terminal:
        screen = Screen(terminal)
        screen.resize(80, 24)
        yield screen


async def test_a_cluster_is_shown_live(tmp_path: Path) -> None:
    async with cluster(tmp_path) as stack, top(stack) as screen:
        await screen.until("demo-r0", "demo-r1", "2/2", "live")
        await asyncio.gather(*(stack.inference().Generate(request(max_tokens=64, ignore_eos=True)) for _ in range(16)))
        text = await screen.until("in all 100.0 % of 16")
        assert "standard: 100.0 % of 99 %; ITL 500 ms" in text
        assert re.search(r"demo-r0 +ready +\d+/8 +\d+ % +[\d.]+ +[\d.]+/500 ", text)


async def test_keys_choose_sort_pause_and_look_into_a_replica(tmp_path: Path) -> None:
    async with cluster(tmp_path) as stack, top(stack) as screen:
        await screen.until("> demo-r0")
        screen.terminal.type("j")
        await screen.until("> demo-r1")
        screen.terminal.type("\r")
        await screen.until("replica demo-r1", "its start took")
        screen.terminal.type("\x1b")
        await screen.until("> demo-r1")
        screen.terminal.type("ss")
        await screen.until("sort: running")
        screen.terminal.type("?")
        await screen.until("turn the order round")
        screen.terminal.type("?3")
        await screen.until("no autoscaler has looked after this pool")
        screen.terminal.type("p")
        await screen.until("paused")
        screen.terminal.type("q")
        assert 0 == screen.terminal.ended()


async def test_the_picture_follows_the_size_of_the_terminal(tmp_path: Path) -> None:
    async with cluster(tmp_path) as stack, top(stack) as screen:
        await screen.until("demo-r1")
        assert 24 == len(screen.lines)
        assert "ADDRESS" not in screen.text
        screen.resize(200, 40)
        await screen.until("ADDRESS", "HARDWARE")
        assert 40 == len(screen.lines)
        screen.resize(40, 8)
        await until(lambda: 8 == len(screen.lines))
        assert all(len(each) <= 40 for each in screen.lines)


async def test_a_router_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    """The last picture stays, with the reason."""
    async with cluster(tmp_path) as stack, top(stack) as screen:
        await screen.until("demo-r1", "live")
        port = stack.routers[0].port
        await stack.routers.pop(0).stop(drain_s=0.0)
        text = await screen.until("no answer for", "this is the last picture")
        assert "demo-r1" in text
        router = build_router(stack.settings, SECRET, stack.factory(), port=port)
        await router.start()
        stack.routers.append(router)
        await screen.until("live", "demo-r1", router.router_id)


async def test_the_terminal_is_given_back(tmp_path: Path) -> None:
    """After a key, Ctrl-C and a signal: cursor and screen are there, and what is typed is seen again."""
    async with cluster(tmp_path) as stack:
        for end in ("q", "\x03", signal.SIGTERM):
            async with top(stack) as screen:
                before = termios.tcgetattr(screen.terminal._ours)
                await screen.until("demo-r1")
                assert before != termios.tcgetattr(screen.terminal._ours)
                if isinstance(end, str):
                    screen.terminal.type(end)
                else:
                    os.kill(screen.terminal.pid, end)
                await asyncio.to_thread(screen.terminal.ended)
                assert before == termios.tcgetattr(screen.terminal._ours)
                assert screen.terminal.said.rstrip().endswith("\x1b[?25h\x1b[?1049l")


async def test_without_colour_no_colour_is_sent(tmp_path: Path) -> None:
    async with cluster(tmp_path) as stack, top(stack, environ={"NO_COLOR": "1"}) as screen:
        await screen.until("demo-r1", "live")
        assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", screen.terminal.said)


async def test_one_picture_for_a_pipe_has_all_columns_and_no_control_characters(tmp_path: Path) -> None:
    async with cluster(tmp_path) as stack:
        done = await run("top", "--target", f"127.0.0.1:{stack.routers[0].port}")
        assert (0, "") == (done.returncode, done.stderr)
        assert {"HARDWARE", "ADDRESS", "demo-r0", "demo-r1", "5.00"} <= set(done.stdout.split())
        assert "\x1b" not in done.stdout
        assert "q end" not in done.stdout


async def test_a_router_that_was_never_there_is_an_error(tmp_path: Path) -> None:
    done = await run("top", "--once", "--target", f"127.0.0.1:{free_port()}")
    assert (1, "") == (done.returncode, done.stdout)
    assert "nothing listens there" in done.stderr


async def run(*words: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run, [sys.executable, *PENSTOCK[1:], *words], capture_output=True, text=True, check=False
    )
