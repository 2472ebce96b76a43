"""What users, operators and admins see, each with a key of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from penstock.client import AsyncClient, RegistryEdit
from router.identity.key import key_id, mint_key
from tests.router.console.browser import Tab, open_tab
from tests.router.console.conftest import Console, running_console
from tests.support.keys import Keys
from tests.support.stack import running_stack, sim_pool
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> AsyncIterator[Console]:
    sections = {"auth": {"keys_file": str(keys.path)}}
    folder = tmp_path_factory.mktemp("stack")
    async with (
        running_stack(folder, pools={"demo": sim_pool()}, sections=sections) as stack,
        running_console(stack) as console,
    ):
        for key in (keys.acme, keys.other):
            async with AsyncClient(f"127.0.0.1:{stack.routers[0].port}", api_key=key) as client:
                made = await client.generate("demo", "What is Penstock?", max_tokens=2)

                async def kept(client: AsyncClient = client, request_id: str = made.request_id) -> bool:
                    return any(each.request_id == request_id for each in await client.requests())

                await until(kept)
        yield console


@pytest_asyncio.fixture(loop_scope="session")
async def tab(browser: Browser, guarded: Console) -> AsyncIterator[Tab]:
    async with open_tab(browser, guarded.url) as opened:
        yield opened
        # The browser itself tells of each answer that is no success.
        assert all("401" in each or "403" in each for each in opened.complaints)
        opened.complaints.clear()


async def give(tab: Tab, key: str) -> None:
    await tab.page.get_by_role("button", name="API key", exact=False).first.click()
    await tab.page.get_by_label("Key", exact=True).fill(key)
    await tab.page.keyboard.press("Enter")
    await tab.page.get_by_role("button", name="API key: ").wait_for()


async def test_without_a_key_the_page_asks_for_one_and_keeps_it_in_the_tab(tab: Tab, keys: Keys) -> None:
    await tab.page.goto(tab.url)
    await tab.see("UNAUTHENTICATED", "#problem")
    await tab.page.get_by_role("button", name="Enter an API key").click()
    await tab.page.get_by_label("Key", exact=True).fill(keys.operator)
    await tab.page.get_by_role("button", name="Use this key").click()
    await tab.page.get_by_role("heading", name="Overview").wait_for()
    assert "1" == await tab.tile("demo", "Replicas")
    await tab.page.reload()
    await tab.page.get_by_role("heading", name="Overview").wait_for()
    stored = await tab.run("() => [JSON.stringify(localStorage), document.cookie, location.href].join()")
    assert keys.operator not in stored
    await tab.page.get_by_role("button", name="API key: ops (operator)").click()
    await tab.see(f"You are tenant ops, role operator, API key {key_id(keys.operator)}.", "#ask-who")
    await tab.page.get_by_role("button", name="Forget the key").click()
    await tab.see("UNAUTHENTICATED", "#problem")
    assert keys.operator not in await tab.run("() => JSON.stringify(sessionStorage)")


async def test_a_user_sees_its_own_tenant_only(tab: Tab, keys: Keys) -> None:
    await tab.page.goto(tab.url)
    await give(tab, keys.acme)
    await tab.see("Your tenant's requests")
    links = await tab.page.get_by_role("navigation").get_by_role("link").all_inner_texts()
    assert ["Requests", "Jobs", "Usage", "Models", "Playground", "Planner"] == links
    assert {"acme"} == {row[3] for row in await tab.rows("Newest first")}
    await tab.open("usage")
    await tab.see("What your tenant used")
    assert ["acme"] == [row[0] for row in await tab.rows("Most first")]
    await tab.open("models")
    await tab.see("demo")
    await tab.page.goto(f"{tab.url}/#/replicas")
    await tab.see("PERMISSION_DENIED", "#problem")


async def test_a_key_that_is_revoked_while_the_page_is_open_is_told_and_not_tried_again_and_again(
    tab: Tab, guarded: Console, keys: Keys
) -> None:
    asked: list[str] = []
    async with AsyncClient(f"127.0.0.1:{guarded.stack.routers[0].port}", api_key=keys.admin) as admin:
        made = await admin.create_key("ops", role="operator")
        await tab.page.goto(tab.url)
        await give(tab, made.key)
        await tab.page.get_by_role("button", name="API key: ops (operator)").wait_for()
        await tab.see("Running")
        await admin.edit_registry([RegistryEdit("key", made.id, None)])
    await tab.see("This API key is no longer accepted.", "#problem")
    await tab.see("What is shown is from ", "#problem")
    assert "not live" == await tab.text("#live")
    await tab.page.get_by_role("button", name="API key: not accepted").wait_for()
    tab.page.on("request", lambda request: asked.append(request.url))
    # Routers count each call as one with a wrong key. The page asks every 3 s after other errors.
    await asyncio.sleep(4.0)
    assert [] == asked
    await tab.page.get_by_role("button", name="Use another API key").click()
    await tab.page.get_by_label("Key", exact=True).fill(keys.operator)
    await tab.page.get_by_role("button", name="Use this key").click()
    await tab.page.get_by_role("button", name="API key: ops (operator)").wait_for()
    await until(lambda: is_live(tab))
    assert "" == await tab.text("#problem")


async def is_live(tab: Tab) -> bool:
    return "live" == await tab.text("#live")


async def test_a_key_that_was_never_right_is_told_as_that(tab: Tab) -> None:
    await tab.page.goto(tab.url)
    await give(tab, mint_key())
    await tab.see("This API key is not accepted.", "#problem")


async def test_the_playground_offers_the_classes_of_the_key(tab: Tab, keys: Keys) -> None:
    await tab.page.goto(tab.url)
    await give(tab, keys.narrow)
    await tab.open("playground")
    options = tab.page.get_by_label("Class").locator("option")
    await options.first.wait_for(state="attached")
    assert ["batch"] == await options.all_inner_texts()


async def test_an_operator_sees_all_and_changes_nothing(tab: Tab, keys: Keys) -> None:
    await tab.page.goto(tab.url)
    await give(tab, keys.operator)
    await tab.open("requests")
    assert {"acme", "other"} == {row[3] for row in await tab.rows("Newest first")}
    await tab.open("autoscaler")
    await tab.see("Operating point")
    assert 0 == await tab.page.get_by_text("Change it").count()
    await give(tab, keys.admin)
    await tab.page.get_by_text("Change it").wait_for()
