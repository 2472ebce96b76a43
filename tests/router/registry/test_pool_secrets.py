"""Secrets in the settings of a pool: only admins see them, and what was shown without them changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.control.settings import operating_point
from cluster.settings import PoolSettings, Settings
from penstock.client import AsyncClient, PermissionDeniedError
from router.commands.registry.pool_difference import RunningPool, not_compared, pool_changes, with_secrets
from router.commands.registry.pools import drawn
from router.registry.kinds import POOL, WrongEntryError
from tests.support.keys import Keys
from tests.support.stack import Stack, running_stack, sim_pool

TOKEN, NEWER = "hf_0123456789", "hf_9876543210"


def client(stack: Stack, key: str) -> AsyncClient:
    return AsyncClient(f"127.0.0.1:{stack.routers[0].port}", api_key=key, allow_plaintext_key=True)


async def test_only_admins_see_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = Keys(tmp_path / "keys.toml")
    pool = {**sim_pool(), "vllm": {"extra": {"hf_token": TOKEN}}}
    async with (
        running_stack(tmp_path, pools={"demo": pool}, sections={"auth": {"keys_file": str(keys.path)}}) as stack,
        client(stack, keys.operator) as operator,
        client(stack, keys.admin) as admin,
    ):
        for caller, hashes, expected in ((operator, False, "***"), (admin, False, "***"), (admin, True, TOKEN)):
            (entry,) = await caller.registry("pool", hashes=hashes)
            assert expected == entry.value["settings"]["vllm"]["extra"]["hf_token"]
        with pytest.raises(PermissionDeniedError):
            await operator.registry("pool", hashes=True)

        await admin.start_rollout("demo", {"vllm": {"extra": {"hf_token": NEWER}}})
        for caller, expected in ((operator, "***"), (admin, NEWER)):
            rollout = await caller.rollout("demo")
            assert rollout is not None
            assert {"vllm": {"extra": {"hf_token": expected}}} == rollout.new_changes
        assert NEWER not in json.dumps([str(vars(record)) for record in caplog.records])


def pools(token: str, **more: Any) -> PoolSettings:
    return PoolSettings.model_validate({"engine": "sim", "vllm": {"extra": {"hf_token": token}}, **more})


@pytest.mark.parametrize(
    ("wanted", "running", "revision", "changed"),
    [
        # A file of `penstock get --toml`.
        ("***", TOKEN, {}, []),
        # An operator, who compares a file.
        (TOKEN, "***", {}, []),
        (TOKEN, "***", {"vllm": {"extra": {"hf_token": "***"}}}, []),
        (NEWER, TOKEN, {}, [NEWER]),
        (NEWER, TOKEN, {"vllm": {"extra": {"hf_token": NEWER}}}, []),
    ],
)
def test_a_stand_in_is_no_change(wanted: str, running: str, revision: dict[str, Any], changed: list[str]) -> None:
    own = pools(running)
    files, here = with_secrets({"a": pools(wanted)}, {"a": RunningPool(own, revision, operating_point(own))})
    found = pool_changes(files, here, prune=False)
    assert changed == [each.after for change in found for each in change.fields]


def running(token: str) -> RunningPool:
    own = pools(token)
    return RunningPool(own, {}, operating_point(own))


def test_a_secret_that_changes_is_told_without_its_value() -> None:
    (change,) = pool_changes({"a": pools(NEWER)}, {"a": running(TOKEN)}, prune=False)
    assert "    ~ vllm.extra.hf_token: changed; its value is not shown  (roll-out)\n" in drawn(change).plain


@pytest.mark.parametrize(("shown", "told"), [("***", ["pools.a.vllm.extra.hf_token"]), (TOKEN, [])])
def test_who_does_not_see_secrets_is_told_which_are_not_compared(shown: str, told: list[str]) -> None:
    assert told == not_compared({"a": pools(NEWER), "new": pools(NEWER)}, {"a": running(shown), "old": running("***")})
    assert [] == not_compared({"a": pools("***")}, {"a": running(shown)})


def test_a_stand_in_is_no_secret_of_a_new_pool() -> None:
    fields = {"settings": {"engine": "sim", "vllm": {"extra": {"hf_token": "***"}}}}
    with pytest.raises(WrongEntryError, match=r"value\.settings\.vllm\.extra\.hf_token: must be the secret itself"):
        POOL.read("new", fields, Settings(), "edits[0]")
