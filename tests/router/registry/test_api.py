"""Calls on the registry, over the real port of two routers."""

from __future__ import annotations

import asyncio
import datetime
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from cluster.cli.main import main
from cluster.errors import SettingsError
from penstock.client import (
    AsyncClient,
    ConflictError,
    GenerateOptions,
    InvalidArgumentError,
    JobItem,
    NewKey,
    NotFoundError,
    PenstockClientError,
    PermissionDeniedError,
    QuotaExceededError,
    RegistryEdit,
    UnauthenticatedError,
)
from router.commands.registry.tables import read_file
from tests.support.keys import Keys
from tests.support.stack import Stack, running_stack, sim_pool
from tests.support.waiting import until

POET = GenerateOptions(lora_adapter="poet")
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("patient_registry")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys") / "keys.toml")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> AsyncIterator[Stack]:
    sections = {
        "auth": {"keys_file": str(keys.path)},
        "tenants": {"declared": {"weight": 2.0}, "pinned": {"weight": 3.0}},
        "registry": {"fixed": ["tenant/pinned"]},
    }
    pools = {"demo": sim_pool(), "large": sim_pool()}
    async with running_stack(tmp_path_factory.mktemp("stack"), routers=2, pools=pools, sections=sections) as running:
        yield running


def client(stack: Stack, key: str, router: int = 0) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{stack.routers[router].port}", api_key=key, allow_plaintext_key=True)


def tenant(name: str, **value: Any) -> RegistryEdit:
    return RegistryEdit("tenant", name, value)


def alias(name: str, *models: str, weight: float = 1) -> RegistryEdit:
    return RegistryEdit("alias", name, {"targets": [{"model": model, "weight": weight} for model in models]})


