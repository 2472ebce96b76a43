"""The page of the next hours shows announced load, schedule and plan as the API has them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser

from cluster.autoscaler.autoscaler import Autoscaler, AutoscalerStores
from cluster.control.step_fit import FittedStep
from cluster.control.step_model import StepModel
from penstock.client import AsyncClient
from penstock.values.admin.outlook import PoolOutlook
from tests.router.admin.test_operating_point import Platform
from tests.router.console.browser import Tab, open_tab
from tests.router.console.conftest import running_console
from tests.router.console.test_accessibility import CHECKS
from tests.support.stack import SECRET, Stack, running_stack, sim_pool
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

SCHEDULE = [{"start": "00:00", "end": "00:00", "min_replicas": 2}]
POOLS: dict[str, Any] = {
    "demo": {**sim_pool(), "autoscale": {"mode": "active", "max_replicas": 4, "schedule": SCHEDULE}},
    "other": sim_pool(),
}
SECTIONS = {
    "autoscaler": {"tick_s": 0.2, "lease_s": 60.0},
    "aliases": {"latest": {"targets": [{"model": "demo"}, {"model": "other"}]}},
}


async def looked_ahead(stack: Stack, client: AsyncClient) -> PoolOutlook:
    """Let an autoscaler look at the pool, of whose replicas it knows how long work takes."""
    stores = AutoscalerStores(queue=stack.queue, control=stack.control, announced=stack.announced)
    autoscaler = Autoscaler(stack.settings, SECRET, stores, Platform())
    await autoscaler.start()
    try:
        scaler = autoscaler.scalers["demo"]
        await until(lambda: bool(scaler._leader_state.group))
        fitted = FittedStep(scaler._leader_state.group, StepModel(0.01, 20e-6, 0.02e-6), 5000, 0.02)
        await stack.control("demo").store_fit(fitted.group, fitted.to_json())

        async def drawn() -> bool:
            return bool((await client.outlook("demo")).points)

        await until(drawn)
        return await client.outlook("demo")
    finally:
        await autoscaler.stop()


async def test_the_next_hours_show_announced_load_schedule_and_plan(tmp_path: Path, browser: Browser) -> None:
    async with (
        running_stack(tmp_path, pools=POOLS, sections=SECTIONS) as stack,
        running_console(stack) as console,
        console.client() as client,
        open_tab(browser, console.url) as tab,
    ):
        assert not (await client.outlook("demo")).points
        await tab.open("ahead?pool=demo")
        await tab.see("No autoscaler looks after this pool.")
        end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2)
        shape = {"prompt_tokens": 16, "output_tokens": 16}
        told = await client.announce_load("latest", end=end, requests_per_second=8.0, **shape)
        outlook = await looked_ahead(stack, client)
        # Half of it is for each of the alias' targets.
        [part] = outlook.announced
        assert ("latest", told.id, 4.0, 1.0, 1.0) == (
            *(part.load.pool, part.load.id, part.load.requests_per_second, part.believed, part.weight),
        )
        assert (True, True) == (outlook.announced_decides, outlook.points[0].said > 0)
        await tab.page.reload()
        await check(tab, outlook, told.id)
        for width in (400, 1900):
            await tab.page.set_viewport_size({"width": width, "height": 900})
            assert [] == await tab.run(CHECKS), width


async def check(tab: Tab, outlook: PoolOutlook, load_id: str) -> None:
    """Compare the page with an outlook."""
    [row] = await tab.rows("Announced load")
    assert ["anonymous", load_id, "alias latest"] == row[:3]
    assert ["4 requests/s", "100 %", "not judged yet", "100 %"] == row[5:]
    [row] = await tab.rows("Replicas by schedule")
    assert ["00:00", "00:00", "UTC", "every day", "2 replicas", "now"] == row
    chart = tab.page.locator("svg.layers[role=img]")
    planned = max(outlook.points, key=lambda point: point.planned).planned
    assert f"at most {planned} planned" in str(await chart.get_attribute("aria-label"))
    chart_box, marks = await chart.bounding_box(), tab.page.locator("p.axis span")
    first, last = await marks.first.bounding_box(), await marks.last.bounding_box()
    assert chart_box is not None
    assert first is not None
    assert last is not None
    ends = (chart_box["x"], chart_box["x"] + chart_box["width"])
    assert ends == pytest.approx((first["x"], last["x"] + last["width"]), abs=2), "the hours stand under their places"
    kinds = "found => found.map(each => each.classList[1])"
    assert ["load", "announced"] == await chart.locator(".layer").evaluate_all(kinds)
    assert ["scheduled", "planned"] == await chart.locator(".step").evaluate_all(kinds)
    await tab.page.get_by_text("As a table").click()
    rows = await tab.rows("Replicas by half hour")
    assert [str(point.planned) for point in outlook.points[::6]] == [row[5] for row in rows]
