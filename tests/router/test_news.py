"""News reach the one who waits for them, and a waiter that leaves is no trouble."""

from __future__ import annotations

import asyncio

import pytest

from router.news import News


async def test_who_waits_hears_of_news() -> None:
    news = News()
    waiting = asyncio.create_task(news.wait())
    await asyncio.sleep(0)
    assert not news.is_set()
    assert not waiting.done()
    news.set()
    news.set()
    await waiting
    assert news.is_set()
    await news.wait()
    news.clear()
    assert not news.is_set()


async def test_a_waiter_that_is_cancelled_makes_room_for_the_next() -> None:
    news = News()
    left = asyncio.create_task(news.wait())
    await asyncio.sleep(0)
    left.cancel()
    # In the same turn as the cancel.
    news.set()
    with pytest.raises(asyncio.CancelledError):
        await left
    news.clear()
    waiting = asyncio.create_task(news.wait())
    await asyncio.sleep(0)
    news.set()
    await waiting


async def test_a_second_waiter_is_an_error() -> None:
    news = News()
    first = asyncio.create_task(news.wait())
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="another caller"):
        await news.wait()
    news.set()
    await first
