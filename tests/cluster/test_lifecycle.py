"""What the owners of tasks promise."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from cluster.lifecycle import slept_awake, timeout_awake
from tests.support.halt import answered_in_halt

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_a_process_that_stood_still_knows(loop: str) -> None:
    """Also in the sleep after it, which ends at once on a loop whose time is that of its last turn."""

    async def watch() -> list[tuple[bool, float]]:
        asyncio.get_running_loop().call_later(0.3, time.sleep, 1.5)
        heard = []
        for _ in range(12):
            began = time.monotonic()
            awake = await slept_awake(0.1)
            heard.append((awake, time.monotonic() - began))
        return heard

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        seen = runner.run(watch())
    # Each of its four parts may be half a second late.
    assert all(0.09 <= took < 2.2 for awake, took in seen if awake)
    assert any(not awake and took > 1.0 for awake, took in seen)
    assert any(awake for awake, _ in seen)


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS)
def test_a_halt_of_nearly_all_of_a_sleep_shows(loop: str) -> None:
    """The sleep as a whole is hardly late, but others had no time to be heard."""

    async def watch() -> bool:
        asyncio.get_running_loop().call_later(0.01, time.sleep, 2.2)
        return await slept_awake(2.0)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        assert not runner.run(watch())


@pytest.mark.parametrize("loop", LOOPS)
def test_an_answer_that_came_while_the_process_stood_still_is_in_time(loop: str) -> None:
    """With `asyncio.timeout` it is late: the timer is due before the answer has been read."""

    async def ask() -> str:
        async with timeout_awake(0.2):
            return await answered_in_halt("here", 0.6)

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        assert "here" == runner.run(ask())


@pytest.mark.parametrize("loop", LOOPS)
def test_an_answer_that_never_comes_ends_the_wait(loop: str) -> None:
    async def ask() -> None:
        with pytest.raises(TimeoutError):
            async with timeout_awake(0.05):
                await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(ask())


async def test_a_cancel_is_no_timeout() -> None:
    async def ask() -> None:
        async with timeout_awake(60.0):
            await asyncio.Event().wait()

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
