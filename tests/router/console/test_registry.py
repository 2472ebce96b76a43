"""The page of the registry: what it lists, and what admins and a tenant's own operators change with it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from penstock.client import AsyncClient, RegistryEdit
from router.identity.new_key import KeyPlan, add_key
from tests.router.console.browser import Tab, open_tab
from tests.router.console.conftest import Console, running_console
from tests.router.console.test_keys import give
from tests.support.keys import Keys
from tests.support.stack import running_stack, sim_pool
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def guarded(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> AsyncIterator[Console]:
    sections = {"auth": {"keys_file": str(keys.path)}, "tenants": {"acme": {"weight": 2.0}, "zzother": {}}}
    async with (
        running_stack(tmp_path_factory.mktemp("stack"), pools={"demo": sim_pool()}, sections=sections) as stack,
        running_console(stack) as console,
    ):
        yield console


@pytest_asyncio.fixture(loop_scope="session")
async def tab(browser: Browser, guarded: Console) -> AsyncIterator[Tab]:
    async with open_tab(browser, guarded.url) as opened:
        opened.page.on("dialog", lambda dialog: dialog.accept())
        yield opened
        # The browser itself tells of each answer that is no success.
        assert all("40" in each for each in opened.complaints)
        opened.complaints.clear()


async def open_with(tab: Tab, path: str, key: str) -> None:
    """Show a page with a key. Without one there is nothing to show."""
    await tab.page.goto(f"{tab.url}/#/{path}")
    await give(tab, key)
    await tab.page.wait_for_selector("#view h1")


def admin_of(console: Console, keys: Keys) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{console.stack.routers[0].port}", api_key=keys.admin)


async def test_an_admin_makes_changes_and_deletes_an_entry(guarded: Console, keys: Keys, tab: Tab) -> None:
    await open_with(tab, "registry?kind=tenant", keys.admin)
    assert [["acme", "tenant", "weight = 2", "settings"]] == [
        row[:4] for row in await tab.rows("By kind and name") if row[0] == "acme"
    ]
    await tab.page.get_by_text("Tenant, adapter or alias").click()
    await tab.page.get_by_label("Name", exact=True).fill("made")
    await tab.page.get_by_label("Content of the new entry, as JSON").fill('{"weight": 3}')
    await tab.page.get_by_role("button", name="Make", exact=True).click()
    await tab.page.get_by_role("link", name="made").click()
    await tab.page.get_by_label("Content, as JSON").fill('{"weight": 4}')
    await tab.page.get_by_role("button", name="Save").click()
    await tab.see("weight = 4")
    async with admin_of(guarded, keys) as admin:
        (found,) = await admin.registry("tenant", name="made")
        assert {"weight": 4} == found.value
        newest = (await tab.rows("Newest first"))[0]
        assert ["tenant made", "weight = 3", "weight = 4"] == newest[3:]
        assert f"root ({keys.admin.split('_')[1]})" == newest[2]
        await tab.page.get_by_role("link", name="made").click()
        await tab.page.get_by_role("button", name="Delete").click()

        async def gone() -> bool:
            return () == await admin.registry("tenant", name="made")

        await until(gone)


async def test_what_somebody_else_changed_meanwhile_is_not_overwritten(guarded: Console, keys: Keys, tab: Tab) -> None:
    async with admin_of(guarded, keys) as admin:
        await admin.edit_registry([RegistryEdit("tenant", "both", {"weight": 2})])
        await open_with(tab, "registry?kind=tenant&edit=tenant&name=both", keys.admin)
        await tab.page.get_by_label("Content, as JSON").fill('{"weight": 9}')
        # The page reads again each five seconds. Nothing of it may fall in between.
        await tab.page.route("**/api/registry?*", lambda route: route.abort())
        await admin.edit_registry([RegistryEdit("tenant", "both", {"weight": 3})])
        await tab.page.get_by_role("button", name="Save").click()
        await tab.see("REGISTRY_CONFLICT", "#problem")
        assert {"weight": 3} == (await admin.registry("tenant", name="both"))[0].value


async def test_wrong_content_is_named(keys: Keys, tab: Tab) -> None:
    await open_with(tab, "registry?kind=tenant&edit=tenant&name=acme", keys.admin)
    await tab.page.get_by_label("Content, as JSON").fill('{"wight": 4}')
    await tab.page.get_by_role("button", name="Save").click()
    await tab.see("wight: unknown setting", "#problem")
    await tab.page.get_by_label("Content, as JSON").fill("{")
    await tab.page.get_by_role("button", name="Save").click()
    await tab.see("the content is no JSON", "#problem")


async def test_a_tenants_operator_makes_and_revokes_keys_and_sees_no_other_tenant(
    guarded: Console, keys: Keys, tab: Tab
) -> None:
    own = add_key(keys.path, KeyPlan("acme", role="tenant_operator"))
    await guarded.stack.routers[0]._parts.authenticator.refresh()
    await open_with(tab, "registry", own)
    await tab.see("New key")
    assert 0 == await tab.page.get_by_text("Tenant, adapter or alias").count()
    await tab.page.get_by_role("button", name="Make a key").click()
    made = await (await tab.see("psk_")).inner_text()
    async with AsyncClient(f"127.0.0.1:{guarded.stack.routers[0].port}", api_key=made) as client:
        assert "acme" == (await client.whoami()).tenant
        await tab.page.get_by_role("link", name=made.split("_")[1]).click()
        await tab.page.get_by_label("End what it has begun, too").check()
        await tab.page.get_by_role("button", name="Delete").click()

        async def refused() -> bool:
            try:
                await client.whoami()
            except Exception:  # noqa: BLE001 - that it fails is what is waited for
                return True
            return False

        await until(refused)
    assert "zzother" not in await tab.text()


async def test_an_operator_only_reads(keys: Keys, tab: Tab) -> None:
    await open_with(tab, "registry", keys.operator)
    await tab.see("zzother")
    assert 0 == await tab.page.get_by_role("button", name="Make a key").count()
    assert 0 == await tab.page.get_by_role("link", name="zzother").count()
