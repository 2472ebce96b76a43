"""Takes the pictures of the console for its manual, and measures the page. `make console-pictures` runs it.

A cluster of simulated engines in this process has tenants, too few replicas for its load, and an autoscaler whose
decisions change nothing. The console is a process of its own. Chromium shows it.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from PIL import Image
from playwright.async_api import Browser, Page, async_playwright

from cluster.autoscaler.actuator import Actual
from cluster.autoscaler.autoscaler import Autoscaler, AutoscalerStores
from penstock.client import AsyncClient, GenerateOptions, PenstockClientError, RequestClass
from router.identity.new_key import KeyPlan, add_key
from tests.support.stack import SECRET, Stack, running_stack, sim_pool
from tests.support.waiting import until

PICTURES = Path(__file__).resolve().parent / "pictures"
PENSTOCK = (sys.executable, "-m", "cluster.cli.main")
SLO = {"interactive": {"ttft_p99_s": 1.5, "itl_p95_s": 0.2}, "standard": {"ttft_p99_s": 4.0}}
NOW = datetime.datetime.now(datetime.UTC)


def hour(ahead: float) -> str:
    """Return the time of day in so many hours."""
    return f"{NOW + datetime.timedelta(hours=ahead):%H:%M}"


POOLS: dict[str, Any] = {
    name: {
        **sim_pool(base_ms=base_ms, max_num_seqs=most, answer=answer),
        "price_per_gpu_hour": 2.5,
        "slo": SLO,
        "autoscale": {"mode": "advisory", "max_replicas": 4, **ahead},
    }
    for name, base_ms, most, ahead, answer in (
        (
            "chat",
            60.0,
            6,
            {},
            "<think>They ask about the name.</think>A pipe that carries water to a turbine.",
        ),
        (
            "small",
            25.0,
            64,
            {"mode": "active", "schedule": [{"start": hour(1), "end": hour(3), "min_replicas": 3}]},
            "<think>A short question.</think>A penstock carries water from a reservoir to the turbines.",
        ),
    )
}
LOADS = (
    *[("acme", RequestClass.INTERACTIVE, "chat", 60)] * 8,
    *[("globex", RequestClass.STANDARD, "chat", 80)] * 8,
    *[("initech", RequestClass.BATCH, "chat", 80)] * 4,
    *[("acme", RequestClass.INTERACTIVE, "small", 40)] * 2,
)
CHANCE = random.Random(1)  # noqa: S311 - no secret
WARM_S = 45.0
MEASURED_S = 20.0


class Unmoved:
    """A platform that has two replicas, whatever number it gets."""

    async def look(self, pool: str) -> Actual:
        return Actual(2, 2)

    async def scale(self, pool: str, replicas: int) -> None:
        """Do nothing: so the pools have too few replicas for their loads."""


async def load(target: str, key: str, request_class: RequestClass, pool: str, most: int) -> None:
    """Ask one question after the other."""
    options = GenerateOptions(request_class=request_class)
    async with AsyncClient(target, api_key=key) as client:
        while True:
            with suppress(PenstockClientError):
                prompt = "What is Penstock? " * CHANCE.randint(1, 8)
                await client.generate(
                    pool, prompt, options=options, max_tokens=CHANCE.randint(10, most), ignore_eos=True
                )


@asynccontextmanager
async def console(target: str, folder: Path) -> AsyncIterator[tuple[str, psutil.Process]]:
    """Run the console; yield its address and its process."""
    ready = folder / "console.json"
    process = await asyncio.create_subprocess_exec(
        *PENSTOCK, "console", "--target", target, "--port", "0", "--ready-file", str(ready)
    )
    try:
        await until(ready.exists)
        fields = json.loads(ready.read_text(encoding="utf-8"))
        yield f"http://127.0.0.1:{fields['port']}", psutil.Process(fields["pid"])
    finally:
        process.terminate()
        await process.wait()


async def new_page(browser: Browser, url: str, key: str, path: str, **options: Any) -> Page:
    """Open a page with a key."""
    context = await browser.new_context(**options)
    await context.add_init_script(f"sessionStorage.setItem('penstock-key', {key!r})")
    page = await context.new_page()
    await page.goto(f"{url}/#/{path}")
    await page.wait_for_selector("#view h1")
    return page


async def take(browser: Browser, url: str, key: str) -> None:
    """Take the pictures."""
    wide: dict[str, Any] = {"viewport": {"width": 1200, "height": 760}, "color_scheme": "light"}
    page = await new_page(browser, url, key, "overview", **wide)
    await asyncio.sleep(20.0)
    await keep(page, "overview")
    page = await new_page(browser, url, key, "requests?missed=1&pool=chat", **wide)
    await page.locator("tbody a").first.click()
    await page.wait_for_selector(".waterfall")
    await keep(page, "request")
    page = await new_page(browser, url, key, "autoscaler?pool=chat", **{**wide, "color_scheme": "dark"})
    await page.set_viewport_size({"width": 1200, "height": 1080})
    await keep(page, "autoscaler")
    page = await new_page(browser, url, key, "ahead?pool=small", **wide)
    await page.set_viewport_size({"width": 1200, "height": 1180})
    await keep(page, "ahead")
    page = await new_page(browser, url, key, "playground?model=chat", **wide)
    await page.select_option("#play-other", "small")
    await page.fill("#play-text", "What is a penstock?")
    await page.press("#play-text", "Enter")
    await page.locator(".said .facts").nth(1).wait_for(timeout=120_000)
    await keep(page, "playground")


async def keep(page: Page, name: str) -> None:
    """Take the picture of what a page shows, with few colours, because it has few."""
    picture = PICTURES / f"console-{name}.png"
    await page.screenshot(path=picture)
    with Image.open(picture) as image:
        image.convert("RGB").quantize(128).save(picture, optimize=True)
    await page.context.close()


async def measure(browser: Browser, url: str, key: str, process: psutil.Process) -> None:
    """Print the time to the first paint, and the CPU that one open page costs."""
    paints = []
    for _ in range(5):
        page = await new_page(browser, url, key, "overview")
        script = "performance.getEntriesByType('paint').find(each => each.name === 'first-contentful-paint').startTime"
        paints.append(await page.evaluate(script))
        await page.context.close()
    print(f"first paint, ms: {', '.join(f'{each:.0f}' for each in sorted(paints))}")
    print(f"console process: {process.memory_info().rss >> 20} MiB")
    for path in ("overview", "replicas", "line", "requests", "autoscaler", "ahead"):
        idle = await used(process)
        page = await new_page(browser, url, key, path)
        await asyncio.sleep(3.0)
        busy, shown = await asyncio.gather(used(process), rendered(page))
        print(f"{path}: console {busy - idle:.1%} of a core, its tab {shown:.1%}")
        await page.context.close()


async def used(process: psutil.Process) -> float:
    """Return the part of a core that a process uses."""
    before, began = process.cpu_times(), time.monotonic()
    await asyncio.sleep(MEASURED_S)
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - began)


async def rendered(page: Page) -> float:
    """Return the part of a core that the page's own work uses: scripts, styles, layout and painting."""
    session = await page.context.new_cdp_session(page)
    await session.send("Performance.enable", {"timeDomain": "threadTicks"})

    async def task_s() -> float:
        found = await session.send("Performance.getMetrics")
        return float(next(each["value"] for each in found["metrics"] if each["name"] == "TaskDuration"))

    before = await task_s()
    await asyncio.sleep(MEASURED_S)
    return (await task_s() - before) / MEASURED_S


