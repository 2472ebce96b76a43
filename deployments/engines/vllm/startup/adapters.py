"""LoRA adapters of a vLLM engine: those of its settings, and those that come while it runs."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.errors import EngineRequestError, EngineStartError
from cluster.settings import PoolSettings
from cluster.sources import SourceKind, source_of
from deployments.engines.adapter_files import CONFIG, adapter_folder, make_home
from deployments.engines.adapter_weights import check_weights
from deployments.engines.vllm.startup.model_folder import folder_of

if TYPE_CHECKING:
    from deployments.engines.vllm.adapter import Frontend

_NO_ROOM = "this pool takes no adapters; its operator can set vllm.max_loras"


class Adapters:
    """vLLM's LoRARequest of each adapter, by the adapter's name.

    vLLM keeps the adapters that were used last in memory, and reads the others again from their folders. There, an
    adapter that fails ends the engine. So each one is loaded once when it comes, and its folder has to stay as it is.
    """

    def __init__(self, folders: Mapping[str, Path], first: int = 1) -> None:
        """`folders`: those of the settings. `first`: number of the first one."""
        self.folders = dict(folders)
        """Folder of each adapter of the settings."""
        # A number is never used again: vLLM knows adapters by it.
        self._numbers = itertools.count(first)
        self._requests = {name: self._request(name, folder) for name, folder in folders.items()}

    def request(self, name: str) -> Any:
        """Return the LoRARequest of an adapter.

        Raises:
            EngineRequestError: it is not loaded.
        """
        if name not in self._requests:
            raise EngineRequestError(f"adapter {name!r} is not loaded")
        return self._requests[name]

    async def load_first(self, frontend: Frontend, config: Any) -> None:
        """Load the adapters of the settings. By now the model's files are there.

        Raises:
            EngineStartError: one can't be loaded.
        """
        for name, folder in self.folders.items():
            try:
                await asyncio.to_thread(_check, folder, config)
                await frontend.load_adapter(self._requests[name])
            except Exception as error:
                raise _unloadable(name, folder, error) from error

    async def load(self, frontend: Frontend, config: Any, name: str, folder: Path) -> None:
        """Load an adapter. All other work of the engine stops while it reads the weights.

        Raises:
            EngineRequestError: it can't be loaded.
        """
        if config.lora_config is None:
            raise EngineRequestError(_NO_ROOM)
        if name in self._requests:
            raise EngineRequestError(f"adapter {name!r} is loaded already")
        request = self._request(name, folder)
        try:
            await asyncio.to_thread(_check, folder, config)
            await frontend.load_adapter(request)
        except Exception as error:
            # vLLM raises exceptions of many kinds.
            raise EngineRequestError(f"the engine can't load the adapter: {error}") from error
        self._requests[name] = request

    async def unload(self, frontend: Frontend, name: str) -> None:
        """Forget an adapter that no sequence uses."""
        if (request := self._requests.pop(name, None)) is not None:
            await frontend.unload_adapter(request.lora_int_id)

    def _request(self, name: str, folder: Path) -> Any:
        from vllm.lora.request import LoRARequest

        return LoRARequest(name, next(self._numbers), str(folder))


def folders_of(pool: PoolSettings) -> dict[str, Path]:
    """Return the folders of the settings' adapters.

    Raises:
        EngineStartError: one is not an adapter's.
    """
    if not pool.vllm.lora_modules:
        return {}
    # An engine may read the files again at any time, so what is fetched stays as long as the process.
    home = Path(tempfile.gettempdir()) / "penstock-engine-adapters"
    folders: dict[str, Path] = {}
    for name, text in pool.vllm.lora_modules.items():
        try:
            folder = _folder(text, home)
        except (OSError, ValueError) as error:
            raise EngineStartError(f"vllm.lora_modules: adapter {name!r}: {error}", final=True) from error
        if not (folder / CONFIG).is_file():
            raise EngineStartError(f"vllm.lora_modules: adapter {name!r}: no {CONFIG} in {folder}", final=True)
        folders[name] = folder.resolve()
    return folders


def _folder(text: str, home: Path) -> Path:
    kind = source_of(text).kind
    if kind is SourceKind.HUB and os.environ.get("VLLM_USE_MODELSCOPE"):
        from vllm.lora.utils import get_adapter_absolute_path

        return Path(get_adapter_absolute_path(text))
    return adapter_folder(text, make_home(home) if kind in (SourceKind.STORE, SourceKind.ARCHIVE) else home)


def check_folders(folders: Mapping[str, Path], config: Any) -> None:
    """Check the adapters before vLLM reads the model's weights, which may take minutes.

    Raises:
        EngineStartError: one does not fit.
    """
    for name, folder in folders.items():
        try:
            _check(folder, config)
        except (ValueError, TypeError) as error:
            raise _unloadable(name, folder, error) from error


def _check(folder: Path, config: Any) -> None:
    from vllm.lora.peft_helper import PEFTHelper

    model = config.model_config
    described = PEFTHelper.from_local_dir(str(folder), model.max_model_len)
    described.validate_legal(config.lora_config)
    check_weights(folder, lambda module: described.get_rank_and_scaling(module)[0], _model_folder(model))


def _model_folder(model: Any) -> Path | None:
    try:
        return folder_of(model.model, model.revision)
    except (OSError, ValueError):
        # Of a hub's model that is fetched with its weights, later.
        return None


def _unloadable(name: str, folder: Path | str, error: Exception) -> EngineStartError:
    return EngineStartError(f"vllm.lora_modules: adapter {name!r} ({folder}): {error}", final=True)
