"""What settings take, and that other processes read what was meant."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from cluster.bootstrap.local import LocalCluster
from cluster.errors import SettingsError
from cluster.settings import Settings, load_settings
from cluster.settings.load import parse_settings
from cluster.settings.section import Section


def numbers(section: type[Section], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Name every float of the tree, those of named entries under the name `demo`, of lists under 0."""
    for name, field in section.model_fields.items():
        yield from _numbers_in(field.annotation, (*path, name))


def _numbers_in(annotation: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if annotation is float:
        yield path
    elif isinstance(annotation, type) and issubclass(annotation, Section):
        yield from numbers(annotation, path)
    else:
        inner = (*path, *{dict: ("demo",), tuple: ("0",)}.get(getattr(annotation, "__origin__", None), ()))
        for part in get_args(annotation):
            yield from _numbers_in(part, inner)


HOURS = {"start": "08:00", "end": "18:00", "min_replicas": 1}
NUMBERS = sorted(set(numbers(Settings)))


def flags(path: tuple[str, ...], value: object) -> dict[str, Any]:
    tree: Any = value
    for name in reversed(path):
        tree = [tree] if name == "0" else {name: tree}
    found: dict[str, Any] = tree
    return found


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"router": {"port": 99_999}}, "router.port: must be at most 65535, got 99999"),
        ({"queue": {"lease_s": -1}}, "queue.lease_s: must be at least 0.2, got -1"),
        ({"pools": {"d": {"slo": {"batch": {"ttft_p99_s": 0}}}}}, "ttft_p99_s: must be above 0, got 0"),
        ({"pools": {"d": {"engine": "x"}}}, "pools.d.engine: must be 'vllm' or 'sim', got 'x'"),
        (
            {"pools": {"d": {"cells": 3}}},
            "pools.d: cells must be at most replicas = 1, because each has its own",
        ),
        ({"pools": {"a b": {}}}, "pools.a b: the name must match pattern"),
        ({"aliases": {"f": {"targets": []}}}, "aliases.f.targets: must have at least 1 item, not 0, got []"),
        ({"aliases": {"f": {}}}, "aliases.f.targets: is required"),
        ({"aliases": {"f": {"targets": {"a": 1}}}}, "aliases.f.targets: must be a list"),
        ({"registry": {"fixed": "pool"}}, "registry.fixed: must be a list, got 'pool'"),
        ({"pools": 3}, "pools: must be a table"),
        ({"router": {"port": "a"}}, "router.port: must be an integer, got 'a'"),
        ({"router": {"port": 1.5}}, "router.port: must be an integer, got 1.5"),
        ({"router": {"drain_s": "a"}}, "router.drain_s: must be a number, got 'a'"),
        ({"router": {"reflection": "perhaps"}}, "router.reflection: must be true or false, got 'perhaps'"),
        ({"cluster": {"ray_address": 1}}, "cluster.ray_address: must be text, got 1"),
        (
            {"pools": {"d": {"budget_per_hour": 3}}},
            "pools.d: price_per_gpu_hour must be above 0 where there is a budget_per_hour, got 0",
        ),
    ],
)
def test_a_wrong_value_is_told_with_place_limit_and_value(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags=given, environ={})
    assert told in str(caught.value)


def test_a_list_whose_items_are_wrong_is_not_empty_too() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags={"aliases": {"fast": {"targets": [{"model": "demo", "weight": "a"}]}}}, environ={})
    assert "aliases.fast.targets.0.weight: must be a number, got 'a'" == str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"telemetry": {"otlp_endpoint": "a:1"}},
            "telemetry.otlp_endpoint: must begin with http:// or https://, got 'a:1'",
        ),
        (
            {"pools": {"d": {"autoscale": {"schedule": [{**HOURS, "time_zone": "Mars/Base"}]}}}},
            "pools.d.autoscale.schedule.0.time_zone: must be a time zone that is known here, such as Europe/Berlin, "
            "got 'Mars/Base'",
        ),
        (
            {"tenants": {"x": {"quota": {"cost_per_month": 1}}}, "queue": {"ledger_days": 3}},
            "tenants.x.quota.cost_per_month: queue.ledger_days must be at least 31 for it, got 3",
        ),
    ],
)
def test_a_problem_has_its_place_and_its_value_once(given: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags=given, environ={})
    assert told == str(caught.value)


@pytest.mark.parametrize("path", NUMBERS, ids=".".join)
def test_true_is_no_number(path: tuple[str, ...]) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags=flags(path, True), environ={})
    problems = str(caught.value).split("; ")
    assert f"{'.'.join(path)}: must be a number, got true" in problems


def test_true_is_no_integer() -> None:
    with pytest.raises(SettingsError, match=r"^pools\.d\.replicas: must be an integer, got true$"):
        load_settings(flags={"pools": {"d": {"replicas": True}}}, environ={})


def test_the_numbers_are_found() -> None:
    assert {("router", "drain_s"), ("pools", "demo", "sim", "base_ms")} <= set(NUMBERS)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, "inf"])
@pytest.mark.parametrize("path", NUMBERS, ids=".".join)
def test_a_number_that_is_not_finite_is_refused_by_name(path: tuple[str, ...], value: float | str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags=flags(path, value), environ={})
    problems = str(caught.value).split("; ")
    assert any(one.startswith(f"{'.'.join(path)}: must be a finite number") for one in problems)


@pytest.mark.parametrize("text", ["inf", "nan", "1e999"])
def test_a_file_with_a_number_that_is_not_finite_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(f"[router]\ndrain_s = {text}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"^router\.drain_s: must be a finite number"):
        load_settings(file, environ={})


def test_a_file_that_is_no_utf_8_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("# Schlüssel\n", encoding="latin-1")
    with pytest.raises(SettingsError, match=r"settings file .*penstock\.toml is not UTF-8"):
        load_settings(file, environ={})


@pytest.mark.parametrize("name", ["secret", "~/keys/secret"])
def test_the_secrets_file_is_where_the_settings_say_for_every_process(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here, home, state = tmp_path / "here", tmp_path / "home", tmp_path / "state"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    flags = {"cluster": {"state_dir": str(state), "secret_file": name}}
    cluster = LocalCluster(load_settings(flags=flags, environ={}), lambda _step, _text: None)
    monkeypatch.chdir("/")
    cluster.run_dir.mkdir(parents=True)

    text = cluster._write_settings().read_text(encoding="utf-8")

    expected = home / "keys" / "secret" if name.startswith("~") else here / "secret"
    assert expected == parse_settings(text).cluster.secret_file
    assert expected.is_file()
    assert {expected} == {path for folder in (here, home) for path in folder.rglob("*") if path.is_file()}


def test_the_default_tree_survives_the_way_to_other_processes() -> None:
    settings = load_settings(environ={})
    assert settings == parse_settings(settings.model_dump_json())


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ({"slo": {"standard": {"itl_p95_s": 0.1}}}, "slo.standard.itl_p95_s must be unset where the task is 'embed'"),
        ({"vllm": {"speculative": {}}}, "vllm.speculative must be unset where the task is 'embed'"),
    ],
)
def test_a_pool_that_embeds_has_no_settings_of_output_tokens(pool: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(flags={"pools": {"vectors": {"task": "embed", **pool}}}, environ={})
