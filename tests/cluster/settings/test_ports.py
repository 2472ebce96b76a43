"""Ports of one process differ."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import SettingsError
from cluster.settings import load_settings


@pytest.mark.parametrize(
    ("section", "ports", "complaint"),
    [
        ("replica", {"port": 9400, "metrics_port": 9400}, "metrics_port must not be port = 9400, got 9400"),
        ("router", {"port": 9090, "metrics_port": 9090}, "port must not be among .* = 9090 to 9090, got 9090"),
        ("router", {"port": 9092, "metrics_port": 9090, "processes": 3}, "= 9090 to 9092, got 9092"),
        ("router", {"port": 9090, "http": {"port": 9090}}, "http.port must not be port = 9090, got 9090"),
        (
            "router",
            {"http": {"port": 9091}, "metrics_port": 9090, "processes": 2},
            "http.port must not be among .* = 9090 to 9091, got 9091",
        ),
    ],
)
def test_a_port_for_two_things_is_refused(section: str, ports: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{section}: .*{complaint}"):
        load_settings(flags={section: ports}, environ={})


@pytest.mark.parametrize(
    "flags",
    [
        {"replica": {"port": 0, "metrics_port": 0}},
        {"router": {"port": 0, "metrics_port": 0, "http": {"port": 0}}},
        {"router": {"port": 9093, "metrics_port": 9090, "processes": 3}},
        {"router": {"port": 9089, "metrics_port": 9090, "processes": 3}},
    ],
)
def test_other_ports_are_taken(flags: dict[str, Any]) -> None:
    load_settings(flags=flags, environ={})
