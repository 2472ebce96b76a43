"""The playground: answers as they come, their receipts, two models, and hostile text."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import expect

from tests.router.console.browser import Tab
from tests.router.console.conftest import Console
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def ask(tab: Tab, text: str, most: int = 12) -> None:
    await tab.page.fill("#play-most", str(most))
    await tab.page.fill("#play-text", text)
    await tab.page.press("#play-text", "Enter")


async def test_an_answer_comes_with_its_receipt(tab: Tab) -> None:
    await tab.open("playground?model=demo")
    await tab.page.wait_for_selector("#play-text")
    await ask(tab, "What is Penstock?")
    await tab.see("ended: ")
    text = await tab.text(".said.model")
    for name in ("first token", "prefill", "decode", "GPU time", "cost", "replica", "request"):
        assert name in text
    assert "12 out" in text
    assert await tab.page.locator(".said.model .text").last.inner_text()
    # The conversation goes on.
    await ask(tab, "And then?")
    await until(lambda: answers(tab, 2))


async def test_the_focus_goes_back_to_the_text_unless_it_went_elsewhere(tab: Tab) -> None:
    await tab.open("playground?model=other")
    send, halt = (tab.page.get_by_role("button", name=name, exact=True) for name in ("Send", "Stop"))
    for place, expected in (("#play-temperature", "#play-temperature"), ("", "#play-text")):
        await tab.page.fill("#play-most", "400")
        await tab.page.fill("#play-text", "What is Penstock?")
        await send.press("Enter")
        await expect(halt).to_be_enabled()
        if place:
            await tab.page.focus(place)
            await expect(halt).to_be_enabled()
            await halt.dispatch_event("click")
        else:
            await halt.press("Enter")
        await expect(send).to_be_enabled()
        await expect(tab.page.locator(expected)).to_be_focused()


async def answers(tab: Tab, number: int) -> bool:
    return number == await tab.page.locator(".said.model .facts").count()


async def test_two_models_answer_side_by_side(tab: Tab) -> None:
    await tab.open("playground?model=demo")
    await tab.page.select_option("#play-other", "other")
    await ask(tab, "What is Penstock?")
    await until(lambda: answers(tab, 2))
    assert ["demo", "other"] == await tab.page.locator(".pane h2").all_inner_texts()
    boxes = [await pane.bounding_box() for pane in await tab.page.locator(".pane").all()]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[0]["y"] == boxes[1]["y"]


async def test_reasoning_and_tools_are_shown_and_results_go_back(tab: Tab) -> None:
    await tab.open("playground?model=tools")
    await tab.page.get_by_text("System message and tools").click()
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    await tab.page.fill("#play-tools", json.dumps([tool]))
    await ask(tab, "Weather?", most=200)
    await tab.see("ended: tool calls")
    assert "I look it up." == (await tab.page.locator(".said.model > .text").inner_text()).strip()
    assert "I need the weather." in (await tab.page.locator(".reasoning").text_content() or "")
    assert ['get_weather({"city": "Oslo"})'] == await tab.page.locator(".calls code").all_inner_texts()
    await tab.page.get_by_label("Result of get_weather").fill("Snow")
    await tab.page.get_by_role("button", name="Send results").click()
    await until(lambda: answers(tab, 2))
    assert "Snow" in await tab.text(".log")


async def test_stop_ends_the_request_in_the_cluster(console: Console, tab: Tab) -> None:
    await tab.open("playground?model=other")
    await ask(tab, "What is Penstock?", most=30_000)
    pool = console.stack.routers[0].pools["other"]
    await until(lambda: pool.beat is not None and pool.beat.running == 1)
    await tab.page.get_by_role("button", name="Stop").click()
    await tab.see("stopped")
    await until(lambda: pool.beat is not None and pool.beat.running == 0)


async def test_the_log_follows_the_answer_until_its_reader_scrolls_up(tab: Tab) -> None:
    await tab.page.set_viewport_size({"width": 360, "height": 300})
    await tab.open("playground?model=other")
    await ask(tab, "What is Penstock?", most=30_000)

    async def hidden() -> int:
        """Return the pixels of the log below those that are shown."""
        left: int = await tab.run("() => { const log = document.querySelector('.log'); "
                                  "return log.scrollHeight - log.scrollTop - log.clientHeight; }")  # fmt: skip
        return left

    async def height() -> int:
        found: int = await tab.run("() => document.querySelector('.log').scrollHeight")
        return found

    shown = await height()
    await until(lambda: height_above(height, shown + 200))
    assert await hidden() < 40
    await tab.run("() => { document.querySelector('.log').scrollTop = 0; }")
    shown = await height()
    await until(lambda: height_above(height, shown + 60))
    assert 0 == await tab.run("() => document.querySelector('.log').scrollTop")
    await tab.page.get_by_role("button", name="Stop").click()
    await tab.see("stopped")


async def height_above(height: Callable[[], Awaitable[int]], bound: int) -> bool:
    return await height() > bound


async def test_leaving_the_page_ends_the_request(console: Console, tab: Tab) -> None:
    await tab.open("playground?model=other")
    await ask(tab, "What is Penstock?", most=30_000)
    pool = console.stack.routers[0].pools["other"]
    await until(lambda: pool.beat is not None and pool.beat.running == 1)
    await tab.open("overview")
    await until(lambda: pool.beat is not None and pool.beat.running == 0)


async def test_hostile_text_is_shown_and_never_runs(tab: Tab) -> None:
    hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    await tab.open("playground?model=demo")
    await ask(tab, hostile, most=2)
    await tab.see("ended: ")
    assert hostile == await tab.text(".said.user .text")
    assert 0 == await tab.page.locator("#view img, #view script").count()
    assert "owned" not in await tab.page.title()
    # Even a mistake in the page's own code could not make text run.
    blocked = "() => { try { document.body.innerHTML = '<b>x</b>'; return false; } catch (error) { return true; } }"
    assert await tab.run(blocked)
    assert any("TrustedHTML" in each or "Trusted" in each for each in tab.complaints)
    tab.complaints.clear()


async def test_wrong_tools_are_named_and_nothing_is_sent(tab: Tab) -> None:
    await tab.open("playground?model=demo")
    await tab.page.get_by_text("System message and tools").click()
    await tab.page.fill("#play-tools", "{")
    await ask(tab, "What is Penstock?")
    await tab.see("Tools: ", "#problem")
    assert 0 == await tab.page.locator(".said").count()
