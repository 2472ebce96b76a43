"""Every variable of ours sets what its name says, or is refused by its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.errors import SettingsError
from cluster.settings import load_settings
from cluster.settings.environment import NOT_SETTINGS

FOLDERS = ("cluster", "deployments", "loadtest", "router", "tests/support", "tests/integration", "tests/chaos")
FILE = """
[pools.Large]
engine = "sim"

[tenants.ACME]
weight = 2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "penstock.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


def test_names_of_the_file_are_matched_whatever_their_case(file: Path) -> None:
    environ = {"PENSTOCK_POOLS__LARGE__REPLICAS": "3", "PENSTOCK_TENANTS__ACME__POOLS__LARGE__CONCURRENCY": "5"}
    settings = load_settings(file, environ=environ)
    assert {"Large": 3} == {name: pool.replicas for name, pool in settings.pools.items()}
    assert 5 == settings.tenants["ACME"].pools["Large"].concurrency
    assert (["ACME"], 2) == (list(settings.tenants), settings.tenants["ACME"].weight)


def test_names_of_flags_are_matched_too() -> None:
    flags = {"pools": {"Large": {"engine": "sim"}}}
    assert 3 == load_settings(flags=flags, environ={"PENSTOCK_POOLS__LARGE__REPLICAS": "3"}).pools["Large"].replicas


def test_new_names_are_in_lower_case() -> None:
    assert ["small"] == list(load_settings(environ={"PENSTOCK_POOLS__SMALL__REPLICAS": "2"}).pools)


def test_a_name_that_may_mean_two_is_refused(file: Path) -> None:
    file.write_text("[pools.Large]\n[pools.large]\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"PENSTOCK_POOLS__LARGE__REPLICAS: may mean any of Large, large"):
        load_settings(file, environ={"PENSTOCK_POOLS__LARGE__REPLICAS": "3"})


def test_a_whole_section_is_taken_as_json(file: Path) -> None:
    environ = {"PENSTOCK_TENANTS": '{"Umbrella": {"weight": 3}}', "PENSTOCK_TENANTS__UMBRELLA__POOLS": '{"Large": {}}'}
    settings = load_settings(file, environ=environ)
    assert {"ACME": 2, "Umbrella": 3} == {name: tenant.weight for name, tenant in settings.tenants.items()}
    assert ["Large"] == list(settings.tenants["Umbrella"].pools)


def test_null_takes_a_setting_of_the_file_back(file: Path) -> None:
    file.write_text('[auth]\nkeys_file = "/keys.toml"\n', encoding="utf-8")
    assert load_settings(file, environ={"PENSTOCK_AUTH__KEYS_FILE": "null"}).auth.keys_file is None


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"PENSTOCK_ROUTER_PORT": "1"}, "PENSTOCK_ROUTER_PORT: unknown variable; did you mean PENSTOCK_ROUTER__PORT?"),
        (
            {"PENSTOCK_RUOTER__PORT": "1"},
            "PENSTOCK_RUOTER__PORT: unknown variable; did you mean PENSTOCK_ROUTER__PORT?",
        ),
        ({"PENSTOCK_DEFAULT_TENANT_WEIGHT": "1"}, "did you mean PENSTOCK_DEFAULT_TENANT__WEIGHT?"),
        ({"PENSTOCK_PROT": "1"}, "PENSTOCK_PROT: unknown variable; settings are PENSTOCK_<SECTION>__<KEY>"),
        ({"PENSTOCK_ROUTER__PROT": "1"}, "router.prot (PENSTOCK_ROUTER__PROT): unknown setting; did you mean port?"),
        ({"PENSTOCK_ROUTER__PORT": "many"}, "router.port (PENSTOCK_ROUTER__PORT): must be an integer"),
        ({"PENSTOCK_ROUTER": "50051"}, "PENSTOCK_ROUTER: must be a JSON object"),
        ({"PENSTOCK_ROUTER": "null"}, "PENSTOCK_ROUTER: must be a JSON object"),
        (
            {"PENSTOCK_ROUTER__TLS": "x", "PENSTOCK_ROUTER__TLS__CERTIFICATE_FILE": "y"},
            "PENSTOCK_ROUTER__TLS__CERTIFICATE_FILE: PENSTOCK_ROUTER__TLS gives router.tls as a whole",
        ),
        (
            {"PENSTOCK_ROUTER": '{"port": 1}', "PENSTOCK_ROUTER__PORT": "2"},
            "PENSTOCK_ROUTER__PORT: PENSTOCK_ROUTER sets router.port, too",
        ),
        ({"PENSTOCK_router__port": "1", "PENSTOCK_ROUTER__PORT": "2"}, "PENSTOCK_ROUTER__PORT sets router.port, too"),
    ],
)
def test_a_variable_that_sets_nothing_is_refused_by_its_name(environ: dict[str, str], problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(environ=environ)
    assert problem in str(caught.value)


def test_every_variable_that_our_programs_read_is_known() -> None:
    root = Path(__file__).resolve().parents[3]
    files = [root / "Makefile", *(file for folder in FOLDERS for file in (root / folder).rglob("*.py"))]
    read = {name for file in files for name in re.findall(r"\bPENSTOCK_[A-Z_]+\b", file.read_text(encoding="utf-8"))}
    assert {"PENSTOCK_API_KEY", "PENSTOCK_RAY_FAULTS"} <= read
    assert {name for name in read if "__" not in name} <= NOT_SETTINGS


def test_variables_that_are_no_settings_are_left_alone() -> None:
    links = {
        "PENSTOCK_ROUTER_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_ROUTER_SERVICE_PORT": "50051",
        "PENSTOCK_ROUTER_SERVICE_PORT_GRPC": "50051",
        "PENSTOCK_ROUTER_PORT": "tcp://10.0.0.1:50051",
        "PENSTOCK_ROUTER_PORT_50051_TCP": "tcp://10.0.0.1:50051",
        "PENSTOCK_ROUTER_PORT_50051_TCP_PROTO": "tcp",
        "PENSTOCK_ROUTER_PORT_50051_TCP_PORT": "50051",
        "PENSTOCK_ROUTER_PORT_50051_TCP_ADDR": "10.0.0.1",
        "PENSTOCK_SERVICE_HOST": "10.0.0.2",
        "PENSTOCK_PORT": "udp://10.0.0.2:53",
    }
    own = {"PENSTOCK_API_KEY": "k", "PENSTOCK_DATA": "/data", "PENSTOCK_SETTINGS": ""}
    assert load_settings(environ={}) == load_settings(environ=links | own | {"PATH": "/bin"})


def test_a_variable_below_what_is_no_section_does_not_hide_it(file: Path) -> None:
    file.write_text('redis = "redis://:hunter2@queue"\n', encoding="utf-8")
    with pytest.raises(SettingsError, match=r"^redis: must be"):
        load_settings(file, flags={"redis": {"url": None}}, environ={"PENSTOCK_REDIS__TIMEOUT_S": "1"})
