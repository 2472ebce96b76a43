"""`penstock keys`, and keys on the command line of clients."""

from __future__ import annotations

import asyncio
import io
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.cli.main import main
from cluster.errors import QuotaExceededError, UnauthenticatedError
from penstock.v1 import inference_pb2 as api
from penstock.v1 import types_pb2 as types
from router.commands.keys import moment
from router.identity.key import key_id, mint_key
from router.identity.keys_file import read_keys_file
from tests.penstock.client.fake_router import FakeRouter, serving
from tests.support.certificates import LOOPBACK, Authority

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def new(file: Path, capsys: Captured, *flags: str) -> str:
    assert 0 == main(["keys", "new", "--file", str(file), *flags])
    return capsys.readouterr().out


def check(file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, key: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO(key + "\n"))
    return main(["keys", "check", "--file", str(file), "--stdin"]), capsys.readouterr().out


def test_a_new_key_is_printed_once_and_works(file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--tenant", "acme", "--role", "operator", "--models", "a, b", "--classes", "batch", "--expires", "2h")
    key = new(file, capsys, *flags).strip()
    [entry] = read_keys_file(file).keys

    assert (key_id(key), 0o600) == (entry.id, stat.S_IMODE(file.stat().st_mode))
    status, said = check(file, capsys, monkeypatch, key)
    assert 0 == status
    assert f"valid: {entry.id}: tenant acme; role operator; models a, b; classes batch; expires " == said[:-26]
    assert key[21:] not in file.read_text() + said


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--tenant", "a b"), "--tenant: must match pattern "),
        (("--tenant", "acme", "--models", "x,,y"), "--models: must match pattern "),
        (
            ("--tenant", "acme", "--classes", "fast"),
            "--classes: must be 'interactive', 'standard' or 'batch', got 'fast'",
        ),
        (("--tenant", "acme", "--not-before", "2d", "--expires", "1d"), "--expires: expires must be after not_before"),
    ],
)
def test_what_is_wrong_with_a_new_key_is_told_of_its_flag(
    flags: tuple[str, ...], told: str, file: Path, capsys: Captured
) -> None:
    new(file, capsys, "--tenant", "first")
    assert 2 == main(["keys", "new", "--file", str(file), *flags])
    assert capsys.readouterr().err.startswith(f"penstock: {told}")


def test_a_key_that_does_not_count_now_fails_the_check(
    file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = new(file, capsys, "--tenant", "acme", "--not-before", "1d").strip()
    old = new(file, capsys, "--tenant", "acme", "--expires", "2020-01-01").strip()

    assert (1, "not valid yet") == ((found := check(file, capsys, monkeypatch, early))[0], found[1].split(":")[0])
    assert (1, "expired") == ((found := check(file, capsys, monkeypatch, old))[0], found[1].split(":")[0])
    assert (1, "not known") == ((found := check(file, capsys, monkeypatch, mint_key()))[0], found[1].split(":")[0])


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_what_is_no_text_is_nobodys_key(
    file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, errors: str
) -> None:
    """Python reads it one way or the other, by the locale."""
    new(file, capsys, "--tenant", "acme")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"psk_\xff\n"), encoding="utf-8", errors=errors))

    assert 1 == main(["keys", "check", "--file", str(file), "--stdin"])
    assert "not known" in capsys.readouterr().out


def test_the_whole_file_is_checked_and_listed(file: Path, capsys: Captured) -> None:
    key = new(file, capsys, "--tenant", "acme").strip()
    file.write_text(file.read_text() + '\n[[certificates]]\nuri = "spiffe://x"\ntenant = "other"\n')

    assert 0 == main(["keys", "check", "--file", str(file)])
    assert [
        f"valid: {key_id(key)}: tenant acme; role user; models all; classes all",
        "valid: uri spiffe://x: tenant other; role user; models all; classes all",
        "1 key, 1 certificate",
    ] == capsys.readouterr().out.splitlines()

    file.write_text("[[keys]]\n")
    assert 2 == main(["keys", "check", "--file", str(file)])
    assert "keys.0.tenant" in capsys.readouterr().err


def test_the_file_of_the_settings_is_the_default(file: Path, capsys: Captured, tmp_path: Path) -> None:
    settings = tmp_path / "cluster.toml"
    settings.write_text(f'[auth]\nkeys_file = "{file}"\n')

    assert 0 == main(["keys", "new", "--settings", str(settings), "--tenant", "acme"])
    assert 1 == len(read_keys_file(file).keys)