async def run(folder: Path) -> None:
    file = folder / "keys.toml"
    keys = {name: add_key(file, KeyPlan(name)) for name in ("acme", "globex", "initech")}
    operator = add_key(file, KeyPlan("ops", role="operator"))
    sections = {"auth": {"keys_file": str(file)}, "autoscaler": {"tick_s": 3.0, "lease_s": 9.0}}
    async with running_stack(folder / "state", replicas=2, pools=POOLS, sections=sections) as stack:
        target = f"127.0.0.1:{stack.routers[0].port}"
        await announce(target, keys["globex"])
        autoscaler = await leading(stack)
        loads = [asyncio.create_task(load(target, keys[name], *rest)) for name, *rest in LOADS]  # type: ignore[arg-type]
        try:
            async with console(target, folder) as (url, process), async_playwright() as driver:
                path = shutil.which("chromium")
                browser = await driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
                await asyncio.sleep(WARM_S)
                await take(browser, url, operator)
                if "--measure" in sys.argv:
                    await measure(browser, url, operator, process)
                await browser.close()
        finally:
            for each in loads:
                each.cancel()
            await asyncio.gather(*loads, return_exceptions=True)
            await autoscaler.stop()


async def announce(target: str, key: str) -> None:
    """Announce load of an hour and a half."""
    start, end = (NOW + datetime.timedelta(hours=ahead) for ahead in (3.5, 5))
    async with AsyncClient(target, api_key=key) as client:
        await client.announce_load(
            "small", start=start, end=end, requests_per_second=2.0, prompt_tokens=40, output_tokens=40
        )


async def leading(stack: Stack) -> Autoscaler:
    """Start an autoscaler."""
    stores = AutoscalerStores(queue=stack.queue, control=stack.control, announced=stack.announced)
    autoscaler = Autoscaler(stack.settings, SECRET, stores, Unmoved())
    await autoscaler.start()
    return autoscaler


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(run(Path(name)))
