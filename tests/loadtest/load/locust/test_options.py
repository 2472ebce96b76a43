"""What the flags of a load come to. Locust hands on what its page holds, so they are checked where a test begins."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from cluster.cli.main import main
from cluster.errors import SettingsError
from loadtest.load.locust.options import DEFAULT_DRAIN_S, add_load_flags, drain_of, target_of


def options(**given: Any) -> argparse.Namespace:
    """Return the flags of a load as Locust has them, with others in the place of some."""
    parser = argparse.ArgumentParser()
    add_load_flags(parser, "")
    tls = {"router_tls": False, "router_ca": "", "router_cert": "", "router_key": "", "router_server_name": ""}
    parsed = vars(parser.parse_args([]))
    return argparse.Namespace(**{**parsed, **tls, "api_key_file": "", "allow_plaintext_key": False, **given})


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon", float("nan"), float("inf"), -1.0, 1e300])
def test_bounds_of_time_are_times(value: object) -> None:
    with pytest.raises(SettingsError, match=r"drain must be a number from 0 to 315576000000, got "):
        drain_of(options(drain=value))
    with pytest.raises(SettingsError, match=r"request-timeout must be a number above 0 and at most 315576000000, got "):
        target_of(options(request_timeout=value), "h:1")
    with pytest.raises(SettingsError, match=r"flush-interval must be a number from 0 to 315576000000, got "):
        target_of(options(flush_interval=value), "h:1")


def test_a_request_without_time_is_none() -> None:
    assert 0.0 == drain_of(options(drain=0))
    with pytest.raises(SettingsError, match="request-timeout must be a number above 0"):
        target_of(options(request_timeout=0.0), "h:1")


def test_what_the_page_leaves_empty_is_the_default() -> None:
    target = target_of(options(request_timeout="", flush_interval=""), "h:1")
    assert (600.0, None, DEFAULT_DRAIN_S) == (target.timeout_s, target.flush_s, drain_of(options(drain="")))
    target = target_of(options(request_timeout="5", flush_interval="0"), "h:1")
    assert (5.0, 0.0) == (target.timeout_s, target.flush_s)


def test_a_key_that_no_header_takes_is_said_without_it(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"k\xff")
    with pytest.raises(SettingsError, match="key"):
        target_of(options(api_key_file=str(tmp_path / "key")), "127.0.0.1:1")
    flags = ["loadtest", "--target", "127.0.0.1:1", "--duration", "1", "--api-key-file", str(tmp_path / "key")]
    assert 2 == main(flags)


@pytest.mark.parametrize("target", ["127.0.0.1:1", "https://127.0.0.1:1"])
@pytest.mark.parametrize("parts", [("ca",), ("cert", "key")])
def test_a_file_that_is_missing_is_named_with_its_flag(
    target: str, parts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    files = {part: f"none.{part}" for part in parts}
    flags = [word for part, name in files.items() for word in (f"--tls-{part}", name)]
    assert 2 == main(["loadtest", "--target", target, "--duration", "1", *flags])
    said = " ".join(capsys.readouterr().err.split())
    assert f"penstock: --tls-{parts[0]}: none.{parts[0]} cannot be read: No such file or directory" == said
    with pytest.raises(SettingsError, match=f"^router-{parts[0]}: none.{parts[0]} cannot be read: No such file"):
        target_of(options(**{f"router_{part}": name for part, name in files.items()}), target)
