"""Pools that come and go through Ray Serve, while others serve."""

from __future__ import annotations

import concurrent.futures
import contextlib
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Client, InvalidArgumentError, NotFoundError, RegistryEdit
from tests.support.running import ClusterThread, running_cluster
from tests.support.waiting import until_sync

pytestmark = [pytest.mark.cluster, pytest.mark.engine, pytest.mark.timeout(600)]


def test_a_pool_is_added_and_removed_through_serve_and_others_keep_their_replicas(engines: ClusterThread) -> None:
    """The new pool has an autoscaler, which the one of the cluster has to look after, too."""

    def state() -> str:
        return admin.registry("pool", name="extra")[0].state

    def replicas(pool: str) -> set[str]:
        status = admin.cluster_status()
        return {one.replica_id for each in status.pools if each.name == pool for one in each.replicas}

    settings: dict[str, Any] = {
        "engine": "sim",
        "sim": {"base_ms": 5.0},
        "autoscale": {"mode": "active", "max_replicas": 2},
        "slo": {"interactive": {"ttft_p99_s": 2.0}},
    }
    # It follows the registry, as the autoscaler does.
    watching = engines.begin(engines.cluster.watch())
    with contextlib.ExitStack() as stack:
        stack.callback(watching.cancel)
        admin, other = (stack.enter_context(Client(engines.target(number))) for number in range(2))
        until_sync(lambda: allowed(admin, settings), 20)
        before = replicas("demo") | replicas("wide")
        admin.edit_registry([RegistryEdit("pool", "extra", {"settings": settings})], wait=20.0, timeout=30.0)
        until_sync(lambda: state() == "serving", 120)
        until_sync(lambda: other.get_model("extra").ready_replicas == 1, 20)
        answers = [client.generate("extra", "x", max_tokens=8, ignore_eos=True) for client in (admin, other)]
        assert [8, 8] == [len(answer.choices[0].token_ids) for answer in answers]
        until_sync(lambda: bool(admin.decisions("extra").decisions), 60)
        with concurrent.futures.ThreadPoolExecutor() as pool:
            long = pool.submit(other.generate, "extra", "x", max_tokens=600, ignore_eos=True, timeout=60.0)
            until_sync(lambda: any(each.running for each in admin.cluster_status().pools if each.name == "extra"), 20)
            admin.edit_registry([RegistryEdit("pool", "extra", {"removed": True})], wait=20.0, timeout=30.0)
            with pytest.raises(NotFoundError, match="'extra' is being removed"):
                admin.generate("extra", "x")
            assert 600 == len(long.result().choices[0].token_ids)
        until_sync(lambda: state() == "gone", 120)
        until_sync(lambda: "extra" not in {each.name for each in admin.cluster_status().pools}, 20)
        assert before == replicas("demo") | replicas("wide")
        until_sync(lambda: not engines.cluster.autoscaler_missing(), 30)


def allowed(admin: Client, settings: dict[str, Any]) -> bool:
    """Return whether the process that starts replicas follows the registry."""
    try:
        admin.edit_registry([RegistryEdit("pool", "extra", {"settings": settings})], dry_run=True)
    except InvalidArgumentError:
        return False
    return True


def test_control_and_autoscale_change_through_serve_and_no_replica_restarts(engines: ClusterThread) -> None:
    def replicas() -> set[str]:
        return {one.replica_id for each in admin.cluster_status().pools if each.name == "toy" for one in each.replicas}

    def decided() -> bool:
        found = admin.decisions("toy", limit=1).decisions
        return bool(found) and found[0].mode == "advisory"

    def put(**changes: Any) -> None:
        entry = RegistryEdit("pool", "toy", {"settings": {**own, **changes}})
        assert () == admin.edit_registry([entry], wait=20.0, timeout=30.0).behind

    watching = engines.begin(engines.cluster.watch())
    with contextlib.ExitStack() as stack:
        stack.callback(watching.cancel)
        admin = stack.enter_context(Client(engines.target()))
        until_sync(lambda: allowed(admin, {"engine": "sim"}), 20)
        own = admin.registry("pool", name="toy")[0].value["settings"]
        before = replicas()
        put(control={"window_s": 20.0}, autoscale={"mode": "advisory", "max_replicas": 3})
        until_sync(lambda: admin.registry("pool", name="toy")[0].state == "serving", 60)
        until_sync(decided, 60)
        put()
        until_sync(lambda: admin.registry("pool", name="toy")[0].state == "serving", 60)
        assert before == replicas()


def test_a_number_that_serve_was_told_outlives_changes_that_replicas_do_not_read_and_ends_with_scaling(
    tmp_path: Path,
) -> None:
    scaled = {"mode": "active", "min_replicas": 0, "max_replicas": 4}
    sections: dict[str, Any] = {
        "cluster": {"state_dir": str(tmp_path)},
        "router": {"port": 0, "drain_s": 2.0},
        "replica": {"drain_s": 2.0},
        # One decision at its start, and none in this test's time.
        "autoscaler": {"tick_s": 600.0},
        "pools": {"toy": {"engine": "sim", "model": "demo", "replicas": 2, "autoscale": scaled}},
    }
    with running_cluster(sections) as running, contextlib.ExitStack() as stack:
        serve = running.cluster.serve
        assert serve is not None

        def target() -> int:
            return running.run(serve.status())["penstock-toy"].target

        def put(**changes: Any) -> None:
            entry = RegistryEdit("pool", "toy", {"settings": {**own, **changes}})
            assert () == admin.edit_registry([entry], wait=20.0, timeout=30.0).behind
            until_sync(lambda: admin.registry("pool", name="toy")[0].state == "serving", 60)

        watching = running.begin(running.cluster.watch())
        stack.callback(watching.cancel)
        admin = stack.enter_context(Client(running.target()))
        until_sync(lambda: allowed(admin, {"engine": "sim"}), 20)
        until_sync(lambda: bool(admin.decisions("toy", limit=1).decisions), 30)
        own = admin.registry("pool", name="toy")[0].value["settings"]
        for number in (0, 3):
            running.run(serve.scale("toy", number))
            until_sync(lambda number=number: target() == number, 30)  # type: ignore[misc]
            put(price_per_million_output_tokens=float(number + 1))
            assert number == target()
        put(autoscale={"mode": "off"})
        assert 2 == target()
