"""Questions about images: who asks them, how often, and in what order."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.models import ModelInfo
from router.dispatch.pool import Pool
from router.images import expansion
from router.images.expansion import ASKING, ImageTokens
from router.validation import ChatPrompt, Image
from router.validation.values import Message
from tests.support.waiting import until

Size = tuple[int, int]


class Replica:
    """Replica that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Size] = []
        self.may_answer = asyncio.Semaphore(0)

    async def expand_images(self, sizes: Sequence[Size]) -> tuple[tuple[array[int], ...], str]:
        self.asked.append(sizes[0])
        await self.may_answer.acquire()
        return tuple(array("I", [7]) for _ in sizes), ""


def pool_of(replica: Replica) -> Pool:
    replicas = SimpleNamespace(reading=lambda _digest: ["r1"], link=lambda _name: replica)
    return cast("Pool", SimpleNamespace(name="eyes", replicas=replicas))


class Asking:
    """Requests with one image."""

    def __init__(self) -> None:
        self.replica = Replica()
        self._tokens = ImageTokens()
        self._info = cast("ModelInfo", SimpleNamespace(tokenizer_digest="d"))

    def ask(self, size: Size, tenant: str = "a") -> asyncio.Task[Any]:
        prompt = ChatPrompt((Message("user", "", (Image(b"", *size),)),))
        return asyncio.create_task(self._tokens.of(pool_of(self.replica), self._info, prompt, tenant))

    def answer(self, number: int) -> None:
        for _ in range(number):
            self.replica.may_answer.release()


@pytest.fixture
async def asking() -> Asking:
    return Asking()


async def test_a_tenant_with_many_new_sizes_delays_others_by_a_turn(asking: Asking) -> None:
    asked = [asking.ask((100 + number, 100)) for number in range(50)]
    await until(lambda: len(asking.replica.asked) == ASKING)
    other = asking.ask((7, 7), "b")
    await asyncio.sleep(0)
    assert len(asking.replica.asked) == ASKING
    asking.answer(2)
    await until(lambda: len(asking.replica.asked) == ASKING + 2)
    assert (7, 7) in asking.replica.asked
    asking.answer(49)
    await asyncio.gather(*asked, other)


async def test_a_size_that_many_ask_for_is_asked_about_a_few_times(asking: Asking) -> None:
    """Each question is answered by a processing of its own."""
    asked = [asking.ask((100, 100)) for _ in range(50)]
    await until(lambda: len(asking.replica.asked) == ASKING)
    asking.answer(50)
    await asyncio.gather(*asked)
    assert ASKING == len(asking.replica.asked)


async def test_a_question_that_is_given_up_leaves_its_turn(asking: Asking) -> None:
    given_up = [asking.ask((100 + number, 100)) for number in range(2 * ASKING)]
    await until(lambda: len(asking.replica.asked) == ASKING)
    for each in given_up:
        each.cancel()
    asking.answer(1)
    assert [array("I", [7])] == list(await asking.ask((7, 7)))


async def test_what_is_remembered_is_bounded_where_images_have_few_tokens(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A size and its place in memory take more than one token does."""
    monkeypatch.setattr(expansion, "REMEMBERED_TOKENS", 1_000)
    asking.answer(102)
    for number in range(1, 102):
        await asking.ask((number, 1))
    await asking.ask((101, 1))
    assert 101 == len(asking.replica.asked)
    await asking.ask((1, 1))
    assert 102 == len(asking.replica.asked)
