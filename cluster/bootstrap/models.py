"""Checks of a pool's model before an engine starts, which takes minutes and then says less."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from cluster.errors import SettingsError, plain_reason
from cluster.settings import EngineKind, PoolSettings, Settings

_FOLDERS = ("/", "./", "../", "~")
"""Beginnings of a model's name that mean a folder, not a name on a hub."""
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_CONFIGS = ("config.json", "params.json", "*.gguf")
"""Files of which a model's folder has one: of transformers, of Mistral, or of llama.cpp."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_DEMO = "demo"
_HUB_S = 8.0
"""Seconds that the hub may take to answer."""
_OTHER_HUBS = ("VLLM_USE_MODELSCOPE",)
"""Variables with which vLLM takes models from another place."""


def check_model(name: str, pool: PoolSettings) -> None:
    """Check the folder of a pool's model, if it is one. A missing one would be looked up on a hub, several times.

    Raises:
        SettingsError: the folder does not exist, or a file is missing that vLLM needs.
    """
    folder = Path(os.path.expanduser(pool.model))
    if not folder.is_dir():
        if pool.model.startswith(_FOLDERS) and not folder.is_file():
            raise SettingsError(f"pools.{name}.model: there is no folder {pool.model}")
        return
    if pool.engine is not EngineKind.VLLM:
        return
    if not any(any(folder.glob(pattern)) for pattern in _CONFIGS):
        raise SettingsError(f"pools.{name}.model: {pool.model} has no config.json, so it is no folder of a model")
    if (config := folder / "config.json").is_file():
        try:
            json.loads(config.read_bytes())
        except (OSError, ValueError) as error:
            raise SettingsError(f"pools.{name}.model: {config} can't be read: {plain_reason(error)}") from error
    if pool.vllm.load_format == "auto" and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        raise SettingsError(f"pools.{name}.model: {pool.model} has no weights ({', '.join(_WEIGHTS)})")


def hub_models(settings: Settings) -> list[tuple[str, str]]:
    """Return pools whose engine takes its model from a hub, with the model's name there."""
    return [
        (name, pool.model)
        for name, pool in settings.pools.items()
        if pool.engine is EngineKind.VLLM
        and pool.model != _DEMO
        and _HUB_NAME.fullmatch(pool.model)
        and not Path(os.path.expanduser(pool.model)).exists()
        and not any(os.environ.get(variable) for variable in _OTHER_HUBS)
    ]


def check_hub(name: str, model: str) -> None:
    """Check that a model is in the local cache, or that its hub answers and has it. Blocks for seconds at most.

    Raises:
        SettingsError: the engine could not get the model. Otherwise it would try for many minutes.
    """
    try:
        from huggingface_hub import HfApi, constants, try_to_load_from_cache
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
    except ModuleNotFoundError:
        # The engine is on other machines.
        return
    where = f"pools.{name}.model: {model}"
    try:
        if isinstance(try_to_load_from_cache(model, "config.json"), str):
            return
        api = HfApi()
        if api.model_info(model, timeout=_HUB_S).gated:
            api.auth_check(model)
    except GatedRepoError as error:
        raise SettingsError(f"{where} asks for consent: accept its terms at the hub, and set HF_TOKEN") from error
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
