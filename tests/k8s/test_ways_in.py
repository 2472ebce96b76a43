"""Ways in that the chart refuses."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.k8s.charts import one, render_values
from tests.k8s.rules import RULES

pytestmark = pytest.mark.slow

GATEWAY = {"gateway.enabled": True, "gateway.parentRefs": [{"name": "g"}]}


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"router.service.type": "ExternalName"}, "type"),
        (
            {"services.ipFamilyPolicy": "SingleStack", "services.ipFamilies": ["IPv6", "IPv4"]},
            "ipFamilies must be one family where ipFamilyPolicy is SingleStack, got IPv6, IPv4",
        ),
        (
            {"services.ipFamilyPolicy": "SingleStack", "router.service.ipFamilies": ["IPv6", "IPv4"]},
            "ipFamilies must be one family where ipFamilyPolicy is SingleStack, got IPv6, IPv4",
        ),
        (
            {"router.service.nodePort": 30051},
            "router.service.nodePort needs router.service.type NodePort or LoadBalancer, got ClusterIP",
        ),
        (
            {"router.service.loadBalancerClass": "x"},
            "router.service.loadBalancerClass needs router.service.type LoadBalancer",
        ),
        (
            {
                "console.enabled": True,
                "console.service.type": "NodePort",
                "console.service.loadBalancerSourceRanges": ["::/0"],
            },
            "console.service.loadBalancerSourceRanges needs console.service.type LoadBalancer, got NodePort",
        ),
        ({"router.service.loadBalancerSourceRanges": ["10.0.0.1"]}, "loadBalancerSourceRanges"),
        (
            {"router.service.externalTrafficPolicy": "Local"},
            "externalTrafficPolicy needs router.service.type NodePort or",
        ),
        (
            {"router.service.type": "LoadBalancer", "router.service.healthCheckNodePort": 32000},
            "healthCheckNodePort needs router.service.externalTrafficPolicy Local, got Cluster",
        ),
        (
            {"router.service.sessionAffinitySeconds": 9},
            "sessionAffinitySeconds needs router.service.sessionAffinity ClientIP",
        ),
        ({"router.service.labels": {"app.kubernetes.io/component": "x"}}, "labels"),
        ({"services.ipFamilies": ["IPv4", "IPv4"]}, "ipFamilies"),
        ({"router.http.ingress.enabled": True}, "router.http.ingress.enabled needs router.http.enabled"),
        ({"router.ingress.enabled": True}, "router.ingress.enabled needs router.ingress.hostnames"),
        (
            {
                "router.http.enabled": True,
                "router.ingress": {"enabled": True, "hostnames": ["a.example.org"]},
                "router.http.ingress": {"enabled": True, "hostnames": ["b.example.org", "a.example.org"]},
            },
            "router.http.ingress.hostnames must differ from router.ingress.hostnames, because one path can't lead to "
            "two APIs: a.example.org is in both",
        ),
        ({"router.http.enabled": True, "router.http.port": 9090}, "must be a port of its own in router pods, got 9090"),
        ({"settings.router.http": {"port": 8000}}, "port"),
        ({**GATEWAY, "gateway.http.enabled": True}, "gateway.http.enabled needs router.http.enabled"),
        (
            {**GATEWAY, "gateway.http.enabled": True, "router.http.enabled": True},
            "gateway.hostnames and gateway.http.hostnames must be set where both routes have the same parents",
        ),
        (
            {
                **GATEWAY,
                "gateway.hostnames": ["a.example.org"],
                "gateway.http": {"enabled": True, "hostnames": ["a.example.org"]},
                "router.http.enabled": True,
            },
            "gateway.http.hostnames must differ from gateway.hostnames, got a.example.org in both",
        ),
        (
            {**GATEWAY, "router.tls.enabled": True},
            "gateway.backendTls.caCertificateRefs must name the authority of the routers' certificate",
        ),
        (
            {
                **GATEWAY,
                "router.tls.enabled": True,
                "gateway.backendTls": {"system": True, "caCertificateRefs": [{"name": "c"}]},
            },
            "gateway.backendTls.system must be false where caCertificateRefs are set",
        ),
    ],
)
def test_values_that_make_no_sense_are_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as error:
        render_values("defaults", values)
    assert complaint in error.value.stderr


def test_a_service_with_one_stack_has_the_first_of_the_families_of_all() -> None:
    """Kubernetes refuses a second one."""
    objects = render_values("ways-in", {"router.service.ipFamilyPolicy": "SingleStack"})
    assert ["IPv6"] == one(objects, "Service", "-router")["spec"]["ipFamilies"]
    assert [] == RULES["families_agree"](objects)


@pytest.mark.parametrize(("tls", "protocol"), [(False, "HTTP"), (True, "HTTPS")])
def test_nginx_passes_the_consoles_long_answers_on(tls: bool, protocol: str) -> None:
    """A plan is silent for minutes, and a chat comes token by token."""
    given = {
        "console.enabled": True,
        "console.hostnames": ["console.example.org"],
        "console.ingress": {"enabled": True, "annotations": {"team": "serving"}},
        "networkPolicy.consoleClients": [{"podSelector": {}}],
        "console.tls": {"enabled": tls, "existingSecret": "page"},
    }
    metadata = one(render_values("defaults", given), "Ingress", "-console")["metadata"]
    prefix = "nginx.ingress.kubernetes.io/"
    assert {
        "team": "serving",
        f"{prefix}backend-protocol": protocol,
        f"{prefix}proxy-read-timeout": "3600",
        f"{prefix}proxy-send-timeout": "3600",
        f"{prefix}proxy-buffering": "off",
        f"{prefix}proxy-body-size": "0",
    } == metadata["annotations"]
