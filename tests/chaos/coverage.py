"""The faults that a serious user tries, and where each is tried here: the rows of the project's table of faults, by
number.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One fault."""

    number: int
    fault: str
    elsewhere: str = ""
    """Where it is tested, or why it is not, if no scenario has it."""


ROWS = (
    Row(1, "kill -9 of a router"),
    Row(2, "SIGTERM to a router under load"),
    Row(3, "kill -9 of an engine worker"),
    Row(4, "SIGSTOP of a replica"),
    Row(5, "engine wedge: healthy, no tokens", "also tests/router/links/test_stall.py"),
    Row(6, "kill -9 of Redis, restart from its file, its end torn off"),
    Row(
        7,
        "failover by Sentinel or a Redis Cluster",
        "READONLY, and followers of a Redis Cluster, here; by sentinels: tests/router/server/test_failover.py",
    ),
    Row(8, "Redis out of memory"),
    Row(9, "Redis slow, hanging or blackholed"),
    Row(10, "FLUSHALL"),
    Row(
        11,
        "Serve controller killed",
        "needs Ray: tests/integration/one_cluster/test_serve_controller.py; without Ray the launcher dies here",
    ),
    Row(12, "Ray head killed", "needs Ray; without a store of its own: tests/integration/test_ray_faults.py"),
    Row(13, "partition of one router and one replica"),
    Row(14, "partition of one router and Redis"),
    Row(15, "a client that does not read"),
    Row(16, "cancels anywhere"),
    Row(17, "the deadline passes in the queue", "needs no fault: tests/router/server/test_limits.py"),
    Row(18, "bytes that are no request", "also tests/router/inference/test_bad_input.py"),
    Row(19, "absurd parameters", "need no fault: tests/router/validation"),
    Row(20, "a prompt that kills engines"),
    Row(21, "clock skew and jumps", "needs a clock of its own: tests/cluster/queue/test_leases.py"),
    Row(
        22,
        "ten thousand clients reconnect",
        "needs a machine of its own: make bench-herd; two thousand at once: tests/router/links/test_links.py",
    ),
    Row(23, "rolling update between versions", "a scenario where git knows an earlier release"),
    Row(24, "scale-down while streams run"),
    Row(25, "RayService update", "needs a Kubernetes cluster; its pods as processes: tests/k8s/test_kubelet.py"),
    Row(26, "the same request twice", "a repeat after a death here; tests/router/inference/test_idempotency.py"),
    Row(
        27,
        "starvation of CPU, memory, files; disk full at Redis (MISCONF)",
        "descriptors and disk here; a loop that stands still: tests/cluster/test_lease_keeper.py, probes of a busy "
        "router: tests/router/server/test_probes.py; memory needs a cgroup, which tests can't set everywhere",
    ),
    Row(28, "certificates that change or expire", "need no fault: tests/router/server/test_tls.py"),
    Row(
        29,
        "autoscaler crash",
        "tests/cluster/autoscaler/test_store.py, tests/cluster/autoscaler/test_scaler_leaders.py",
    ),
    Row(30, "one tenant floods", "tests/router/inference/test_tenants.py, tests/cluster/queue/test_fairness.py"),
)
