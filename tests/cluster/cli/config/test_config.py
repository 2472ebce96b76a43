"""`penstock config`: all mistakes at once, every value with its origin, and a file to begin with."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cluster.cli.config.lines import lines_of
from cluster.cli.config.starter import TEXT
from cluster.cli.main import main
from cluster.settings import Settings, load_settings
from tests.support.certificates import Authority, dns

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PENSTOCK_SETTINGS", raising=False)
    return tmp_path / "cluster.toml"


def test_check_names_all_mistakes_with_their_lines(
    file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('[router]\nport = 70_000\n\n[pools.demo]\nmodle = "x"\nmax_model_len = 9\n', encoding="utf-8")
    monkeypatch.setenv("PENSTOCK_ROUTR__PORT", "1")
    monkeypatch.setenv("PENSTOCK_QUEUE__LEASE_S", "soon")
    assert 2 == main(["config", "check", str(file), "--port", "70001"])
    said = [line.removeprefix("penstock: ") for line in capsys.readouterr().err.splitlines()]
    assert "PENSTOCK_ROUTR__PORT: unknown variable; did you mean PENSTOCK_ROUTER__PORT?" in said
    assert any(line.startswith("queue.lease_s (PENSTOCK_QUEUE__LEASE_S): must be a number") for line in said)
    assert "--port: router.port: must be at most 65535, got 70001" in said
    assert f"{file}:5: pools.demo.modle: unknown setting; did you mean model?" in said
    assert f"{file}:6: pools.demo.max_model_len: unknown setting; did you mean pools.demo.vllm.max_model_len?" in said
    assert "5 problems" == said[-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[routr]\nport = 1\n", "routr: unknown setting; did you mean router?"),
        ("port = 1\n", "port: unknown setting; did you mean router.port?"),
        (
            "[pools.demo.vllm]\nmax_num_seq = 1\n",
            "pools.demo.vllm.max_num_seq: unknown setting; did you mean max_num_seqs?",
        ),
        ("[tenants.acme]\nwieght = 1\n", "tenants.acme.wieght: unknown setting; did you mean weight?"),
        ("[pools.demo]\nxyzzy = 1\n", "pools.demo.xyzzy: unknown setting"),
        ("[router\n", "is not valid TOML"),
    ],
)
def test_a_name_that_does_not_exist_gets_the_nearest_one(text: str, said: str, file: Path, capsys: Captured) -> None:
    file.write_text(text, encoding="utf-8")
    assert 2 == main(["config", "check", str(file)])
    found = capsys.readouterr().err.splitlines()[0]
    assert found.endswith(said) or ("TOML" in said and said in found)


TABLES = """\
[[pools.a.autoscale.schedule]]
start = "08:00"
end = "18:00"
min_replicas = 1
[[pools.a.autoscale.schedule]]
start = "8 o'clock"
end = "18:00"
min_replicas = 1
[aliases.b]
targets = [
    { model = "a", weight = -1 },
]
[auth.jwt.x]
issuer = "https://a"
[pools."c.d"]
replicas = 0
"""


def test_mistakes_within_lists_and_missing_keys_have_lines_too(file: Path, capsys: Captured) -> None:
    file.write_text(TABLES, encoding="utf-8-sig")
    assert 2 == main(["config", "check", str(file)])
    said = capsys.readouterr().err
    assert f"{file}:6: pools.a.autoscale.schedule.1.start: must be a time of day as HH:MM" in said
    assert f"{file}:10: aliases.b.targets.0.weight: must be at least 0, got -1" in said
    assert f"{file}:13: auth.jwt.x.audiences: is required" in said
    assert f"{file}:16: pools.c.d.replicas: must be at least 1, got 0" in said
    assert "aliases.b.targets: must have" not in said


def test_check_finds_that_nobody_could_call(file: Path, capsys: Captured) -> None:
    file.write_text('[router]\nhost = "0.0.0.0"\n', encoding="utf-8")
    assert 2 == main(["config", "check", str(file), "--no-files"])
    assert (
        "auth.keys_file: must be set, because router.host '0.0.0.0' is no loopback address" in capsys.readouterr().err
    )


def test_a_list_in_a_variable_is_json(file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_REGISTRY__FIXED", "pool")
    assert 2 == main(["config", "check"])
    assert "registry.fixed (PENSTOCK_REGISTRY__FIXED): must be a list, as JSON, got 'pool'" in capsys.readouterr().err


def test_check_looks_for_files_unless_told_not_to(file: Path, capsys: Captured) -> None:
    file.write_text('[pools.a]\nmodel = "/no/a"\n[pools.b]\nmodel = "/no/b"\n[auth]\nkeys_file = "/no/keys.toml"\n')
    assert 2 == main(["config", "check", str(file)])
    said = capsys.readouterr().err
    assert f"{file}:2: pools.a.model: there is no folder /no/a" in said
    assert f"{file}:4: pools.b.model: there is no folder /no/b" in said
    assert f"{file}:6: auth.keys_file: /no/keys.toml cannot be read" in said
    assert 0 == main(["config", "check", str(file), "--no-files"])
    assert f"{file}: no problems\npool a: /no/a, vllm, 1 replica\n" in capsys.readouterr().out


@pytest.mark.parametrize("section", ["router", "replica"])
@pytest.mark.parametrize(
    ("days", "name", "said"),
    [
        (-40, "penstock-replica", "was valid until "),
        (40, "penstock-replica", "is valid only from "),
        (0, "another", "server_name 'penstock-replica'"),
        (0, "penstock-replica", ""),
    ],
)
def test_check_looks_at_the_dates_of_certificates_and_at_names_of_links(
    section: str, days: int, name: str, said: str, file: Path, capsys: Captured, tmp_path: Path
) -> None:
    authority = Authority()
    certificate, key = authority.issue("node", dns(name), days=days).write(tmp_path, "node")
    ca = f"ca_file = '{authority.write(tmp_path)}'" if section == "replica" else ""
    file.write_text(f"[{section}.tls]\ncertificate_file = '{certificate}'\nprivate_key_file = '{key}'\n{ca}\n")
    # Clients of a router know its names.
    wrong = bool(said) and not (section == "router" and not days)
    assert (2 if wrong else 0) == main(["config", "check", str(file)])
    told = capsys.readouterr().err
    assert not wrong or (f"{section}.tls" in told and said in told and certificate in told)
    assert 0 == main(["config", "check", str(file), "--no-files"])


def test_check_of_a_file_that_is_missing_names_it(file: Path, capsys: Captured) -> None:
    assert 2 == main(["config", "check", str(file)])
    assert f"settings file {file} cannot be read: No such file or directory" in capsys.readouterr().err


def test_show_says_where_each_value_comes_from(file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(
        'redis.url = "rediss://app:p%40ss@host/0"\n\n[router]\nport = 50_052\nhost = "127.0.0.1"\n'
        '[pools."a.b"]\nslo = { interactive = { itl_p95_s = 0.05 } }\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("PENSTOCK_ROUTER__HOST", "::1")
    monkeypatch.setenv("PENSTOCK_CLUSTER", '{"log_level": "debug"}')
    assert 0 == main(["config", "show", str(file), "--replicas", "3", "--json"])
    found = json.loads(capsys.readouterr().out)
    for name, value, origin in (
        ("redis.url", "rediss://app:***@host/0", f"{file}:1"),
        ("redis.timeout_s", 2.0, "default"),
        ("router.port", 50_052, f"{file}:4"),
        ("router.host", "::1", "PENSTOCK_ROUTER__HOST"),
        ("cluster.log_level", "debug", "PENSTOCK_CLUSTER"),
        ("pools.a.b.replicas", 3, "--replicas"),
        ("pools.a.b.slo.interactive.itl_p95_s", 0.05, f"{file}:7"),
        ("pools.a.b.slo.interactive.ttft_p99_s", None, "default"),
    ):
        assert {"value": value, "from": origin} == found[name], name

    assert 0 == main(["config", "show", str(file), "--changed"])
    said = capsys.readouterr().out
    assert "default" not in said
    assert '[pools."a.b".slo.interactive]\nitl_p95_s = 0.05' in said


@pytest.mark.parametrize(
    "setting",
    [
        'redis.url = "redis://h:1/0?password=s3cret&socket_timeout=1"',
        'redis.url = "redis+sentinel://a:1,b:2/m?sentinel_username=u&sentinel_password=s3cret"',
        'redis.url = "redis+cluster://u:s3cret@a:1,b:2"',
        'telemetry.otlp_endpoint = "https://u:s3cret@h:1"',
        'pools.a.vllm.extra.hf_token = "s3cret"',
    ],
)
def test_show_hides_passwords(setting: str, file: Path, capsys: Captured) -> None:
    file.write_text(setting, encoding="utf-8")
    for form in ([], ["--json"]):
        assert 0 == main(["config", "show", str(file), "--changed", *form])
        said = capsys.readouterr().out
        assert "***" in said
        assert "s3cret" not in said


def test_a_mistake_in_an_address_is_told_without_its_password(file: Path, capsys: Captured) -> None:
    file.write_text('telemetry.otlp_endpoint = "u:s3cret@h:1"\n', encoding="utf-8")
    assert 2 == main(["config", "check", str(file)])
    said = capsys.readouterr().err
    assert f"{file}:1: telemetry.otlp_endpoint: must begin with http:// or https://, got '***@h:1'" in said


def test_what_show_prints_is_a_file_of_the_same_settings(file: Path, capsys: Captured, tmp_path: Path) -> None:
    file.write_text(TEXT + '\n[pools."b c".vllm.lora_modules]\na = "/x"\n'.replace("b c", "b.c"), encoding="utf-8")
    assert 0 == main(["config", "show", str(file)])
    printed = tmp_path / "printed.toml"
    printed.write_text(capsys.readouterr().out, encoding="utf-8")
    assert load_settings(file, environ={}) == load_settings(printed, environ={})


def test_every_setting_is_shown(file: Path, capsys: Captured) -> None:
    def leaves(tree: object, path: tuple[str, ...] = ()) -> set[str]:
        if isinstance(tree, dict) and tree:
            return {name for key, value in tree.items() for name in leaves(value, (*path, key))}
        return {".".join(path)}

    assert 0 == main(["config", "show", "--json"])
    assert leaves(Settings().model_dump()) == set(json.loads(capsys.readouterr().out))


def test_a_file_to_begin_with_has_no_problems_and_is_not_lost(file: Path, capsys: Captured) -> None:
    assert 0 == main(["config", "init", str(file)])
    assert 0 == main(["config", "check", str(file)])
    assert load_settings(environ={}) == load_settings(file, environ={})
    file.write_text("# mine\n", encoding="utf-8")
    assert 2 == main(["config", "init", str(file)])
    assert "exists; choose another name, or replace it with --force" in capsys.readouterr().err
    assert "# mine\n" == file.read_text(encoding="utf-8")
    assert 0 == main(["config", "init", str(file), "--force"])
    assert TEXT == file.read_text(encoding="utf-8")
    capsys.readouterr()
    assert 0 == main(["config", "init", "-"])
    assert TEXT == capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("before", "flags"), [(None, ()), ("# mine\n", ("--force",))])
def test_a_disk_that_is_full_costs_no_file_and_leaves_none(
    before: str | None, flags: tuple[str, ...], file: Path
) -> None:
    file.unlink(missing_ok=True)
    if before is not None:
        file.write_text(before, encoding="utf-8")
    found = sorted(file.parent.iterdir())
    command = f'ulimit -f 1; exec "{sys.executable}" -m cluster.cli.main config init "{file}" {" ".join(flags)}'
    # One block is less than the text: the end of it fails, as on a full disk.
    assert len(TEXT) > 1024
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    ended = subprocess.run(["bash", "-c", command], env=environ, capture_output=True, text=True, check=False)
    assert (2, f"penstock: {file} cannot be written: File too large") == (ended.returncode, ended.stderr.strip())
    assert found == sorted(file.parent.iterdir())
    assert before is None or before == file.read_text(encoding="utf-8")


def test_a_link_and_a_pipe_stay_what_they_are(file: Path, tmp_path: Path) -> None:
    file.write_text("# mine\n", encoding="utf-8")
    file.chmod(0o640)
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    assert 0 == main(["config", "init", str(link), "--force"])
    assert link.is_symlink()
    assert (TEXT, 0o640) == (file.read_text(encoding="utf-8"), file.stat().st_mode & 0o777)
    file.unlink()
    assert 0 == main(["config", "init", str(link), "--force"])
    assert (True, TEXT) == (link.is_symlink(), file.read_text(encoding="utf-8"))
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert 0 == main(["config", "init", str(pipe), "--force"])
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert TEXT.encode() == os.read(reader, 65_536)
    finally:
        os.close(reader)


def test_what_a_file_to_begin_with_offers_is_good() -> None:
    offered = re.sub(r"^# (?=\[|[a-z_]+ = )", "", TEXT, flags=re.MULTILINE)
    assert offered.count("\n[") > TEXT.count("\n[") + 4
    Settings.model_validate(tomllib.loads(offered))


def test_lines_are_those_of_headers_and_keys() -> None:
    text = '# x\n[a]\nb = 1\n"c.d" = 2\ne.f = [\n  3,\n]\n\n[ "g" . h ] # note\ni = """\nj\n"""\n'
    expected = {("a",): 2, ("a", "b"): 3, ("a", "c.d"): 4, ("a", "e", "f"): 5, ("g", "h"): 9, ("g", "h", "i"): 10}
    assert expected == lines_of(text)
