"""Values that are settings: the chart refuses what a router or a replica would refuse at its start."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import jsonschema
import pytest
import yaml

from cluster.settings import Settings
from cluster.settings.pools import PoolSettings
from cluster.settings.tree import AutoscalerSettings
from k8s.render.generated import CHART
from tests.k8s.charts import one, render, render_values
from tests.k8s.view import serve_config, settings_toml

SCHEMA = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
OWN = {
    "cluster": ("secret_file", "state_dir", "log_format", "ray_address"),
    "redis": ("url",),
    "replica": ("host", "drain_s", "port", "metrics_port", "tls"),
    "router": ("host", "port", "metrics_port", "processes", "drain_s", "tls"),
}
"""Settings that the chart gives, by section."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("settings.quue", {}, "/settings': additional properties 'quue' not allowed"),
        ("settings.queue.lease_s", 0.01, "/settings/queue/lease_s': minimum: got 0.01, want 0.2"),
        ("settings.queue.lease", 5, "/settings/queue': additional properties 'lease' not allowed"),
        ("settings.tenants.acme.weight", 0, "/settings/tenants/acme/weight': minimum"),
        ("settings.telemetry.trace_ratio", "all", "/settings/telemetry/trace_ratio': 'all' does not match pattern"),
        ("settings.router.host", "::1", "/settings/router/host': false schema"),
        ("pools.demo.settings.engine", "sim2", "/pools/demo/settings/engine': value must be one of 'vllm', 'sim'"),
        ("pools.demo.settings.vllm", {"max_num_seq": 8}, "/pools/demo/settings/vllm': additional properties"),
        ("pools.demo.settings.slo", {"interactive": {"itl_p95_s": -1}}, "/slo/interactive/itl_p95_s': exclusiveMin"),
        ("pools.demo.settings.autoscale", {"schedule": [{"start": "8"}]}, "/autoscale/schedule/0"),
        ("autoscaler.settings.tick_s", 0, "/autoscaler/settings/tick_s': minimum: got 0, want 0.1"),
        ("auth.jwt.sso", {"issuer": "https://sso"}, "/auth/jwt/sso': missing property 'audiences'"),
        ("auth.serviceAccounts.settings.leeway", 3, "/auth/serviceAccounts/settings': additional properties"),
    ],
)
def test_a_mistake_is_refused_by_its_place(path: str, value: Any, place: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render_values("defaults", {path: value})
    assert place in refused.value.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    ["autoscaler.settings.tick_s", "pools.demo.settings.slo.interactive.itl_p95_s", "settings.telemetry.trace_ratio"],
)
def test_a_fraction_may_be_set_on_the_command_line(path: str) -> None:
    """Helm makes whole numbers of text, and leaves the others as text."""
    assert render("defaults", f"--set={path}=0.5")


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        *("settings.queue", "settings.queue.max_waiting", "settings.router.http.max_file_mb", "settings.jobs.max_mb"),
        *("pools.demo.settings.autoscale", "pools.demo.settings.sim", "pools.demo.settings.slo.interactive.itl_p95_s"),
        *("autoscaler.settings.tick_s", "settings.telemetry.trace_ratio"),
        # Whose keys are names that are checked.
        *("settings.aliases.demo", "settings.default_tenant.pools.gone"),
    ],
)
def test_null_leaves_a_setting_at_its_default(path: str) -> None:
    """As `--set` takes a value of a file away."""
    plain, null = render("sim"), render("sim", f"--set={path}=null")
    assert Settings.model_validate(settings_toml(plain)) == Settings.model_validate(settings_toml(null))
    assert "null" not in yaml.safe_dump(serve_config(one(null, "RayService"))["applications"][0]["args"])


@pytest.mark.slow
def test_off_is_a_mode_although_yaml_reads_false() -> None:
    modes = {"mode": False, "forecast": False, "announced": False}
    assert render_values("defaults", {"pools.demo.settings.autoscale": modes})


def _all(section: Any) -> dict[str, Any]:
    found: dict[str, Any] = section().model_dump(mode="json")
    return found


def test_all_defaults_are_taken() -> None:
    tree = _all(Settings)
    for section, names in OWN.items():
        tree[section] = {name: value for name, value in tree[section].items() if name not in names}
    del tree["router"]["http"]["port"]
    given = {name: value for name, value in tree.items() if name not in ("pools", "auth", "autoscaler")}
    chosen = ("host", "port", "token_file")
    own = {name: value for name, value in _all(AutoscalerSettings).items() if name not in chosen}
    pool = SCHEMA["properties"]["pools"]["additionalProperties"]["properties"]["settings"]
    jsonschema.validate(given, SCHEMA["properties"]["settings"])
    jsonschema.validate(_all(PoolSettings), pool)
    jsonschema.validate(own, SCHEMA["properties"]["autoscaler"]["properties"]["settings"])
    assert {"model", "vllm", "rollout"} <= set(pool["properties"])
