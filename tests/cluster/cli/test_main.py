"""What all commands share: errors as they are, on one line; flags that contradict each other; the choice of a pool."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from rich.console import Console

from cluster.bootstrap.ahead import check_ahead
from cluster.bootstrap.process import ChildProcess
from cluster.cli.main import build_parser, main
from cluster.cli.options import settings_from
from cluster.cli.up import _try
from cluster.clock import ManualClock
from cluster.errors import BootstrapError, SettingsError
from cluster.settings import load_settings
from cluster.terminal.console import WIDE, screen
from penstock.client import DeadlineExceededError, Delta, Finished, UnavailableError
from penstock.models import FinishReason
from penstock.v1 import types_pb2
from penstock.values.events import ChoiceEnd
from penstock.values.results import Receipt, Usage
from router.commands import target
from router.commands.answer import Shown
from router.commands.generate import prompt_from
from router.commands.target import report_call_errors
from tests.support.certificates import Authority, dns


@pytest.mark.parametrize("name", ["no[/]file.csv", "no[red]file.csv", "x" * 60 + " y" * 60])
def test_an_error_is_one_line_and_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["simulate", "--trace", name])
    assert f"penstock: {name}: No such file or directory\n" == capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "before"),
    [
        ("jobs submit", ""),
        ("keys check --file", "--file: "),
        ("loadtest --scenario", "scenario "),
        ("plan --check-points", ""),
        ("plan --observe p1", "observe: "),
        ("plan --rate 1 --profile", "profile: "),
        ("status --tls-ca", "--tls-ca: "),
        ("weights check --list", "--list: "),
    ],
)
def test_a_file_that_is_missing_is_named_once(
    command: str, before: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "no.toml"
    assert 2 == main([*command.split(), str(path)])
    said = capsys.readouterr().err
    assert said.startswith(f"penstock: {before}{path}")
    assert said.endswith(": No such file or directory\n")
    assert 1 == said.count(str(path))
    assert "Errno" not in said


@pytest.mark.parametrize(
    "flags",
    [
        ("--choice", "a", "--regex", "b"),
        ("--json-schema", "{}", "--choice", "a"),
        ("--timeout", "0"),
        ("--timeout", "-1"),
        ("--timeout", "inf"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser(whole=True).parse_args(["generate", "hi", *flags])
    assert 2 == caught.value.code
    assert flags[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("generate", "hi", "--timeout", "soon"), "argument --timeout: must be a number above 0, got 'soon'"),
        (("usage", "--last-day", "2026-02-30"), "argument --last-day: must be a day such as 2026-01-31, got '20"),
    ],
)
def test_a_flag_says_what_it_takes(flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser(whole=True).parse_args(flags)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--model", "--pool", "--redis-url", "--settings", "--state-dir"])
def test_a_cluster_is_not_started_for_a_variable_that_is_not_set(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser(whole=True).parse_args(["up", flag, ""])
    assert f"argument {flag}: must not be empty, got ''" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["up", "down", "plan", "profile"])
def test_a_file_is_no_state_folder(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit):
        build_parser(whole=True).parse_args([command, "--state-dir", str(tmp_path / "file")])
    assert "argument --state-dir: must be a folder, got" in capsys.readouterr().err
    build_parser(whole=True).parse_args([command, "--state-dir", str(tmp_path / "new")])


def test_letters_that_the_locale_lacks_are_written_as_escapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert 0 == main(["down", "--state-dir", str(tmp_path / "é→")])
    assert written.getvalue().endswith("/é\\u2192\n".encode("latin-1"))


@pytest.mark.parametrize(("encoding", "errors"), [("utf-8", "surrogateescape"), ("latin-1", "strict")])
def test_a_prompt_of_standard_input_is_utf_8_whatever_the_locale(
    encoding: str, errors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = build_parser(whole=True).parse_args(["generate", "-"])
    for text, expected in (("café".encode(), contextlib.nullcontext()), (b"caf\xe9", pytest.raises(SettingsError))):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text), encoding=encoding, errors=errors))
        with expected:
            assert "café" == prompt_from(options)


@pytest.mark.parametrize(
    "words",
    [("jobs", "get"), ("jobs", "watch"), ("usage", "--tenant"), ("usage", "--pool"), ("generate", "hi", "--model")],
)
def test_bytes_that_are_no_utf_8_are_said_in_a_line(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main([*words, "caf\udce9"])
    assert "penstock: arguments must be UTF-8, got 'caf\\udce9'" == capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--json",), ()])
def test_who_has_read_enough_is_no_error(tmp_path: Path, flags: tuple[str, ...]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n")
    code = "import sys; from cluster.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "simulate", "--trace", str(trace), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.close()
        _, said = child.communicate()

    # A spinner leaves an empty line.
    assert (141, "") == (child.returncode, said.strip())


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--json",), ()])
def test_a_full_disk_is_said_in_a_line(tmp_path: Path, flags: tuple[str, ...]) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n")
    command = [sys.executable, "-m", "cluster.cli.main", "simulate", "--trace", str(trace), *flags]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    said = "penstock: the output can't be written: No space left on device"
    assert (1, said) == (ended.returncode, ended.stderr.strip())


def test_tables_are_wide_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert WIDE == screen().width
    monkeypatch.setenv("COLUMNS", "90")
    assert 90 == screen().width


def up(*flags: str) -> argparse.Namespace:
    return build_parser(whole=True).parse_args(["up", *flags])


def test_flags_describe_the_only_pool(tmp_path: Path) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('[pools.small]\nmodel = "demo"\n')
    two.write_text('[pools.small]\nmodel = "demo"\n[pools.large]\nmodel = "demo"\n')

    assert {"demo": "sim"} == {name: pool.engine for name, pool in settings_from(up("--engine", "sim")).pools.items()}
    found = settings_from(up("--engine", "sim", "--settings", str(one))).pools
    assert {"small": "sim"} == {name: pool.engine for name, pool in found.items()}
    with pytest.raises(SettingsError, match="--pool must say which pool the flags describe: small, large"):
        settings_from(up("--engine", "sim", "--settings", str(two)))
    found = settings_from(up("--engine", "sim", "--pool", "large", "--settings", str(two))).pools
    assert {"small": "vllm", "large": "sim"} == {name: pool.engine for name, pool in found.items()}


def test_a_pools_name_counts_without_another_flag(tmp_path: Path) -> None:
    file = tmp_path / "one.toml"
    file.write_text('[pools.small]\nmodel = "/models/small"\n')

    assert {"chat": "demo"} == {name: pool.model for name, pool in settings_from(up("--pool", "chat")).pools.items()}
    found = settings_from(up("--pool", "small", "--settings", str(file))).pools
    assert {"small": "/models/small"} == {name: pool.model for name, pool in found.items()}


def test_what_is_printed_to_try_works() -> None:
    pools = {"a": {"model": "demo"}, "b": {"model": "demo"}}
    assert 'penstock generate --target h:1 "What is Penstock?"' == _try(load_settings(environ={}), "h:1")
    # Some shells take brackets for a pattern.
    assert "penstock generate --target '[::1]:1' \"What" in _try(load_settings(environ={}), "[::1]:1")
    for everywhere, here in (("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "'[::1]:1'")):
        assert f"penstock generate --target {here} " in _try(load_settings(environ={}), everywhere)
    several = load_settings(flags={"pools": pools, "auth": {"keys_file": "keys.toml"}}, environ={})
    assert "PENSTOCK_API_KEY=<API key> penstock generate --target h:1 --model a" in _try(several, "h:1")
    files = {"certificate_file": "a", "private_key_file": "b"}
    assert '--target h:1 --tls-ca <file> "What' in _try(settings(router={"tls": files}), "h:1")
    asked = _try(settings(router={"tls": {**files, "client_ca_file": "c"}}), "h:1")
    assert '--target h:1 --tls-ca <file> --tls-cert <file> --tls-key <file> "What' in asked


def settings(**sections: Any) -> Any:
    return load_settings(flags=sections, environ={})


def test_a_missing_model_and_a_taken_port_are_found_before_anything_starts() -> None:
    check_ahead(settings(pools={"p": {"model": "org/name"}}, router={"port": 0}))
    for model in ("/no/such/model", "./no/such", "~/no/such"):
        with pytest.raises(SettingsError, match=f"pools.p.model: there is no folder {model}"):
            check_ahead(settings(pools={"p": {"model": model}}, router={"port": 0}))
    with socket.socket() as taken:
        # As routers of another cluster would.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        # The user sees who has it, and needs no other tool.
        used = rf"{port} on 127.0.0.1 is in use by process {os.getpid()} \(.+\); choose another"
        with pytest.raises(SettingsError, match=f"router.port: {used}"):
            check_ahead(settings(router={"port": port, "host": "127.0.0.1"}))
        with pytest.raises(SettingsError, match=f"router.metrics_port: {used}"):
            check_ahead(settings(router={"port": 0, "metrics_port": port, "processes": 2, "host": "127.0.0.1"}))
    check_ahead(settings(router={"port": port, "host": "127.0.0.1"}))
    for url in ("redis://h/0?timeuot=3", "redis+cluster://h", "redis+sentinel://h/main", ""):
        with pytest.raises(SettingsError, match="timeuot") if "?" in url else contextlib.nullcontext():
            check_ahead(settings(redis={"url": url}, router={"port": 0}))


def test_files_of_keys_and_certificates_are_looked_at_before_anything_starts(tmp_path: Path) -> None:
    authority = Authority()
    name = dns("penstock-replica")
    (certificate, key), (_, other_key) = (authority.issue(of, name).write(tmp_path, of) for of in ("own", "other"))

    def files(key: str) -> dict[str, str]:
        return {"certificate_file": certificate, "private_key_file": key}

    link = {"ca_file": authority.write(tmp_path)}
    with pytest.raises(SettingsError, match=r"auth\.keys_file: .*none\.toml cannot be read: No such file"):
        check_ahead(settings(auth={"keys_file": str(tmp_path / "none.toml")}, router={"port": 0}))
    with pytest.raises(SettingsError, match=r"router\.tls: .* are no certificate with its unencrypted private key"):
        check_ahead(settings(router={"port": 0, "tls": files(other_key)}))
    with pytest.raises(SettingsError, match=r"replica\.tls\.private_key_file: .*none\.key cannot be read"):
        check_ahead(settings(replica={"tls": {**files(str(tmp_path / "none.key")), **link}}, router={"port": 0}))
    check_ahead(settings(replica={"tls": {**files(key), **link}}, router={"port": 0, "tls": files(key)}))


async def test_a_log_is_quoted_from_where_its_process_began(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("OldError: of the run before\n")
    code = "print('(replica pid=7) pkg.NewError: no weights'); raise SystemExit(3)"
    child = await ChildProcess.start("x", [sys.executable, "-c", code], log)
    assert 3 == await child.wait()

    assert "(replica pid=7) pkg.NewError: no weights\n" == child.log_tail()
    with pytest.raises(BootstrapError, match=r"^x ended: status 3; end of its log:\n\(replica pid=7\) pkg.*weights$"):
        child.check()


def test_choices_are_shown_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Shown(Console(stderr=True), labels=True)
    for index, text in ((0, "a"), (1, "x"), (0, "b"), (1, "y")):
        shown.add(Delta(index, text, (1,), (), 0))
    shown.add(finished("stop", "stop"))
    assert "[0] ab\n[1] xy\n" == capsys.readouterr().out


def finished(*reasons: str) -> Finished:
    ends = tuple(ChoiceEnd(index, FinishReason(reason), "", 3) for index, reason in enumerate(reasons))
    return Finished(ends, Usage.from_proto(types_pb2.Usage()), Receipt.from_proto(types_pb2.Receipt()), "r1")


@pytest.mark.parametrize(
    ("text", "reason", "said"),
    [
        ('{"answer"', "length", "the JSON is not complete: it reached the largest number of tokens"),
        ('{"answer": 1}', "length", ""),
        ('{"answer": 1}', "stop", ""),
    ],
)
def test_json_that_was_cut_off_is_no_success_in_silence(
    text: str, reason: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Shown(Console(stderr=True, width=200), is_json=True, receipt=False)
    shown.add(Delta(0, text, (1,), (), 0))
    shown.add(finished(reason))
    found = capsys.readouterr()
    assert (f"{text}\n", said) == (found.out, found.err.strip().partition(";")[0])


@pytest.mark.parametrize(("flag", "value"), [("--max-tokens", "-1"), ("--top-k", "-5"), ("--seed", str(2**64))])
def test_a_number_that_fits_no_field_is_named(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["generate", "hi", "--model", "demo", flag, value])
    said = capsys.readouterr().err
    assert said.startswith(f"penstock: {flag}: must be a whole number, at least ")
    assert said.endswith(f", got {value}\n")


def test_what_takes_everything_back_goes_with_no_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["operating-point", "--pool", "demo", "--from-settings", "--itl-p95-ms", "40"])
    assert "so --itl-p95-ms can't go with it" in capsys.readouterr().err


def test_a_class_without_a_promise_to_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["operating-point", "--class", "interactive", "--attainment", "0.9"])
    assert "--class: needs --ttft-p99-s or --itl-p95-ms" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "many"])
def test_a_limit_that_no_router_takes_is_refused(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser(whole=True).parse_args(["decisions", "--limit", limit])
    assert 2 == caught.value.code
    assert "--limit: must be a whole number of at" in capsys.readouterr().err
    assert 1000 == build_parser(whole=True).parse_args(["decisions", "--limit", "1000"]).limit


@pytest.mark.parametrize("value", ["nan", "inf", "1e300", "soon"])
@pytest.mark.parametrize(
    "command",
    [
        "jobs submit in.jsonl --run-within",
        "operating-point --pool demo --ttft-p99-s",
        "operating-point --pool demo --itl-p95-ms",
    ],
)
def test_a_time_that_no_message_holds_is_refused(command: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser(whole=True).parse_args([*command.split(), value])
    assert 2 == caught.value.code
    assert f"got '{value}'" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--attainment", "--price-per-gpu-hour", "--budget-per-hour"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
def test_a_point_has_no_number_that_is_none(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser(whole=True).parse_args(["operating-point", "--pool", "demo", f"{flag}={value}"])
    assert f"{flag}: must be a number of at least 0, got '{value}'" in capsys.readouterr().err


def test_a_part_of_the_requests_is_at_most_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser(whole=True).parse_args(["operating-point", "--pool", "demo", "--attainment", "99"])
    assert "--attainment: must be a number of at most 1, got '99'" in capsys.readouterr().err


def test_a_deadline_says_what_the_time_was_spent_on(capsys: pytest.CaptureFixture[str]) -> None:
    away = UnavailableError("the queue [demo] is not reachable", grpc.StatusCode.UNAVAILABLE)
    late = DeadlineExceededError("Deadline Exceeded", grpc.StatusCode.DEADLINE_EXCEEDED)
    late.waited_for = away
    options = build_parser(whole=True).parse_args(["status", "--target", "h:1"])
    with report_call_errors(options, "9 s (--timeout)") as outcome:
        raise late
    said = (
        "penstock: there was no complete answer within 9 s (--timeout); it was waiting for: the queue [demo] is not "
        "reachable\n"
    )
    assert (1, said) == (outcome.status, capsys.readouterr().err)


def test_a_reason_to_wait_is_said_once_in_a_while(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(target.time, "monotonic", clock.monotonic)
    say = target._Waits()
    gone, full = (UnavailableError(text, grpc.StatusCode.UNAVAILABLE) for text in ("gone", "full"))
    say(0.2, gone)
    for error in (gone, gone, full):
        say(2.0, error)
    clock.advance(target.AGAIN_S)
    say(2.0, full)
    said = capsys.readouterr().err.splitlines()
    assert [f"waiting 2 s: {reason}" for reason in ("gone", "full", "full")] == said


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--drain", "nan"),
        ("--drain", "-1"),
        ("--request-timeout", "0"),
        ("--request-timeout", "nan"),
        ("--flush-interval", "-1"),
        ("--processes", "0"),
    ],
)
def test_a_load_test_that_could_not_end_or_do_anything_is_refused(
    flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        build_parser(whole=True).parse_args(["loadtest", flag, value])
    assert 2 == caught.value.code
    assert f"argument {flag}: must be a" in (said := capsys.readouterr().err)
    assert f"got '{value}'" in said
