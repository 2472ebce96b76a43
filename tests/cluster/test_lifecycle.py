"""What the owners of tasks promise."""

from __future__ import annotations

import asyncio
import time

import pytest
import uvloop

from cluster.lifecycle import slept_awake

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
    assert all(0.09 <= took < 1.0 for awake, took in seen if awake)
    assert any(not awake and took > 1.0 for awake, took in seen)
    assert any(awake for awake, _ in seen)
