"""Every page shows what the API says."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, Route

from cluster.autoscaler.autoscaler import Autoscaler, AutoscalerStores
from cluster.rollout.redis.store import rollout_key
from penstock.client import AsyncClient, ClassSlo, GenerateOptions, OperatingPoint, RequestClass, RolloutAction
from penstock.values.jobs import JobItem
from penstock.values.status.line import LineEntry
from tests.router.admin.test_operating_point import Platform
from tests.router.console.browser import Tab, open_tab
from tests.router.console.conftest import Console, running_console
from tests.support.stack import SECRET, running_stack, sim_pool
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


async def test_the_overview_shows_running_requests_replicas_and_tokens(console: Console, tab: Tab) -> None:
    await tab.open("overview")
    async with console.client() as client:
        stream = client.stream("demo", "What is Penstock?", max_tokens=20_000, ignore_eos=True)
        async with stream:
            events = aiter(stream)
            await anext(events)
            await until(lambda: is_tile(tab, "Running", "1"))
            assert "2" == await tab.tile("demo", "Replicas")
            assert "0" == await tab.tile("demo", "Waiting")
            await until(lambda: has_rate(tab))
            assert "0" == await tab.tile("other", "Running")
    await until(lambda: is_tile(tab, "Running", "0"))


async def is_tile(tab: Tab, name: str, value: str) -> bool:
    return value == await tab.tile("demo", name)


async def has_rate(tab: Tab) -> bool:
    text = await tab.tile("demo", "Output tokens per second")
    return text[0].isdigit() and text != "0"


async def test_the_overview_shows_a_roll_out_its_steps_and_its_judgement(console: Console, tab: Tab) -> None:
    """The console's own replicas are not started again, so it does not reach the new revision."""
    group = 'section[aria-label="tools"] [aria-label="Roll-out"]'
    async with console.client() as client:
        assert await client.rollout("tools") is None
        await tab.open("overview")
        assert 0 == await tab.page.locator(group).count()
        begun = await client.start_rollout("tools", {"sim": {"max_num_seqs": 8}})
        await tab.see(f"Roll-out from revision {begun.old_revision} to {begun.new_revision} rolling", group)
        await tab.see("sim.max_num_seqs = 8", group)
        await tab.see("begun by anonymous", group)
        rows = await tab.rows("Judgement")
        assert sorted(each.replica_id for each in begun.replicas) == sorted(row[0] for row in rows)
        assert {"serves", "finishes its requests"} >= {row[2] for row in rows}
        await client.change_rollout("tools", RolloutAction.GO_BACK)
        await tab.see("Back because: asked for by anonymous", group)
        found = await client.rollout("tools")
        assert found is not None
        # It is over at once where no replica had begun to make room.
        await tab.see(f"to {begun.new_revision} {'going back' if found.state.active else 'returned'}", group)
    for router in console.stack.routers:
        # Other tests have a pool without one.
        book = router._parts.rollouts.pools["tools"].book
        book._known = type(book._known)(0, None, 0)
    console.stack.store.execute("DEL", rollout_key("tools"))


async def test_the_map_shows_each_replica_with_its_batch(console: Console, tab: Tab) -> None:
    await tab.open("replicas")
    async with console.client() as client:

        async def shown() -> bool:
            """Limits move as replicas learn, so the page may have an older one."""
            for pool in (await client.cluster_status()).pools:
                boxes = await tab.page.locator(f'section[aria-label="{pool.name}"] .replica').all_inner_texts()
                found = {text.split("\n")[0]: text for text in boxes}
                assert found.keys() == {each.replica_id for each in pool.replicas}
                assert all("ready" in text for text in boxes)
                if not all(f"of {each.batch_limit}\n" in found[each.replica_id] for each in pool.replicas):
                    return False
            return True

        await until(shown)


async def test_the_map_says_why_the_queue_and_a_replica_are_not_reached(tab: Tab) -> None:
    async def cut_off(route: Route) -> None:
        answer = await route.fetch()
        body = await answer.json()
        pool = next(each for each in body["status"]["pools"] if each["name"] == "demo")
        pool |= {"reachable": False, "unreachable_reason": "the queue does not answer: timed out"}
        pool["replicas"][0] |= {"linked": False, "link_error": "no route to it"}
        await route.fulfill(response=answer, json=body)

    await tab.page.route("**/api/status", cut_off)
    await tab.open("replicas")
    pool = 'section[aria-label="demo"]'
    await tab.see("The numbers below are old: the queue does not answer: timed out", pool)
    await tab.see("No link: no route to it", f"{pool} .replica >> nth=0")
    assert 1 == await tab.page.get_by_text("No link: ").count()
    await tab.page.unroute_all(behavior="ignoreErrors")