@pytest.mark.parametrize("action", ["list", "check"])
def test_a_keys_file_that_is_missing_is_named_as_it_was_given(
    file: Path, action: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_AUTH__KEYS_FILE", str(file))
    for flags, name in ((["--file", str(file)], "--file"), ([], "auth.keys_file")):
        assert 2 == main(["keys", action, *flags])
        said = " ".join(capsys.readouterr().err.split())
        assert f"penstock: {name}: {file} cannot be read: No such file or directory" == said


@pytest.mark.parametrize(("text", "seconds"), [("45s", 45), ("30m", 1_800), ("12h", 43_200), ("90d", 7_776_000)])
def test_a_time_is_read_from_now_on(text: str, seconds: int) -> None:
    now = datetime(2027, 1, 31, 12, tzinfo=UTC)
    assert now + timedelta(seconds=seconds) == moment(text, now, "--expires")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--tenant", "a b"), "tenant"),
        (("--tenant", "a", "--expires", "90x"), "--expires: must be like 90d"),
        (("--tenant", "a", "--classes", "fast"), "classes"),
        (("--tenant", "a", "--overlap", "1h"), "--overlap: needs --replaces"),
        (("--tenant", "a", "--expires", "0m"), ""),
    ],
)
def test_wrong_flags_are_named(file: Path, capsys: Captured, flags: tuple[str, ...], expected: str) -> None:
    status = main(["keys", "new", "--file", str(file), *flags])
    assert (2 if expected else 0) == status
    assert expected in capsys.readouterr().err


def test_who_makes_a_key_that_has_expired_is_told(file: Path, capsys: Captured) -> None:
    assert 0 == main(["keys", "new", "--file", str(file), "--tenant", "acme", "--expires", "2020-01-01"])
    assert "--expires: 2020-01-01 00:00 UTC is over, so nobody can call with this key" in capsys.readouterr().err
    assert 0 == main(["keys", "new", "--file", str(file), "--tenant", "acme", "--expires", "1d"])
    assert "is over" not in capsys.readouterr().err


def test_without_a_file_nothing_is_made(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_SETTINGS", raising=False)
    monkeypatch.delenv("PENSTOCK_AUTH__KEYS_FILE", raising=False)

    assert 2 == main(["keys", "new", "--tenant", "a"])
    assert ("", True) == ((said := capsys.readouterr()).out, "auth.keys_file" in said.err)


@pytest.mark.parametrize("auth", ["", "[auth]\nanonymous = false\n"])
def test_a_cluster_that_others_reach_does_not_start_without_keys(capsys: Captured, tmp_path: Path, auth: str) -> None:
    """Found before Redis, Ray and engines are started."""
    settings = tmp_path / "cluster.toml"
    settings.write_text(f'[router]\nhost = "0.0.0.0"\n{auth}')

    assert 2 == main(["up", "--settings", str(settings), "--state-dir", str(tmp_path / "state")])
    said = " ".join(capsys.readouterr().err.split())
    assert all(word in said for word in ("auth.keys_file: must be set", "auth.anonymous = true"))
    assert not (tmp_path / "state" / "run").exists()


# --- clients ----------------------------------------------------------------------------------------------------------


def run(*arguments: str) -> int:
    return main([arguments[0], "--target", *arguments[1:]])


@pytest.mark.parametrize("source", ["variable", "file"])
async def test_commands_send_the_key_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, source: str
) -> None:
    authority, fake = Authority(), FakeRouter()
    server, client = authority.issue("router.test", *LOOPBACK), authority.issue("me")
    ca, (certificate, key) = authority.write(tmp_path), client.write(tmp_path, "me")
    flags = ["--tls-ca", ca, "--tls-cert", certificate, "--tls-key", key]
    if source == "variable":
        monkeypatch.setenv("PENSTOCK_API_KEY", "the-key")
    else:
        monkeypatch.setenv("PENSTOCK_API_KEY", "another")
        await asyncio.to_thread((tmp_path / "key").write_text, "the-key\n")
        flags += ["--api-key-file", str(tmp_path / "key")]
    credentials = grpc.ssl_server_credentials([(server.key, server.certificate)], authority.pem, True)
    async with serving(fake, credentials=credentials) as port:
        assert 0 == await asyncio.to_thread(run, "generate", f"127.0.0.1:{port}", *flags, "--max-tokens", "2", "hello")

    assert "w0 w1" in capsys.readouterr().out
    assert {"Bearer the-key"} == {one["authorization"] for one in fake.metadata}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), "in the clear to router.example.org:1: give --tls, or --allow-plaintext-key"),
        (("--tls-cert", "x"), "--tls-cert and --tls-key must be given together"),
        (("--tls-server-name", "x"), "--tls-server-name needs --tls"),
        (("--tls-ca", "/no/such/file"), "--tls-ca: /no/such/file cannot be read"),
        (("--api-key-file", "/no/such/file"), "--api-key-file: /no/such/file cannot be read"),
    ],
)
@pytest.mark.parametrize("command", [("status",), ("generate", "x")])
def test_flags_that_do_not_fit_are_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, command: tuple[str, ...], flags: tuple[str, ...], expected: Any
) -> None:
    monkeypatch.setenv("PENSTOCK_API_KEY", "the-key")
    name, *rest = command

    assert 2 == run(name, "router.example.org:1", *flags, *rest)
    said = " ".join(capsys.readouterr().err.split())
    assert (True, False) == (expected in said, "the-key" in said)


