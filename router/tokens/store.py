"""Tokenizers by digest: from memory, from disk, or from a replica."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cluster.digests import TOKENIZER_FILES, tokenizer_digest
from cluster.errors import NoReplicaError, UnavailableError
from cluster.settings import LimitSettings
from router.tokens.bounds import EncodingBounds
from router.tokens.cache import read_files, write_files
from router.tokens.tokenizer import Tokenizer

Fetch = Callable[[], Awaitable[Mapping[str, bytes]]]
"""Function that gets the files of a digest from a replica."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_RETRY_AFTER_S = 5.0
_UNUSABLE_S = 60.0
"""Time until files that could not be loaded are tried again. The files of a digest never change, but memory may have
been short."""

_log = logging.getLogger(__name__)


class TokenizerStore:
    """Tokenizers, their cache on disk and the threads that encode. Belongs to one event loop; end it with `close`."""

    def __init__(
        self,
        cache_dir: Path,
        *,
        threads: int = 2,
        max_loaded: int = 8,
        max_rendered_characters: int = LimitSettings().max_rendered_characters,
    ) -> None:
        """Prepare a store. It reads and writes nothing yet.

        Args:
            cache_dir: folder that survives restarts, so that a pool without replicas can still admit requests. Created
                when needed.
            threads: how many long texts are encoded at once.
            max_loaded: how many tokenizers stay in memory; the least recently used one is dropped.
            max_rendered_characters: longest text that a chat template may make.
        """
        self._cache_dir = cache_dir
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="tokens")
        self._bounds = EncodingBounds()
        self._max_loaded = max_loaded
        self._max_rendered_characters = max_rendered_characters
        self._loaded: dict[str, Tokenizer] = {}
        self._loading: dict[str, asyncio.Task[Tokenizer]] = {}
        self._unusable: dict[str, tuple[float, str]] = {}
        """Digests whose files could not be loaded, when they are tried again (monotonic seconds), and the reason."""

    async def get(self, digest: str, fetch: Fetch) -> Tokenizer:
        """Return the tokenizer of a digest. Callers that ask at the same time share one load.

        Raises:
            UnavailableError: the files that `fetch` returned do not match the digest, or cannot be loaded, now or up to
                a minute ago.
            Exception: that of `fetch`; the next call tries again.
        """
        if (tokenizer := self._loaded.pop(digest, None)) is not None:
            self._loaded[digest] = tokenizer  # To the end: most recently used.
            return tokenizer
        until, why = self._unusable.get(digest, (0.0, ""))
        if time.monotonic() < until:
            raise _unusable(why)
        if (task := self._loading.get(digest)) is None:
            task = asyncio.create_task(self._load(digest, fetch), name=f"tokens.load.{digest[:8]}")
            self._loading[digest] = task
            task.add_done_callback(lambda done: self._settle(digest, done))
        # Shielded: a caller that gives up must not end the load of the others.
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Cancel loads and stop the threads; wait until no task of the store runs."""
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _settle(self, digest: str, task: asyncio.Task[Tokenizer]) -> None:
        self._loading.pop(digest, None)
        if task.cancelled() or (error := task.exception()) is not None:
            if not task.cancelled():
                # While a cluster starts there is no replica to ask for a moment. The next request asks again.
                level = logging.DEBUG if isinstance(error, NoReplicaError) else logging.WARNING
                _log.log(level, "tokens.load_failed", extra={"digest": digest, "error": type(error).__name__})
            return
        self._loaded[digest] = task.result()
        while len(self._loaded) > self._max_loaded:
            del self._loaded[next(iter(self._loaded))]

    async def _load(self, digest: str, fetch: Fetch) -> Tokenizer:
        if not _DIGEST.fullmatch(digest):
            # The digest becomes a folder name.
            raise UnavailableError("a replica published a malformed tokenizer digest", _RETRY_AFTER_S)
        loop = asyncio.get_running_loop()
        files: Mapping[str, bytes] | None = await loop.run_in_executor(
            self._executor, read_files, self._cache_dir, digest
        )
        if files is None:
            files = await fetch()
            _verify(digest, files)
            await loop.run_in_executor(self._executor, self._keep, digest, files)
        try:
            return await loop.run_in_executor(
                self._executor, Tokenizer, files, self._executor, self._max_rendered_characters, self._bounds
            )
        except ValueError as error:
            _log.exception("tokens.unusable", extra={"digest": digest})
            now = time.monotonic()
            self._unusable = {name: (until, why) for name, (until, why) in self._unusable.items() if now < until}
            self._unusable[digest] = now + _UNUSABLE_S, str(error)
            raise _unusable(str(error)) from error

    def _keep(self, digest: str, files: Mapping[str, bytes]) -> None:
        try:
            write_files(self._cache_dir, digest, files)
        except OSError as error:
            # The router works without the cache. Only a pool without replicas needs it.
            _log.warning("tokens.cache_unwritable", extra={"digest": digest, "error": str(error)})


def _unusable(why: str) -> UnavailableError:
    return UnavailableError(f"the model's tokenizer cannot be loaded: {why[:200]}", _RETRY_AFTER_S)


def _verify(digest: str, files: Mapping[str, bytes]) -> None:
    if not set(files) <= set(TOKENIZER_FILES) or tokenizer_digest(files) != digest:
        _log.error("tokens.digest_mismatch", extra={"digest": digest, "files": sorted(files)})
        raise UnavailableError("a replica sent tokenizer files that do not match their digest", _RETRY_AFTER_S)