async def test_decisions_have_steps_reasons_and_counterfactuals(console: Console, tab: Tab) -> None:
    stack = console.stack
    stores = AutoscalerStores(queue=stack.queue, control=stack.control)
    autoscaler = Autoscaler(stack.settings, SECRET, stores, Platform())
    await autoscaler.start()
    try:
        async with console.client() as client:
            await until(lambda: autoscaler.scalers["demo"].record is not None)
            await client.generate("demo", "What is Penstock?", max_tokens=40, ignore_eos=True)
            made = (await client.decisions("demo")).decisions[-1]
    finally:
        await autoscaler.stop()
    await tab.open(f"autoscaler?pool=demo&decision={made.number}")
    await tab.see(f"Decision {made.number},")
    text = await tab.text()
    assert made.reason in text
    for step in made.steps:
        assert step.reason in text
    for other in made.counterfactuals:
        assert f"Without {other.without.replace('_', ' ')}: " in text
    assert "interactive: first token in 60 s (p99)" in text
    async with console.client() as client:
        numbers = [str(each.number) for each in (await client.decisions("demo", limit=120)).decisions]
    await tab.open("autoscaler?pool=demo&all=1")
    assert numbers == [row[0] for row in await tab.rows("Newest first")]


async def test_an_admin_changes_the_operating_point(console: Console, tab: Tab) -> None:
    await tab.open("autoscaler?pool=demo")
    await tab.page.get_by_text("Change it").click()
    await tab.page.get_by_label("interactive: TTFT p99, s").fill("2.5")
    await tab.page.get_by_label("Budget per hour").fill("40")
    await tab.page.get_by_role("button", name="Change", exact=True).click()
    await tab.see("first token in 2.50 s")
    async with console.client() as client:
        found = await client.decisions("demo")
        assert found.operating_point_set
        assert (2.5, 20.0) == (
            found.operating_point.interactive.ttft_p99_s,
            found.operating_point.interactive.itl_p95_s,
        )
        assert (40.0, 3.0) == (found.operating_point.budget_per_hour, found.operating_point.price_per_gpu_hour)
        assert 60.0 == found.operating_point.standard.ttft_p99_s
    await tab.page.get_by_role("button", name="Return to the settings").click()
    await tab.see("from the settings")
    async with console.client() as client:
        assert not (await client.decisions("demo")).operating_point_set


async def test_a_request_is_a_waterfall_of_what_is_explained(console: Console, tab: Tab) -> None:
    async with console.client() as client:
        made = await client.generate("demo", "What is Penstock?", max_tokens=20, ignore_eos=True, n=2)

        async def kept() -> bool:
            return any(each.request_id == made.request_id for each in await client.requests(all_tenants=True))

        await until(kept)
        found = await client.explain(made.request_id)
    await tab.open("requests?pool=demo")
    row = next(row for row in await tab.rows("Newest first") if row[0] == made.request_id)
    assert ["demo", "anonymous", "standard"] == row[2:5]
    assert "40" == row[9]
    await tab.page.get_by_role("link", name=made.request_id).click()
    await tab.see(found.summary)
    (call,) = found.calls
    bars = tab.page.locator(".waterfall li")
    names = await bars.locator(".fall-name").all_inner_texts()
    assert ["admission", "choice 0, attempt 1", "choice 1, attempt 1"] == [
        name.partition(" demo")[0] for name in names[:3]
    ]
    for number, choice in enumerate(call.choices):
        (attempt,) = choice.attempts
        assert attempt.replica_id in names[1 + number]
        widths = await bars.nth(1 + number).locator("rect.kind-decode").get_attribute("width")
        part = (attempt.ended_at - attempt.first_token_at) / call.total_time
        assert float(widths) == pytest.approx(1000 * part, abs=2)
    legend = await tab.text(".legend")
    assert [name for name, time in found.parts if time > 0] == [
        each.strip().split()[0] for each in legend.splitlines() if each.strip()
    ]


async def test_only_missed_requests_are_listed_where_asked_for(console: Console, tab: Tab) -> None:
    async with console.client() as client:
        await client.generate("demo", "What is Penstock?", max_tokens=2)
        tight = OperatingPoint(interactive=ClassSlo(ttft_p99_s=1e-6), price_per_gpu_hour=3.0)
        await client.set_operating_point("demo", tight)
        point = console.stack.routers[0].pools["demo"].admission.demand
        await until(lambda: point.point == tight)
        urgent = GenerateOptions(request_class=RequestClass.INTERACTIVE)
        late = await client.generate("demo", "What is Penstock?", options=urgent, max_tokens=2)
        await client.set_operating_point("demo", None)

        async def kept() -> bool:
            return any(each.request_id == late.request_id for each in await client.requests(missed=True))

        await until(kept)
    await tab.open("requests")
    await tab.page.get_by_label("only missed or failed").check()
    rows = await tab.rows("Missed their SLO or failed, newest first")
    assert [late.request_id, "missed TTFT"] == [rows[0][0], rows[0][5]]
    assert all(row[5] != "met" for row in rows)
    await tab.page.get_by_label("Find by id").fill(f"chatcmpl-{late.request_id}")
    await tab.page.keyboard.press("Enter")
    await tab.see("missed TTFT")


async def test_an_unknown_request_is_named(tab: Tab) -> None:
    await tab.page.goto(f"{tab.url}/#/requests/nothing")
    await tab.see("REQUEST_NOT_FOUND", "#problem")
    # The browser says so too.
    assert ["404"] == [each.partition("status of ")[2][:3] for each in tab.complaints]
    tab.complaints.clear()