async def test_an_alias_is_in_force_at_every_router_when_the_call_returns(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as admin, client(stack, keys.other, 1) as other:
        for model in ("demo", "large"):
            assert () == (await admin.edit_registry([alias("fast", model, weight=0.5)])).behind
            assert model == (await other.generate("fast", "x", max_tokens=1)).receipt.model
        assert {"demo", "fast", "large"} == {each.name for each in await other.list_models()}
        await admin.edit_registry([RegistryEdit("alias", "fast", None)])
        with pytest.raises(NotFoundError, match="'fast'"):
            await other.generate("fast", "x", max_tokens=1)


async def test_an_alias_names_only_adapters_that_are_there(stack: Stack, keys: Keys, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    poet = RegistryEdit("adapter", "poet", {"pool": "demo", "source": str(tmp_path)})
    verse = RegistryEdit("alias", "verse", {"targets": [{"model": "demo", "adapter": "poet"}]})
    away = {**(poet.value or {}), "pool": "large"}
    async with client(stack, keys.admin) as admin, client(stack, keys.other, 1) as other:
        with pytest.raises(InvalidArgumentError, match=r"targets\[0\]\.adapter: .*'demo': which has none; got 'poet'"):
            await admin.edit_registry([verse])
        await admin.edit_registry([verse, poet])
        assert "poet" == (await other.generate("verse", "x", max_tokens=1)).receipt.lora_adapter
        for value in (None, away):
            with pytest.raises(InvalidArgumentError, match=r"edits\[0\]\.name: alias 'verse' sends requests"):
                await admin.edit_registry([RegistryEdit("adapter", "poet", value)])
        await admin.edit_registry([poet])
        await admin.edit_registry([RegistryEdit("adapter", "poet", None), RegistryEdit("alias", "verse", None)])
        await admin.edit_registry([poet, verse])
        await admin.edit_registry([RegistryEdit("adapter", "poet", None)], force=True)
        with pytest.raises(InvalidArgumentError, match="poet"):
            await other.generate("verse", "x", max_tokens=1)
        await admin.edit_registry([RegistryEdit("alias", "verse", None)])


async def test_items_of_a_job_fail_and_say_so_when_their_alias_is_deleted(stack: Stack, keys: Keys) -> None:
    items = [JobItem(f"q{number}", "Question?", {"max_tokens": 40, "ignore_eos": True}) for number in range(600)]
    async with client(stack, keys.admin) as admin, client(stack, keys.other, 1) as other:
        await admin.edit_registry([alias("brief", "demo")])
        job, problems = await other.submit_job("brief", items), set[str]()
        async for update in other.watch_job(job.job_id):
            if any(result.completion is not None for result in update.results):
                await admin.edit_registry([RegistryEdit("alias", "brief", None)])
            problems |= {str(result.error) for result in update.results if result.error is not None}
            job = update.job
        assert job.succeeded_items
        assert job.failed_items
        assert all("'brief'" in each for each in problems), problems


async def test_a_tenants_quota_is_in_force_at_every_router_when_the_call_returns(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as admin, client(stack, keys.other, 1) as other:
        await other.generate("demo", "x", max_tokens=1)
        result = await admin.edit_registry([tenant("other", quota={"requests_per_minute": 1})])
        assert () == result.behind
        assert [("other", None)] == [(one.name, one.before) for one in result.differences]
        await other.generate("demo", "x", max_tokens=1)
        with pytest.raises(QuotaExceededError):
            await other.generate("demo", "x", max_tokens=1)
        await admin.edit_registry([RegistryEdit("tenant", "other", None)])
        await other.generate("demo", "x", max_tokens=1)


async def test_a_tenants_models_and_classes_narrow_its_keys(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as admin, client(stack, keys.acme, 1) as acme:
        await admin.edit_registry([tenant("acme", models=["large"], classes=["standard"])])
        assert ("large",) == (await acme.whoami()).models
        with pytest.raises(PermissionDeniedError, match="allowed: large"):
            await acme.generate("demo", "x", max_tokens=1)
        await admin.edit_registry([RegistryEdit("tenant", "acme", None)])
        assert ("demo", "large") == (await acme.whoami()).models


async def test_the_settings_are_the_beginning_and_come_back(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as admin:
        (found,) = await admin.registry("tenant", name="declared")
        assert ({"weight": 2.0}, 0, None, False) == (found.value, found.version, found.changed_at, found.fixed)
        result = await admin.edit_registry([tenant("declared", weight=5)])
        assert [({"weight": 2}, {"weight": 5})] == [(dict(a.before or {}), a.after) for a in result.differences]
        (found,) = await admin.registry("tenant", name="declared")
        assert ({"weight": 5}, result.version) == (found.value, found.version)
        assert abs((datetime.datetime.now(datetime.UTC) - (found.changed_at or found)).total_seconds()) < 3600  # type: ignore[operator]
        await admin.edit_registry([RegistryEdit("tenant", "declared", None)])
        assert {"weight": 2} == (await admin.registry("tenant", name="declared"))[0].value


async def test_a_fixed_entry_is_the_settings_alone(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as admin:
        assert (await admin.registry("tenant", name="pinned"))[0].fixed
        with pytest.raises(InvalidArgumentError, match=r"tenant 'pinned' is fixed by the setting registry\.fixed"):
            await admin.edit_registry([tenant("pinned", weight=9)])


@pytest.mark.parametrize(
    ("edits", "problem"),
    [
        ([], r"edits: must be 1 to 1000, got 0"),
        (
            [RegistryEdit("thing", "x", {})],
            r"edits\[0\]\.kind: must be one of adapter, .*, tenant, got 'thing'",
        ),
        ([tenant("a", weight=-1)], r"edits\[0\]\.value\.weight: must be at least 0\.001, got -1"),
        ([tenant("a"), tenant("b", wight=2)], r"edits\[1\]\.value\.wight: unknown setting.*weight"),
        ([tenant("a", pools={"gone": {}})], r"edits\[0\]\.value\.pools\.gone: must be one of the pools demo, large"),
        ([alias("demo", "large")], r"edits\[0\]\.name: 'demo' is the name of a pool"),
        ([alias("fast", "gone")], r"value\.targets\[0\]\.model: must be one of the pools demo, large, got 'gone'"),
        ([alias("fast", "demo", "demo")], r"edits\[0\]\.value\.targets\[1\]\.model: 'demo' is a target already"),
        ([alias("fast", "demo", weight=-2)], r"edits\[0\]\.value\.targets\.0\.weight: must be at least 0, got -2"),
        ([tenant("a b")], r"edits\[0\]\.name: must match .*, got 'a b'"),
        ([tenant("a"), tenant("a", weight=2)], r"edits\[1\]\.name: tenant 'a' is edited twice"),
        ([RegistryEdit("key", "0" * 16, {"tenant": "a", "sha256": "secret"})], r"sha256: (?!.*got)"),
    ],
)
async def test_a_wrong_edit_names_the_field_and_changes_nothing(
    stack: Stack, keys: Keys, edits: list[RegistryEdit], problem: str
) -> None:
    async with client(stack, keys.admin) as admin:
        before = await admin.registry()
        with pytest.raises(InvalidArgumentError, match=problem):
            await admin.edit_registry(edits)
        assert before == await admin.registry()


async def test_a_dry_run_tells_the_difference_and_changes_nothing(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as admin:
        result = await admin.edit_registry([tenant("new", weight=2), tenant("declared", weight=2.0)], dry_run=True)
        assert [("new", None, {"weight": 2})] == [(a.name, a.before, a.after) for a in result.differences]
        assert () == await admin.registry("tenant", name="new")


async def test_of_two_who_change_the_same_version_one_is_told(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as one, client(stack, keys.admin, 1) as two:
        made = await one.edit_registry([RegistryEdit("tenant", "both", {"weight": 2}, 0)])
        await two.edit_registry([RegistryEdit("tenant", "both", {"weight": 3}, made.version)])
        with pytest.raises(ConflictError, match="'both' has version"):
            await one.edit_registry([RegistryEdit("tenant", "both", {"weight": 4}, made.version)])
        await one.edit_registry([RegistryEdit("tenant", "both", None)])


async def made_key(admin: AsyncClient, **rights: Any) -> NewKey:
    made = await admin.create_key("made", **rights)
    assert () == made.behind
    return made


async def test_a_key_made_by_a_call_works_at_every_router_until_it_is_deleted(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as admin:
        made = await made_key(admin, models=["demo"])
        assert made.key not in repr(made)
        async with client(stack, made.key, 1) as caller:
            assert ("made", made.id) == ((who := await caller.whoami()).tenant, who.credential_name)
            with pytest.raises(PermissionDeniedError):
                await caller.generate("large", "x", max_tokens=1)
        (entry,) = await admin.registry("key", name=made.id)
        assert {"tenant": "made", "role": "user", "models": ["demo"]} == entry.value, "without its hash"
        (entry,) = await admin.registry("key", name=made.id, hashes=True)
        backup = entry.value
        await admin.edit_registry([RegistryEdit("key", made.id, None)])
        async with client(stack, made.key, 1) as caller:
            with pytest.raises(UnauthenticatedError, match="not known"):
                await caller.whoami()
        await admin.edit_registry([RegistryEdit("key", made.id, backup)])
        async with client(stack, made.key, 1) as caller:
            assert "made" == (await caller.whoami()).tenant


async def test_a_keys_rights_change_without_its_hash_being_given(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as admin:
        made = await made_key(admin)
        await admin.edit_registry([RegistryEdit("key", made.id, {"tenant": "made", "role": "operator"})])
        async with client(stack, made.key, 1) as caller:
            assert "operator" == (await caller.whoami()).role


async def test_a_key_expires(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as admin:
        made = await made_key(admin, expires=datetime.datetime(2199, 1, 1, tzinfo=datetime.UTC))
        async with client(stack, made.key, 1) as caller:
            assert 2199 == ((await caller.whoami()).expires_at or datetime.datetime.min).year
            over = {"tenant": "made", "expires": "2026-01-01T00:00:00Z"}
            await admin.edit_registry([RegistryEdit("key", made.id, over)])
            with pytest.raises(UnauthenticatedError, match="expired"):
                await caller.whoami()


async def test_a_key_of_wrong_rights_is_not_made(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as admin:
        with pytest.raises(InvalidArgumentError, match=r"role: .*got 'king'"):
            await admin.create_key("made", role="king")
        with pytest.raises(InvalidArgumentError, match=r"tenant: .*got ''"):
            await admin.create_key("")


async def test_the_history_says_who_changed_what_and_never_a_hash(stack: Stack, keys: Keys) -> None:
    async with client(stack, keys.admin) as admin, client(stack, keys.operator, 1) as operator:
        made = await made_key(admin)
        await admin.edit_registry([tenant("told", weight=2)])
        await admin.edit_registry([RegistryEdit("tenant", "told", None)])
        newest, second, third = (await operator.registry_changes(limit=3))[:3]
        assert ({"weight": 2}, None) == (newest.difference.before, newest.difference.after)
        assert (None, {"weight": 2}) == (second.difference.before, second.difference.after)
        assert ("root", keys.admin.split("_")[1]) == (newest.tenant, newest.credential)
        assert (made.id, {"tenant": "made", "role": "user"}) == (third.difference.name, third.difference.after)
        assert newest.intact
        assert newest.number == second.number + 1
        assert [second.number] == [
            one.number for one in await operator.registry_changes("tenant", name="told", limit=1, before=newest.number)
        ]
        with pytest.raises(PermissionDeniedError):
            await operator.edit_registry([tenant("told", weight=2)])
        with pytest.raises(PermissionDeniedError):
            await operator.registry(hashes=True)


async def test_long_lists_come_in_pages(stack: Stack, keys: Keys) -> None:
    from penstock.v1 import registry_pb2

    async with client(stack, keys.admin) as admin:
        await admin.edit_registry([tenant(f"page-{number}") for number in range(5)])
        metadata = (("authorization", f"Bearer {keys.admin}"),)
        stub = stack.admin()
        names: list[str] = []
        after = ""
        while True:
            page = await stub.ListRegistry(
                registry_pb2.ListRegistryRequest(kind="tenant", limit=2, after=after), metadata=metadata
            )
            names += [entry.name for entry in page.entries]
            if not page.more:
                break
            after = f"tenant/{names[-1]}"
        assert sorted(names) == names
        assert {f"page-{number}" for number in range(5)} <= set(names)
        assert len(names) == len(set(names))
        with pytest.raises(grpc.aio.AioRpcError, match="limit: must be at most 10000, got 10001"):
            await stub.ListRegistry(registry_pb2.ListRegistryRequest(limit=10_001), metadata=metadata)


# --- the commands -----------------------------------------------------------------------------------------------------


async def command(stack: Stack, keys: Keys, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Run a command against the second router. Return exit status and output."""
    target = f"127.0.0.1:{stack.routers[1].port}"
    path = keys.path.with_name("admin-key")
    path.write_text(keys.admin)
    flags = ["--target", target, "--api-key-file", str(path), "--allow-plaintext-key"]
    status = await asyncio.to_thread(main, [*words, *flags])
    return status, capsys.readouterr().out


async def test_commands_name_what_is_not_there_or_wrong_as_it_was_written(
    stack: Stack, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('[tenants.wrong]\nweight = 0\n[keys.short]\ntenant = "acme"\n')
    monkeypatch.setenv("PENSTOCK_API_KEY", keys.admin)
    target = ["--target", f"127.0.0.1:{stack.routers[1].port}"]
    for status, words, told in (
        (2, ["apply", str(file), "--yes"], "tenants.wrong.weight: must be at least 0.001, got 0"),
        (2, ["apply", str(file), "--yes"], "keys.short: must match"),
        (1, ["get", "tenants", "nobody"], "no tenant 'nobody'"),
        (2, ["delete", "pools", "demo"], "a pool is removed by `penstock apply FILE --prune`"),
        (2, ["top", "--once", "--pool", "nope"], "--pool: 'nope' is none of demo"),
    ):
        assert status == await asyncio.to_thread(main, [*words, *target])
        assert told in capsys.readouterr().err


async def test_a_file_is_applied_shown_and_taken_back(
    stack: Stack, keys: Keys, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text("[tenants.filed]\nweight = 2.5\n[tenants.filed.quota]\nconcurrency = 3\n")
    status, text = await command(stack, keys, capsys, "apply", str(file), "--dry-run")
    assert (0, True, True) == (status, "+ tenant filed" in text, "weight = 2.5" in text)
    status, text = await command(stack, keys, capsys, "get", "tenants", "filed")
    assert (1, "") == (status, text)

    status, text = await command(stack, keys, capsys, "apply", str(file), "--yes")
    assert (0, True) == (status, "1 entry changed" in text)
    status, text = await command(stack, keys, capsys, "apply", str(file), "--yes")
    assert (0, "nothing to change\n") == (status, text)
    status, text = await command(stack, keys, capsys, "get", "tenants", "filed", "--toml")
    assert tomllib.loads(file.read_text()) == tomllib.loads(text)

    status, text = await command(stack, keys, capsys, "delete", "tenants", "filed", "--yes")
    assert (0, True) == (status, "- tenant filed" in text)
    status, text = await command(stack, keys, capsys, "history", "tenants", "filed")
    assert (0, True) == (status, text.index("- tenant filed") < text.index("+ tenant filed"))


async def test_a_file_that_says_what_the_settings_say_changes_nothing(
    stack: Stack, keys: Keys, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also where it names defaults. What stays that of the settings follows them when they change."""
    file = tmp_path / "cluster.toml"
    same = '[tenants.declared]\nweight = 2\n[tenants.declared.quota]\nmode = "settled"\n'
    file.write_text(same)
    status, text = await command(stack, keys, capsys, "apply", str(file), "--yes")
    assert (0, "nothing to change in tenants\n") == (status, text)

    file.write_text(f"{same}[tenants.beside]\nweight = 7\n")
    status, text = await command(stack, keys, capsys, "apply", str(file), "--yes")
    assert (0, True, False) == (status, "1 entry changed" in text, "declared" in text)
    async with client(stack, keys.admin) as admin:
        found = {each.name: each.version for each in await admin.registry("tenant")}
        assert (0, True) == (found["declared"], found["beside"] > 0)
        # One of the registry that says the same goes all the same.
        await admin.edit_registry([tenant("declared", weight=2)])
    status, text = await command(stack, keys, capsys, "delete", "tenants", "declared", "--yes")
    assert (0, True) == (status, "- tenant declared: that of the settings is the same" in text)
    async with client(stack, keys.admin) as admin:
        assert 0 == (await admin.registry("tenant", name="declared"))[0].version
        await admin.edit_registry([RegistryEdit("tenant", "beside", None)])


async def test_a_backup_brings_keys_back(
    stack: Stack, keys: Keys, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, key = await command(stack, keys, capsys, "keys", "new", "--cluster", "--tenant", "kept", "--expires", "90d")
    _, backup = await command(stack, keys, capsys, "get", "keys", "--toml", "--hashes")
    file = tmp_path / "backup.toml"
    file.write_text(backup)
    await command(stack, keys, capsys, "delete", "keys", key.split("_")[1], "--yes")
    async with client(stack, key.strip()) as caller:
        with pytest.raises(UnauthenticatedError):
            await caller.whoami()
        await command(stack, keys, capsys, "apply", str(file), "--yes")
        assert "kept" == (await caller.whoami()).tenant


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[routers]\n", "routers: must be one of the tables tenants, keys, adapters, aliases, pools"),
        ("[router]\nprt = 1\n", "router.prt: unknown setting"),
        ("[pools.demo]\ncolour = 1\n", "pools.demo.colour: unknown setting"),
        ("tenants = 3\n", "tenants: must be one of the tables"),
        ("[tenants]\nacme = 3\n", "tenants.acme: must be a table, got 3"),
        ("[tenants\n", "is not valid TOML"),
    ],
)
async def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=problem):
        read_file(file)


async def test_settings_without_pools_leave_them_as_they_are(
    stack: Stack, keys: Keys, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Those by default, which nobody wrote, are no wish."""
    file = tmp_path / "cluster.toml"
    file.write_text("[router]\nprocesses = 3\n[tenants.without-pools]\nweight = 2.0\n")
    assert None is read_file(file).pools
    for more in ([], ["--prune"]):
        status, told = await command(stack, keys, capsys, "apply", str(file), "--dry-run", *more)
        assert (0, True, False) == (status, "+ tenant without-pools" in told, "pool demo" in told)


async def test_an_adapter_is_loaded_everywhere_and_used_and_goes(stack: Stack, keys: Keys, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    async with client(stack, keys.admin) as admin, client(stack, keys.other, 1) as other:
        with pytest.raises(InvalidArgumentError, match=r"value.pool: must be one of demo, large, got 'none'"):
            await admin.edit_registry([RegistryEdit("adapter", "poet", {"pool": "none", "source": str(tmp_path)})])
        with pytest.raises(InvalidArgumentError, match=r"must be one of the pool's adapters \(none\), got 'poet'"):
            await other.generate("demo", "x", max_tokens=4, options=POET)
        result = await admin.edit_registry(
            [
                RegistryEdit("adapter", "poet", {"pool": "demo", "source": str(tmp_path)}),
                RegistryEdit("adapter", "lost", {"pool": "demo", "source": "/nowhere"}),
            ],
            wait=30.0,
        )
        assert result.behind == ()
        states = {each.adapter: each for each in result.adapters}
        assert (states["poet"].state, len(states["poet"].digest)) == ("loaded", 64)
        assert (states["lost"].state, states["lost"].why) == ("failed", "there is no /nowhere on this replica")
        assert (await other.get_model("demo")).lora_adapters == ("lost", "poet")
        with_it = await other.generate("demo", "x", max_tokens=4, options=POET)
        without = await other.generate("demo", "x", max_tokens=4)
        assert with_it.text != without.text
        found = {entry.name: entry for entry in await admin.registry("adapter")}
        assert [each.replica for each in found["poet"].replicas] == ["demo-r0"]
        gone = [RegistryEdit("adapter", "poet", None), RegistryEdit("adapter", "lost", None)]

        async def used() -> bool:
            return any(each.uses for one in await admin.registry("adapter") for each in one.replicas)

        async with other.stream("demo", "x", max_tokens=30_000, ignore_eos=True, options=POET) as stream:
            events = aiter(stream)
            await anext(events)
            await until(used)
            with pytest.raises(PenstockClientError, match="adapter 'poet' is in use by 1 sequence"):
                await admin.edit_registry(gone, wait=0.0)
        await admin.edit_registry(gone, wait=20.0)
        with pytest.raises(InvalidArgumentError, match="lora_adapter"):
            await other.generate("demo", "x", max_tokens=4, options=POET)
