"""Certificates whose time is not now, or that do not do for a link: named with file, date and what to do."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import Any

import pytest

from cluster.bootstrap.ahead import check_ahead
from cluster.cli.main import main
from cluster.errors import SettingsError
from cluster.settings import ReplicaTlsSettings, RouterTlsSettings, load_settings
from cluster.trust import tls as tls_module
from cluster.trust.tls import TlsFiles, check_link
from cluster.trust.verifying import trusting
from tests.support.certificates import LOOPBACK, Authority, Pair, dns

AUTHORITY, OTHER = Authority(), Authority("other")
NAME = dns("penstock-replica")


def link(folder: Path, pair: Pair) -> dict[str, str]:
    certificate, key = pair.write(folder, "link")
    return {"certificate_file": certificate, "private_key_file": key, "ca_file": AUTHORITY.write(folder)}


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (AUTHORITY.issue("old", NAME, days=-40), r"certificate_file: .*link\.crt was valid until 20.* UTC: put a new"),
        (AUTHORITY.issue("new", NAME, days=40), r"certificate_file: .*link\.crt is valid only from 20.* UTC on"),
        (AUTHORITY.issue("x", dns("other")), r"link\.crt does not do as a replica's .* 'penstock-replica': "),
        (OTHER.issue("x", NAME), r"link\.crt does not do as a replica's certificate with the authority .*ca\.crt"),
    ],
    ids=["expired", "future", "name", "authority"],
)
def test_a_cluster_whose_links_could_not_come_up_is_refused_before_it_starts(
    tmp_path: Path, pair: Pair, words: str
) -> None:
    files = link(tmp_path, pair)

    def settings(**cluster: Any) -> Any:
        sections = {"pools": {"p": {"engine": "sim"}}, "router": {"port": 0}, "replica": {"tls": files}}
        return load_settings(flags={**sections, "cluster": cluster}, environ={})

    with pytest.raises(SettingsError, match=words):
        check_ahead(settings())
    # Its replicas may have other files. To all of them routers show this one.
    over = "certificate_file" in words
    with pytest.raises(SettingsError, match=words) if over else contextlib.nullcontext():
        check_ahead(settings(ray_address="ray.example.com:6379"))


@pytest.mark.parametrize(("days", "words"), [(-40, "was valid until 20"), (40, "is valid only from 20"), (0, "")])
def test_a_cluster_whose_clients_would_refuse_its_routers_does_not_start(
    days: int, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = AUTHORITY.issue("router", *LOOPBACK, days=days).write(tmp_path, "router")
    file = tmp_path / "cluster.toml"
    file.write_text(
        f"[router]\nport = 0\n[router.tls]\ncertificate_file = '{certificate}'\nprivate_key_file = '{key}'\n"
        "[pools.p]\nengine = 'sim'\n"
    )
    refused = ""
    try:
        check_ahead(load_settings(file, environ={}))
    except SettingsError as error:
        refused = str(error)
    assert refused.startswith(f"router.tls.certificate_file: {certificate} {words}" if words else "")
    assert (2 if words else 0) == main(["config", "check", str(file)])
    assert (f"penstock: {file}:4: {refused}\n" if words else "") in capsys.readouterr().err


def test_files_of_issuers_are_looked_at_before_anything_starts(tmp_path: Path) -> None:
    jwks = str(tmp_path / "none.json")
    issuer = {"issuer": "https://a", "audiences": ["penstock"], "tenant": "acme", "jwks_file": jwks}
    flags = {"pools": {"p": {"engine": "sim"}}, "router": {"port": 0}, "auth": {"jwt": {"a": issuer}}}
    with pytest.raises(SettingsError, match=r"^auth\.jwt\.a\.jwks_file: .*none\.json cannot be read: No such file"):
        check_ahead(load_settings(flags=flags, environ={}))


def test_a_good_certificate_does_for_a_link(tmp_path: Path) -> None:
    check_link(ReplicaTlsSettings(**link(tmp_path, AUTHORITY.issue("replica", NAME))))


async def test_a_certificate_whose_time_is_not_now_is_told_once_for_each_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_module, "LOOK_S", 0.0)
    certificate, key = AUTHORITY.issue("old", *LOOPBACK, days=-40).write(tmp_path, "router")
    files = TlsFiles.of_router(RouterTlsSettings(certificate_file=certificate, private_key_file=key))
    server = await asyncio.start_server(
        lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=files.server_context()
    )
    port = server.sockets[0].getsockname()[1]

    async def accepted() -> bool:
        """Return whether a client accepts the server."""
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(AUTHORITY.write(tmp_path)))
        except ssl.SSLCertVerificationError:
            return False
        writer.close()
        return True

    def told() -> list[str]:
        return [vars(each)["problem"] for each in caplog.records if each.message == "certificate.not_valid"]

    assert not await accepted()
    assert not await accepted()
    assert [True] == ["router.crt was valid until " in each for each in told()]
    AUTHORITY.issue("good", *LOOPBACK).write(tmp_path, "router")
    assert await accepted()
    assert 1 == len(told())
    AUTHORITY.issue("new", *LOOPBACK, days=40).write(tmp_path, "router")
    assert not await accepted()
    assert [False, True] == ["router.crt is valid only from " in each for each in told()]
    server.close()
    await server.wait_closed()
