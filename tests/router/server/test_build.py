"""A router is composed whole, before it starts anything."""

from __future__ import annotations

import json
from pathlib import Path

from cluster.redis.keys import pool_key
from cluster.registry.contract import Author, Edit, Watcher
from cluster.registry.pools import KIND
from cluster.registry.view import RegistryView
from router.build import build_router
from tests.support.issuer import IssuerServer
from tests.support.stack import SECRET, running_stack, sim_pool
from tests.support.waiting import until


async def test_a_router_that_never_started_can_be_stopped(tmp_path: Path) -> None:
    async with running_stack(tmp_path, routers=0, replicas=0) as stack:
        router = build_router(stack.settings, SECRET, stack.factory(), port=0)
        assert ["demo"] == list(router.pools)
        assert (0, 0, 0) == (router.port, router.metrics_port, router.pools["demo"].active)
        await router.stop()


async def test_the_first_bad_file_of_an_issuers_keys_is_an_increase(tmp_path: Path) -> None:
    """Prometheus sees none in a series that begins with 1."""
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": IssuerServer().keys}))
    table = {"issuer": "https://idp.test", "audiences": ["penstock"], "tenant": "acme", "jwks_file": str(path)}
    sections = {"auth": {"jwt": {"idp": table}}}
    async with running_stack(tmp_path, replicas=0, sections=sections) as stack:
        metrics = stack.routers[0]._metrics.registry

        def bad() -> float | None:
            facts = {"file": "auth.jwt.idp.jwks_file", "outcome": "bad"}
            return metrics.get_sample_value("penstock_router_file_reloads_total", facts)

        assert 0 == bad()
        path.write_text("no JSON")
        await until(lambda: 1 == bad())


async def test_a_router_that_starts_with_an_older_file_keeps_the_registrys_number_of_cells(tmp_path: Path) -> None:
    pools = {"demo": {**sim_pool(), "replicas": 3}}
    async with running_stack(tmp_path, routers=1, replicas=0, pools=pools) as stack:
        view = RegistryView(stack.factory().registry(), Watcher("test", "test"))
        await view.refresh()
        newer = {**stack.settings.pools["demo"].model_dump(mode="json", exclude_defaults=True), "cells": 3}
        await view.apply([Edit(KIND, "demo", json.dumps({"settings": newer}).encode())], Author("admin"))
        await view.close()

        def noted() -> list[bytes]:
            return [stack.store.execute("HGET", pool_key("demo", "control"), field) for field in ("cells", "cells_at")]

        await until(lambda: b"3" == noted()[0])
        before = noted()
        router = await stack.add_router()
        layout = router.pools["demo"].cells.layout
        await until(lambda: (3, True, True) == (layout.count, layout.sure, layout._noted))
        assert before == noted()
