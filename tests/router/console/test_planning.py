"""What-ifs of the planner in the page."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest
from playwright.async_api import Route, expect

from tests.router.console.browser import Tab
from tests.router.console.conftest import Console
from tests.router.console.test_guard import JSON
from tests.support.speed import patience

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

ASKED = {"model": "llama-3.1-8b", "gpus": ["h100"], "rate": 2.0}


# The command gives way to everything else on the machine: seconds alone, minutes beside other tests.
@pytest.mark.alone
async def test_a_plan_is_that_of_the_command(tab: Tab) -> None:
    await tab.open("plan")
    await tab.page.fill("#plan-rate", "2")
    await tab.page.get_by_label("h200").uncheck()
    await tab.page.get_by_role("button", name="Plan", exact=True).click()
    await tab.page.get_by_role("heading", name="Plan", exact=True).wait_for(timeout=60_000 * patience())
    (row,) = [each for each in await tab.rows(BEST) if each[0].startswith("1 x h100")][:1]
    assert ["1 x h100, bf16", "1", "1"] == row[:3]
    assert "2.50" == row[4]
    changes = [each[0] for each in await tab.rows("On paper: a direction, not a promise")]
    assert {"weights in fp8", "h200"} <= set(changes)


BEST = "Simulated, best first; ranges are those of the engine's speed"


async def test_the_button_keeps_the_focus_of_a_keyboard(tab: Tab) -> None:
    seen = asyncio.Event()

    async def refuse(route: Route) -> None:
        await seen.wait()
        await route.fulfill(status=400, json={"error": "not now"})

    await tab.page.route("**/api/plan", refuse)
    await tab.open("plan")
    button = tab.page.get_by_role("button", name="Plan", exact=True)
    await button.press("Enter")
    await expect(button).to_be_disabled()
    seen.set()
    await expect(button).to_be_enabled()
    await expect(button).to_be_focused()
    tab.complaints.clear()
    await tab.page.unroute_all(behavior="ignoreErrors")


async def test_the_load_and_slo_of_a_pool_fill_the_form(console: Console, tab: Tab) -> None:
    async with console.client() as client:
        demo, *_ = (await client.cluster_status()).pools
    await tab.open("plan")
    await tab.page.select_option("#plan-from", "demo")
    assert demo.operating_point.interactive.ttft_p99_s == float(await tab.page.input_value("#plan-ttft"))
    assert 3.0 == float(await tab.page.input_value("#plan-price"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"model": "../../etc"}, "model: must be a well-known name"),
        ({"model": "/etc/passwd"}, "model: must be a well-known name"),
        ({"model": "--help"}, "model: must be a well-known name"),
        ({"gpus": ["h100,h200"]}, "gpus: must be a well-known name"),
        ({"gpus": []}, "gpus: must have 1 to 8 names"),
        ({"rate": "much"}, "rate: must be a number"),
        ({"model": "nobody-knows"}, "nobody-knows"),
        ({"rate": -1.0}, "rate"),
        ({"prices": {"h100": "x"}}, "h100: must be a number"),
    ],
    ids=str,
)
async def test_bad_input_is_named(console: Console, changed: dict[str, object], words: str) -> None:
    body = json.dumps({**ASKED, **changed})
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{console.url}/api/plan", data=body, headers=JSON) as answer,
    ):
        assert (400, True) == (answer.status, words in (await answer.json())["error"])


async def test_one_plan_is_made_at_a_time(console: Console) -> None:
    """One that the command refuses after a second or two, because a whole plan takes a busy machine a minute."""

    async def ask() -> int:
        body = json.dumps({**ASKED, "model": "nobody-knows"})
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{console.url}/api/plan", data=body, headers=JSON) as answer,
        ):
            return answer.status

    assert [400, 429] == sorted(await asyncio.gather(ask(), ask()))
