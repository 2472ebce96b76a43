"""Checks of a pool's model before an engine starts, which takes minutes and then says less."""

from __future__ import annotations

import json
import os

from cluster.errors import SettingsError, plain_reason
from cluster.settings import EngineKind, PoolSettings, Settings
from cluster.sources import ModelSource, SourceKind, source_of

_CONFIGS = ("config.json", "params.json", "*.gguf")
"""Files of which a model's folder has one: of transformers, of Mistral, or of llama.cpp."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_DEMO = "demo"
_HUB_S = 8.0
"""Seconds that the hub may take to answer."""
_OTHER_HUBS = ("VLLM_USE_MODELSCOPE",)
"""Variables with which vLLM takes models from another place."""


def check_model(name: str, pool: PoolSettings) -> None:
    """Check the folders of a pool's model, draft model and adapters, where they are folders. A missing one would be
    looked up on a hub, several times.

    Raises:
        SettingsError: a folder does not exist, or a file is missing that vLLM needs.
    """
    for setting, text in _places(pool):
        place = source_of(text)
        if place.kind is SourceKind.FOLDER and not place.path.is_dir():
            raise SettingsError(f"pools.{name}.{setting}: there is no folder {text}")
    source = source_of(pool.model)
    if source.kind is not SourceKind.FOLDER or pool.engine is not EngineKind.VLLM:
        return
    folder = source.path
    if not any(any(folder.glob(pattern)) for pattern in _CONFIGS):
        raise SettingsError(f"pools.{name}.model: {pool.model} has no config.json, so it is no folder of a model")
    if (config := folder / "config.json").is_file():
        try:
            json.loads(config.read_bytes())
        except (OSError, ValueError) as error:
            raise SettingsError(f"pools.{name}.model: {config} can't be read: {plain_reason(error)}") from error
    if pool.vllm.load_format == "auto" and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise SettingsError(f"pools.{name}.model: {pool.model} has no weights ({', '.join(_WEIGHTS)})")


def _places(pool: PoolSettings) -> list[tuple[str, str]]:
    """Return the places that a pool's settings name, each with its setting."""
    places = [("model", pool.model)] if pool.model != _DEMO else []
    if pool.engine is EngineKind.VLLM:
        if pool.vllm.speculative and pool.vllm.speculative.model:
            places.append(("vllm.speculative.model", pool.vllm.speculative.model))
        places += [(f"vllm.lora_modules.{name}", text) for name, text in pool.vllm.lora_modules.items()]
    return places


def hub_models(settings: Settings) -> list[tuple[str, str, ModelSource]]:
    """Return what engines take from a hub: pool, setting of the pool, and place."""
    if any(os.environ.get(variable) for variable in _OTHER_HUBS):
        return []
    return [
        (name, setting, source)
        for name, pool in settings.pools.items()
        if pool.engine is EngineKind.VLLM
        for setting, text in _places(pool)
        if (source := source_of(text, pool.revision if setting == "model" else "")).kind is SourceKind.HUB
    ]


def check_hub(name: str, setting: str, source: ModelSource) -> None:
    """Check that a pool's model or adapter is in the local cache, or that its hub answers and has it. Blocks for
    seconds at most.

    Raises:
        SettingsError: the engine could not get the model. Otherwise it would try for many minutes.
    """
    try:
        from huggingface_hub import HfApi, constants, try_to_load_from_cache
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ModuleNotFoundError:
        # The engine is on other machines.
        return
    where = f"pools.{name}.{setting}: {source.name}" + f" of revision {source.revision}" * bool(source.revision)
    revision = source.revision or None
    file = "adapter_config.json" if setting.startswith("vllm.lora_modules.") else "config.json"
    try:
        if isinstance(try_to_load_from_cache(source.name, file, revision=revision), str):
            return
        api = HfApi()
        if api.model_info(source.name, revision=revision, timeout=_HUB_S).gated:
            api.auth_check(source.name)
    except GatedRepoError as error:
        raise SettingsError(f"{where} asks for consent: accept its terms at the hub, and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise SettingsError(f"{where}: {constants.ENDPOINT} has the model, and not this revision") from error
    except RepositoryNotFoundError as error:
        raise SettingsError(f"{where} is not at {constants.ENDPOINT}, or not for this HF_TOKEN") from error
    except HfHubHTTPError:
        # The hub answers. The engine may still get its files.
        return
    except Exception as error:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{constants.ENDPOINT} can't be reached"
        raise SettingsError(
            f"{where} is not in {constants.HF_HUB_CACHE}, and {why} ({type(error).__name__}: {error}); "
            "download it beforehand, name a folder, or check HF_ENDPOINT and the proxy variables"
        ) from error
