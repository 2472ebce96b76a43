"""A real Chromium before the console, and what a page must not do."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, async_playwright

from tests.support.speed import patience

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS = 15_000


def find_chromium() -> str:
    """Find the browser; without one the test is skipped, but fails where CI is true."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        reason = f"none of {', '.join(NAMES)} is on this machine: the console's page is NOT tested"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@asynccontextmanager
async def running_chromium() -> AsyncIterator[Browser]:
    """Run the browser while the block runs."""
    path = find_chromium()
    async with async_playwright() as driver:
        # Root has no sandbox of its own.
        browser = await driver.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Tab:
    """A tab with the console, and what its browser complains about."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    async def open(self, path: str) -> None:
        """Show a page of the console, such as `usage?days=7`, and wait until it is drawn."""
        await self.page.goto(f"{self.url}/#/{path}")
        await self.page.wait_for_selector("#view h1")

    async def text(self, selector: str = "#view") -> str:
        return await self.page.inner_text(selector)

    async def see(self, words: str, selector: str = "#view") -> Locator:
        """Wait until something that has these words is shown."""
        found = self.page.locator(selector).get_by_text(words).first
        await found.wait_for()
        return found

    async def tile(self, pool: str, name: str) -> str:
        """Return the value of a tile of the overview."""
        return await self.page.locator(f'section[aria-label="{pool}"] [aria-label="{name}"] .value').inner_text()

    async def rows(self, caption: str) -> list[list[str]]:
        """Return the cells of a table."""
        body = self.page.get_by_role("region", name=caption, exact=True).locator("tbody tr")
        await body.first.wait_for()
        script = "rows => rows.map(row => [...row.cells].map(cell => cell.innerText))"
        cells: list[list[str]] = await body.evaluate_all(script)
        return cells

    async def run(self, script: str, *args: Any) -> Any:
        return await self.page.evaluate(script, *args)


@asynccontextmanager
async def open_tab(browser: Browser, url: str, **options: Any) -> AsyncIterator[Tab]:
    """Open a tab. At the end it must have complained about nothing.

    Args:
        browser: that is running.
        url: of the console.
        options: of Playwright's context, such as `color_scheme` and `viewport`.
    """
    context = await browser.new_context(**options)
    context.set_default_timeout(WAIT_MS * patience())
    page = await context.new_page()
    tab = Tab(page, url)
    page.on("console", lambda said: tab.complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: tab.complaints.append(str(error)))
    try:
        yield tab
        assert [] == tab.complaints
    finally:
        await context.close()
