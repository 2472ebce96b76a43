from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from cluster.models import GenerationSpec, SequenceEnd
from deployments.engines.vllm.release import SlotRelease
from deployments.engines.vllm.sequence import VllmSequence
from penstock.models import SamplingParams


class _Engine:
    """Stands in for the slots; a step lasts until `step_over` is set."""

    def __init__(self) -> None:
        self.step_over = asyncio.Event()
        self.stopped: list[list[str]] = []
        self.dead = False

    async def stop(self, internal_ids: Sequence[str]) -> None:
        self.stopped.append(list(internal_ids))

    async def between_steps(self) -> None:
        await self.step_over.wait()
        if self.dead:
            raise RuntimeError("the engine died")


class _Nobody:
    def on_prompt_logprobs(self, *_: object) -> None: ...

    def on_tokens(self, *_: object) -> None: ...

    def on_end(self, end: SequenceEnd) -> None: ...

    def share_at(self, moment: float) -> float:
        return 0.0

    def on_scheduled(self, moment: float) -> float:
        return 0.0

    def on_first_token(self, sequence: VllmSequence) -> None: ...

    def on_preempted(self) -> None: ...

    def on_output_end(self, sequence: VllmSequence) -> None: ...


def sequence(name: str) -> VllmSequence:
    made = VllmSequence(name, GenerationSpec((1,), SamplingParams(1)), _Nobody(), _Nobody(), 0.0)
    made.internal_id = name
    return made


async def test_slot_is_free_only_after_the_running_step() -> None:
    engine, freed = _Engine(), []
    release = SlotRelease(engine, freed.append)
    waiting = asyncio.ensure_future(release.add([sequence("a")]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert engine.stopped == [["a"]]
    assert freed == []
    engine.step_over.set()
    await waiting
    assert [each.sequence_id for each in freed] == ["a"]
    await release.close()


async def test_those_who_come_during_a_round_share_the_next_one() -> None:
    engine, freed = _Engine(), []
    release = SlotRelease(engine, freed.append)
    first = asyncio.ensure_future(release.add([sequence("a")]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(release.add([sequence(name)])) for name in "bcd"]
    engine.step_over.set()
    await asyncio.gather(first, *others)
    assert engine.stopped == [["a"], ["b", "c", "d"]]
    assert len(freed) == 4
    await release.close()


@pytest.mark.parametrize("how", ["death", "close"])
async def test_nobody_waits_for_an_engine_that_is_gone(how: str) -> None:
    engine, freed = _Engine(), []
    release = SlotRelease(engine, freed.append)
    first = asyncio.ensure_future(release.add([sequence("a")]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.ensure_future(release.add([sequence("b")]))
    if how == "death":
        engine.dead = True
        engine.step_over.set()
    else:
        await release.close()
    await asyncio.wait_for(asyncio.gather(first, second), 60)
    assert freed == []
    await release.close()


async def test_a_close_that_is_cancelled_in_the_middle_says_so() -> None:
    release = SlotRelease(_Engine(), [].append)
    waiting = asyncio.ensure_future(release.add([sequence("a")]))
    await asyncio.sleep(0)
    closing = asyncio.create_task(release.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await waiting
