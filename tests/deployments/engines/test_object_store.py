"""Models and adapters in object stores."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from cluster.errors import EngineStartError
from cluster.settings import EngineKind, PoolSettings, SpeculativeSettings, VllmSettings
from cluster.sources import source_of
from deployments.engines import identity
from deployments.engines.adapter_files import adapter_folder
from deployments.engines.factory import build_engine, model_source
from deployments.engines.object_store import missing_reader
from deployments.engines.vllm.startup.arguments import engine_arguments
from deployments.engines.vllm.startup.object_store import check_readers

URL = "s3://bucket/models/m"


class Store:
    """Stands for the library that reads stores: it has some files, and writes those that fit."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.asked: list[str] = []

    def pull_files(self, url: str, folder: str, *, allow_pattern: list[str]) -> None:
        self.asked.append(url)
        for name, content in self.files.items():
            if any(Path(name).match(pattern) for pattern in allow_pattern):
                file = Path(folder) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)


def install(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    module: Any = ModuleType("runai_model_streamer")
    module.pull_files = store.pull_files
    monkeypatch.setitem(sys.modules, "runai_model_streamer", module)


def test_a_url_reaches_vllm_with_both_slashes_and_the_format_that_streams() -> None:
    pool = PoolSettings(model=URL)
    found = engine_arguments(pool, model_source(pool).engine_name, on_cpu=False)
    assert (URL, "runai_streamer") == (found["model"], found["load_format"])
    sharded = PoolSettings(model=URL, vllm=VllmSettings(load_format="runai_streamer_sharded"))
    assert "runai_streamer_sharded" == engine_arguments(sharded, URL, on_cpu=False)["load_format"]
    assert "auto" == engine_arguments(PoolSettings(model="org/m"), "org/m", on_cpu=False)["load_format"]


def test_an_engine_gets_the_url_and_not_a_path() -> None:
    assert URL == build_engine(PoolSettings(model=URL))._model_path  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("url", "package"),
    [
        (URL, r"pip install 'runai-model-streamer\[s3\]'"),
        ("gs://bucket/m", r"runai-model-streamer\[gcs\]"),
        ("az://bucket/m", r"runai-model-streamer\[azure\]"),
    ],
)
def test_without_its_package_the_start_fails_at_once_and_names_it(
    monkeypatch: pytest.MonkeyPatch, url: str, package: str
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(EngineStartError, match=rf"model: {url} is in an object store, .*{package}") as raised:
        check_readers(PoolSettings(model=url))
    assert raised.value.final
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    assert "" == missing_reader(source_of(url))
    check_readers(PoolSettings(model=url))


def test_an_engine_starts_from_no_other_place_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    check_readers(PoolSettings(model="org/m"))
    check_readers(PoolSettings(model="demo"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": URL, "vllm": {"load_format": "gguf"}}, "load_format must be one of auto, .*got 'gguf'"),
        ({"model": URL, "revision": "v1"}, "revision must be unset where model is 's3://bucket/models/m'"),
        ({"model": "demo", "revision": "v1"}, "revision must be unset where model is 'demo'"),
        ({"model": "/models/m", "revision": "v1"}, "revision must be unset where model is '/models/m'"),
        ({"model": "org/m@v1", "revision": "v2"}, "revision must be unset where model has one already, got 'org/m@v1'"),
        ({"model": "org/m", "revision": "../../elsewhere"}, "revision"),
        ({"model": "org/m", "revision": "/elsewhere"}, "revision"),
        ({"model": "s3:/bucket/m"}, "must have two slashes"),
        ({"model": "m", "vllm": {"lora_modules": {"a": "http://x"}}}, "must be a folder, a hub id, or a URL"),
        (
            {"model": "m", "vllm": {"speculative": {"method": "draft_model", "model": URL}}},
            "vllm.speculative.model must not be in an object store where model is 'm'",
        ),
    ],
)
def test_settings_that_no_engine_could_use_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        PoolSettings.model_validate(settings)


def test_a_simulated_engine_needs_no_store() -> None:
    build_engine(PoolSettings(model=URL, engine=EngineKind.SIM))


def test_a_revision_holds_for_weights_and_tokenizer_and_code_has_one_of_its_own() -> None:
    """Code may be of another repository, which does not have the weights' commit."""
    pinned = ("revision", "tokenizer_revision")
    for pool in (PoolSettings(model="org/m", revision="abc"), PoolSettings(model="org/m@abc")):
        found = engine_arguments(pool, model_source(pool).engine_name, on_cpu=False)
        assert ("org/m", ["abc"] * 2) == (found["model"], [found[name] for name in pinned])
        assert "code_revision" not in found
    other = PoolSettings(model="org/m", revision="abc", vllm=VllmSettings(extra={"code_revision": "def"}))
    assert "def" == engine_arguments(other, "org/m", on_cpu=False)["code_revision"]
    free = engine_arguments(PoolSettings(model="org/m"), "org/m", on_cpu=False)
    assert not set(pinned) & set(free)


def test_a_draft_model_has_a_revision_of_its_own() -> None:
    draft = SpeculativeSettings(method="draft_model", model="org/draft@v2")
    pool = PoolSettings(model="org/m", revision="abc", vllm=VllmSettings(speculative=draft))
    config = engine_arguments(pool, "org/m", on_cpu=False)["speculative_config"]
    assert ("org/draft", "v2") == (config["model"], config["revision"])


def test_weights_in_another_place_are_another_model(tmp_path: Path) -> None:
    """The folder of such a model has no weights, so that two fine-tunes would look the same."""
    (tmp_path / "config.json").write_text("{}")
    digests = {identity.model_digest(tmp_path, None, url) for url in ("", URL, "s3://bucket/models/n")}
    assert 3 == len(digests)


def test_an_adapter_is_copied_from_a_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {"v1/adapter_config.json": b"{}", "v1/adapter_model.safetensors": b"w", "v1/README.md": b"no"}
    store = Store(files)
    install(monkeypatch, store)
    folder = adapter_folder("s3://bucket/poet/", tmp_path)
    assert ["s3://bucket/poet/"] == store.asked
    assert ["adapter_config.json", "adapter_model.safetensors"] == sorted(file.name for file in folder.iterdir())


def test_a_store_without_an_adapter_and_a_missing_package_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, Store({"README.md": b"no"}))
    with pytest.raises(OSError, match=r"s3://bucket/poet has none of adapter_config\.json, "):
        adapter_folder("s3://bucket/poet", tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(OSError, match=r"runai-model-streamer\[s3\]"):
        adapter_folder("s3://bucket/poet", tmp_path)
