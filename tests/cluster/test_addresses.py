"""IPv6 addresses have brackets where a port follows, and none where sockets take them."""

from __future__ import annotations

import errno
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from cluster.addresses import bare_host, family_of, free_port, host_port
from cluster.autoscaler.server import ObservedServer
from cluster.bootstrap.ahead import check_ahead
from cluster.bootstrap.local import LocalCluster
from cluster.bootstrap.process import ChildProcess
from cluster.bootstrap.ready import RouterProcess, unlinked
from cluster.errors import SettingsError
from cluster.settings import load_settings
from cluster.telemetry import MetricsServer
from tests.support.ports import require_ipv6

WAYS = ("::1", "[::1]")
"""How people write it."""


@pytest.mark.parametrize(
    ("host", "bare", "joined"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1:7"),
        ("localhost", "localhost", "localhost:7"),
        ("router.example.org", "router.example.org", "router.example.org:7"),
        ("", "", ":7"),
        ("::1", "::1", "[::1]:7"),
        ("[::1]", "::1", "[::1]:7"),
        ("::", "::", "[::]:7"),
        ("[fe80::1%eth0]", "fe80::1%eth0", "[fe80::1%eth0]:7"),
    ],
)
def test_hosts_with_and_without_ports(host: str, bare: str, joined: str) -> None:
    assert (bare, joined) == (bare_host(host), host_port(host, 7))
    assert (socket.AF_INET6 if ":" in bare else socket.AF_INET) is family_of(host)


@pytest.mark.parametrize("host", ["127.0.0.1:50051", "[::1]:50051", "[::1", "::1]", "[]", "[localhost]", "1:2"])
@pytest.mark.parametrize("section", ["router", "replica", "autoscaler"])
def test_what_is_no_host_is_refused_by_name(section: str, host: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags={section: {"host": host}}, environ={})
    assert all(word in str(caught.value) for word in (f"{section}.host", "without a port", repr(host)))


@pytest.mark.parametrize("host", WAYS)
def test_settings_take_both_ways_to_write_an_address(host: str) -> None:
    flags = {section: {"host": host} for section in ("router", "replica", "autoscaler")}
    settings = load_settings(flags=flags, environ={})
    assert {"::1"} == {settings.router.host, settings.replica.host, settings.autoscaler.host}


# --- with real ports --------------------------------------------------------------------------------------------------


@pytest.fixture
def _ipv6() -> None:
    require_ipv6()


def links_up(pool: str, count: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    Gauge("penstock_router_links_up", "Links.", ["pool"], registry=registry).labels(pool).set(count)
    return registry


@pytest.fixture(params=WAYS)
def metrics(request: pytest.FixtureRequest, _ipv6: None) -> Iterator[tuple[str, int]]:
    """Serves a router's metrics; yields its host and port."""
    with closing(MetricsServer(request.param, 0, links_up("demo", 2), {"/readyz": lambda: True})) as server:
        yield request.param, server.port


def test_metrics_are_served_and_asked_for(metrics: tuple[str, int]) -> None:
    host, port = metrics
    assert [[], ["demo"]] == [unlinked(port, host, {"demo": count}) for count in (2, 3)]
    with urllib.request.urlopen(f"http://[::1]:{port}/readyz", timeout=5) as reply:
        assert 200 == reply.status


@pytest.mark.parametrize("host", WAYS)
@pytest.mark.usefixtures("_ipv6")
def test_the_autoscalers_endpoints(host: str) -> None:
    with closing(ObservedServer(host, 0, CollectorRegistry(), lambda: True, lambda: True)) as server:  # noqa: SIM117
        with urllib.request.urlopen(f"http://[::1]:{server.port}/readyz", timeout=5) as reply:
            assert 200 == reply.status


@pytest.mark.parametrize("host", WAYS)
@pytest.mark.usefixtures("_ipv6")
def test_a_taken_port_is_found_and_a_free_one_is_free(host: str) -> None:
    port = free_port(host)
    settings = load_settings(flags={"router": {"host": host, "port": port}}, environ={})
    check_ahead(settings)
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::1", port))
        taken.listen()
        with pytest.raises(SettingsError, match=f"{port} on ::1 is in use"):
            check_ahead(settings)


@pytest.mark.usefixtures("_ipv6")
def test_every_address_is_one_of_both_families() -> None:
    """Probes and Prometheus ask a pod at its own address, of either family."""
    metrics = MetricsServer("::", 0, CollectorRegistry(), {"/readyz": lambda: True})
    observed = ObservedServer("[::]", 0, CollectorRegistry(), lambda: True, lambda: True)
    with closing(metrics), closing(observed):
        for address in ("127.0.0.1", "[::1]"):
            for server in (metrics, observed):
                with urllib.request.urlopen(f"http://{address}:{server.port}/readyz", timeout=5) as reply:
                    assert 200 == reply.status


def test_every_address_of_a_machine_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel may be started without it; a pod there has to come up none the less."""
    real = socket.socket

    class Without(socket.socket):
        def __init__(self, family: int = -1, *rest: Any, **more: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *rest, **more)

    monkeypatch.setattr(socket, "socket", Without)
    port = free_port("::")
    check_ahead(load_settings(flags={"router": {"host": "::", "port": port}, "auth": {"anonymous": True}}, environ={}))
    metrics = MetricsServer("::", 0, CollectorRegistry(), {"/readyz": lambda: True})
    observed = ObservedServer("::", 0, CollectorRegistry(), lambda: True, lambda: True)
    with closing(metrics), closing(observed), real() as one, real() as other:
        one.connect(("127.0.0.1", metrics.port))
        other.connect(("127.0.0.1", observed.port))


def test_what_clients_are_told_to_dial() -> None:
    cluster = LocalCluster(load_settings(flags={"router": {"host": "::1"}}, environ={}), lambda _step, _text: None)
    cluster.routers = [RouterProcess(_process(), "router-1", 7, 8, 0)]
    assert "[::1]:7" == cluster.target


def _process() -> ChildProcess:
    return object.__new__(ChildProcess)
