"""Names, roles, contrast, keyboard and widths of every page, in both themes."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.router.console.browser import Tab, open_tab
from tests.router.console.conftest import Console
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

PAGES = (
    "overview",
    "replicas",
    "line",
    "requests",
    "autoscaler",
    "ahead",
    "jobs",
    "usage",
    "models",
    "registry",
    "playground",
    "plan",
)
WIDTHS = (400, 800, 1900)

CHECKS = Path(__file__).with_name("checks.js").read_text(encoding="utf-8").partition("\n")[2]


@pytest_asyncio.fixture(scope="module", loop_scope="session", autouse=True)
async def _something_to_show(console: Console) -> None:
    async with console.client() as client:
        await client.generate("demo", "What is Penstock?", max_tokens=4)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
async def test_a_page_can_be_read_and_used_by_everybody(
    console: Console, browser: Browser, page: str, theme: str
) -> None:
    async with open_tab(browser, console.url, color_scheme=theme) as tab:
        await tab.open(page)
        for width in WIDTHS:
            await tab.page.set_viewport_size({"width": width, "height": 900})
            assert [] == await tab.run(CHECKS), width


async def test_the_checks_find_what_is_wrong(tab: Tab) -> None:
    await tab.open("overview")
    await tab.run(
        """() => {
          const button = document.createElement("button");
          const input = document.createElement("input");
          const text = document.createElement("p");
          text.textContent = "pale";
          text.style.color = "#bbb";
          document.getElementById("view").append(button, input, text, document.createElement("h1"));
        }"""
    )
    found = " ".join(await tab.run(CHECKS))
    for words in ("no name: <button", "no label: <input", "contrast", "not one h1"):
        assert words in found


async def test_everything_can_be_done_with_the_keyboard(tab: Tab) -> None:
    await tab.open("jobs")
    await tab.page.keyboard.press("Tab")
    assert "Skip to content" == await tab.run("() => document.activeElement.textContent")
    await tab.page.keyboard.press("Enter")
    assert ["main", "Jobs"] == [await tab.run("() => document.activeElement.id"), await tab.text("h1")]
    await tab.open("overview")
    await tab.page.reload()
    await tab.page.wait_for_selector("#view h1")
    seen = []
    for _ in range(20):
        await tab.page.keyboard.press("Tab")
        seen.append(await tab.run("() => document.activeElement.textContent.trim()"))
        if seen[-1] == "Models":
            break
    assert ["Overview", "Replicas"] == [each for each in seen if each in ("Overview", "Replicas")]
    outline = await tab.run("() => getComputedStyle(document.activeElement).outlineStyle")
    assert "solid" == outline
    await tab.page.keyboard.press("Enter")
    await tab.page.get_by_role("heading", name="Models", level=1).wait_for()
    assert "main" == await tab.run("() => document.activeElement.id")
    assert "page" == await tab.page.get_by_role("link", name="Models").get_attribute("aria-current")


async def test_a_page_that_is_drawn_again_keeps_the_focus(tab: Tab) -> None:
    await tab.open("autoscaler?pool=demo")
    await tab.page.get_by_text("Change it").click()
    budget = tab.page.get_by_label("Budget per hour")
    await budget.fill("12")
    drawn = "() => performance.getEntriesByType('resource').filter(each => each.name.includes('/api/decisions')).length"
    before = await tab.run(drawn)

    async def twice() -> bool:
        return bool(await tab.run(drawn) > before + 1)

    await until(twice)
    assert "12" == await budget.input_value()
    assert "point-budget" == await tab.run("() => document.activeElement.id")


async def test_the_theme_can_be_chosen_and_is_kept(tab: Tab) -> None:
    await tab.open("overview")
    back = "() => getComputedStyle(document.body).backgroundColor"
    light = await tab.run(back)
    button = tab.page.get_by_role("button", name="Theme")
    await button.click()
    await button.click()
    assert "Theme: dark" == await button.inner_text()
    assert light != await tab.run(back)
    await tab.page.reload()
    await tab.page.wait_for_selector("#view h1")
    assert light != await tab.run(back)