@pytest.mark.slow
async def test_who_waits_for_a_quota_or_sent_no_key_reads_why(capsys: Captured) -> None:
    fake = FakeRouter()
    async with serving(fake) as port:
        fake.failures.extend([None, QuotaExceededError("demo", "acme", "requests_per_minute", 10, 1.2)])
        assert 0 == await asyncio.to_thread(run, "generate", f"127.0.0.1:{port}", "hi")
        assert "waiting 1 s: " in (said := " ".join(capsys.readouterr().err.split()))
        assert "tenant 'acme' may use 10 requests per minute" in said
        fake.failures.append(UnauthenticatedError("credentials are missing"))
        assert 1 == await asyncio.to_thread(run, "status", f"127.0.0.1:{port}")
        assert "PENSTOCK_API_KEY or --api-key-file" in capsys.readouterr().err


async def test_adapter_and_class_are_flags(capsys: Captured) -> None:
    fake = FakeRouter()
    async with serving(fake) as port:
        words = ("generate", f"127.0.0.1:{port}", "hi", "--model", "demo")
        assert 0 == await asyncio.to_thread(run, *words, "--lora-adapter", "poet", "--class", "batch")
        asked = fake.requests[-1].generate
        assert ("poet", types.REQUEST_CLASS_BATCH) == (asked.lora_adapter, asked.request_class)
        assert 0 == await asyncio.to_thread(run, *words)
        asked = fake.requests[-1].generate
        assert ("", types.REQUEST_CLASS_STANDARD) == (asked.lora_adapter, asked.request_class)


@pytest.mark.parametrize("flags", [(), ("--json",)])
@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (types.FINISH_REASON_LENGTH, 0),
        (types.FINISH_REASON_STOP, 0),
        (types.FINISH_REASON_CANCELLED, 1),
        (types.FINISH_REASON_DEADLINE, 1),
    ],
)
async def test_a_part_of_an_answer_is_no_success(
    reason: types.FinishReason.ValueType, status: int, flags: tuple[str, ...]
) -> None:
    fake = FakeRouter()
    ends = [
        api.ChoiceEnd(index=0, finish_reason=types.FINISH_REASON_STOP),
        api.ChoiceEnd(index=1, finish_reason=reason),
    ]
    fake.script = [api.StreamGenerateResponse(finished=api.Finished(request_id="r", choices=ends))]
    async with serving(fake) as port:
        words = ("generate", f"127.0.0.1:{port}", "hi", "--model", "demo", *flags)
        assert status == await asyncio.to_thread(run, *words)


async def test_a_schema_comes_from_the_line_or_from_a_file(capsys: Captured, tmp_path: Path) -> None:
    fake, schema = FakeRouter(), tmp_path / "answer.json"
    schema.write_text('{"type": "integer"}')
    async with serving(fake) as port:
        words = ("generate", f"127.0.0.1:{port}", "hi", "--model", "demo", "--json-schema")
        assert 0 == await asyncio.to_thread(run, *words, f"@{schema}")
        assert '{"type": "integer"}' == fake.requests[-1].generate.sampling.structured_output.json_schema
        assert 2 == await asyncio.to_thread(run, *words, f"@{tmp_path}/none.json")
        assert "--json-schema: " in capsys.readouterr().err


@pytest.mark.parametrize(("host", "better"), [("localhost",) * 2, ("[::1]",) * 2, ("::1", "[::1]")])
def test_a_target_without_a_port_is_named(host: str, better: str, capsys: Captured) -> None:
    assert 2 == run("status", host)
    assert f"--target: must be host:port, such as {better}:50051, got '{host}'" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["localhost:65536", "[::1]:150051", "dns:///localhost:99999999999"])
def test_a_port_that_is_none_is_not_dialled_as_another_one(host: str, capsys: Captured) -> None:
    assert 2 == run("status", host)
    assert f"--target: a port must be 1 to 65535, got '{host}'" in capsys.readouterr().err


def test_the_list_shows_every_entry_and_no_hash(file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    # A narrow screen folds texts.
    monkeypatch.setenv("COLUMNS", "200")
    key = new(file, capsys, "--tenant", "acme", "--role", "admin", "--models", "a,b", "--expires", "2020-01-01").strip()
    file.write_text(file.read_text() + '\n[[certificates]]\nuri = "spiffe://x"\ntenant = "other"\n')

    assert 0 == main(["keys", "list", "--file", str(file)])
    said = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines() if "│" in line]
    assert [key_id(key), "expired", "acme", "admin", "a, b", "all", "expires 2020-01-01 00:00:00+00:00"] in rows
    assert ["uri spiffe://x", "valid", "other", "user", "all", "all", ""] in rows
    assert read_keys_file(file).keys[0].sha256 not in said