async def test_jobs_are_listed_with_their_progress(console: Console, tab: Tab) -> None:
    async with console.client() as client:
        items = [JobItem(str(number), "What is Penstock?", {"max_tokens": 2}) for number in range(3)]
        job = await client.submit_job("demo", items)
        async for _ in client.watch_job(job.job_id, progress_only=True):
            pass
        done = await client.get_job(job.job_id)
    await tab.open("jobs")
    row = next(row for row in await tab.rows("Newest first") if row[0] == job.job_id)
    assert ["demo", "succeeded"] == row[1:3]
    assert row[3].startswith("3 of 3")
    assert str(done.usage.output_tokens) == row[6]


async def test_usage_adds_up_to_the_ledger(console: Console, tab: Tab) -> None:
    async with console.client() as client:
        await client.generate("other", "What is Penstock?", max_tokens=5, ignore_eos=True)

        async def counted() -> bool:
            return any(line.pool == "other" for line in (await client.usage(all_tenants=True)).lines)

        await until(counted)
        lines = (await client.usage(all_tenants=True)).lines
    await tab.open("usage?days=7")
    (row,) = await tab.rows("Most first")
    assert "anonymous" == row[0]
    assert f"{sum(line.requests for line in lines):,}" == row[2]
    assert f"{sum(line.gpu_seconds for line in lines):.1f}" == row[6]
    by_day = await tab.rows("Newest first")
    async with console.client() as client:
        hours = (await client.costs()).lines
    spent = await tab.rows("GPU seconds by hour, newest first")
    assert {line.pool for line in hours} == {each[1] for each in spent}
    for cells in spent:
        total, *parts = (float(cell.replace(",", "")) for cell in cells[2:9])
        assert total == pytest.approx(sum(parts), rel=0.05, abs=1.0)
    assert {line.pool for line in lines} == {row[1] for row in by_day}


async def test_models_show_context_and_features(console: Console, tab: Tab) -> None:
    async with console.client() as client:
        demo, *_ = await client.list_models()
    await tab.open("models")
    text = await tab.page.locator('section[aria-label="demo"]').inner_text()
    assert f"{demo.max_context_tokens:,} tokens" in text
    assert "2 replicas" in text
    assert "logprobs" in text
    assert "structured output" not in text
    await tab.page.locator('section[aria-label="demo"] a').click()
    await tab.page.wait_for_selector("#play-text")
    assert "demo" == await tab.page.input_value("#play-model")


async def test_a_model_of_vectors_is_shown_without_what_only_generations_have(browser: Browser, tmp_path: Path) -> None:
    pools = {"vectors": {**sim_pool(), "task": "embed"}}
    async with (
        running_stack(tmp_path, pools=pools) as stack,
        running_console(stack) as console,
        open_tab(browser, console.url) as tab,
    ):
        await tab.open("models")
        await tab.see("vector size")
        text = await tab.text()
        assert "embed" in text
        assert not [words for words in ("chat", "Engines can", "Not known", "playground") if words in text]


async def entries(client: AsyncClient) -> tuple[LineEntry, ...]:
    pools = {pool.name: pool for pool in (await client.cluster_status()).pools}
    return pools["other"].line


async def test_the_line_shows_who_waits_and_who_runs(console: Console, browser: Browser) -> None:
    """A replica with a full batch makes requests wait."""
    options = GenerateOptions(request_class=RequestClass.BATCH)
    async with open_tab(browser, console.url) as tab, console.client() as client:
        await tab.open("line")
        streams = [
            client.stream("other", "What is Penstock?", None, options, max_tokens=20_000, ignore_eos=True)
            for _ in range(140)
        ]
        readers = [aiter(stream) for stream in streams]
        try:
            for reader in readers:
                await anext(reader)

            async def waits() -> bool:
                return any(entry.waiting for entry in await entries(client))

            await until(waits)
            await tab.see("anonymous", 'section[aria-label="other"]')

            async def shown() -> bool:
                rows = await tab.page.locator('section[aria-label="other"] tbody tr').all_inner_texts()
                cells = [row.split("\t")[:4] for row in rows]
                return cells == [
                    [entry.tenant, entry.request_class.name.lower(), f"{entry.waiting:,}", f"{entry.running:,}"]
                    for entry in await entries(client)
                ]

            await until(shown)
        finally:
            for stream in streams:
                await stream.aclose()


@pytest.mark.parametrize("page", ["overview", "replicas", "line", "autoscaler", "ahead"])
async def test_a_page_of_pools_says_that_a_key_may_see_none(tab: Tab, page: str) -> None:
    async def hide(route: Route) -> None:
        answer = await route.fetch()
        body = await answer.json()
        body["status"]["pools"] = []
        await route.fulfill(response=answer, json=body)

    await tab.page.route("**/api/status", hide)
    await tab.open(page)
    await tab.see("This key may see no pool.")
    await tab.page.unroute_all(behavior="ignoreErrors")
