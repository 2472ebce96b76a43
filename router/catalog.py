"""Models that this router can admit requests for."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from cluster.errors import LinkError, ModelNotFoundError, NoReplicaError, UnavailableError
from cluster.models import ModelInfo
from cluster.registry.adapters import PoolAdapters
from cluster.settings import LimitSettings
from cluster.trust.announcement import Announcement, model_from_fields
from penstock.models import ModelTask
from penstock.v1 import inference_pb2 as api
from penstock.wire import capabilities_to_wire, model_task_to_wire, pooling_to_wire
from router.dispatch.pool import Pool
from router.identity import Caller, may_use, require_model
from router.images.expansion import ImageTokens, check_images
from router.images.place import Encoded, with_images
from router.routing import Aliases
from router.tokens import Tokenizer, TokenizerStore
from router.tokens.fair_turns import FairTurns
from router.tokens.inputs import EncodedInput, Texts
from router.tokens.roles import ImageMark
from router.validation import ChatPrompt, Prompt, TokenPrompt

_LOG = logging.getLogger(__name__)

ENCODERS = 2
"""Number of threads that encode long prompts."""


class Catalog:
    """Model and tokenizer of each pool, also while the pool has no replica: a replica's announcement of its model is
    stored on disk beside the tokenizer.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        cache_dir: Path,
        limits: LimitSettings,
        aliases: Aliases | None = None,
        adapters: PoolAdapters | None = None,
    ) -> None:
        """Without `aliases` models have their pools' names only; without `adapters` there are those of the settings."""
        self._adapters = adapters
        self._pools = pools
        self._aliases = aliases
        self._cache_dir = cache_dir
        self._max_logprobs = limits.max_logprobs
        self._store = TokenizerStore(
            cache_dir / "tokenizers", threads=ENCODERS, max_rendered_characters=limits.max_rendered_characters
        )
        self._fair_turns = FairTurns(ENCODERS)
        self._image_tokens = ImageTokens()
        self._models: dict[str, ModelInfo] = {}
        self._tokenizers: dict[str, tuple[str, Tokenizer]] = {}
        """Newest tokenizer of each pool, with its digest. The store decides how long it keeps earlier ones."""

    def pool(self, model: str, caller: Caller) -> Pool:
        """Return the pool that serves a model or an adapter; of an alias the one with the largest weight, which answers
        questions.

        Raises:
            PermissionDeniedError: the caller may not use the model.
            ModelNotFoundError: no pool serves it.
        """
        if not self.pools(model):
            model = self._pool_of(model) or model
        require_model(caller, model)
        pool = next(iter(self.pools(model)), None)
        if pool is None:
            raise ModelNotFoundError(model, self.names(caller))
        return pool

    def check_open(self, pool: Pool, caller: Caller) -> None:
        """Check that a pool takes new requests.

        Raises:
            ModelNotFoundError: it is being removed.
        """
        if pool.closing:
            raise ModelNotFoundError(pool.name, self.names(caller), removed=True)

    def forget(self, name: str) -> None:
        """Forget what is known of a pool that has gone. A later one of this name may have another model."""
        self._models.pop(name, None)
        self._tokenizers.pop(name, None)

    def pools(self, model: str) -> Sequence[Pool]:
        """Return the pools that a caller of a model may get to, the one with the largest weight first."""
        if model in self._pools or self._aliases is None:
            return [self._pools[model]] if model in self._pools else []
        home, names = self._aliases.home(model), self._aliases.targets(model)
        return [self._pools[name] for name in dict.fromkeys((home, *names)) if name in self._pools]

    def names(self, caller: Caller) -> list[str]:
        """Return the names of models that a caller may use, aliases included, in order."""
        if self._aliases is not None:
            return self._aliases.allowed(caller)
        return [name for name in sorted(self._pools) if may_use(caller, name)]

    def _pool_of(self, adapter: str) -> str | None:
        """Return the pool of an adapter; of one in the settings of several pools, the first one."""
        if self._adapters is not None and (found := self._adapters.pool(adapter)) is not None:
            return found
        return next((name for name, pool in self._pools.items() if adapter in pool.settings.vllm.lora_modules), None)

    def adapter(self, pool: Pool, model: str, adapter: str) -> str:
        """Return the adapter that a request names: in its field, or as its model."""
        return adapter or ("" if model == pool.name or self.pools(model) else model)

    async def model(self, pool: Pool, of: Announcement | None = None) -> tuple[ModelInfo, Tokenizer]:
        """Return the model and the tokenizer of a pool, or of one of its replicas.

        Raises:
            NoReplicaError: no replica of the pool has ever been seen, or none can be asked for its tokenizer now.
        """
        info = self._info(pool, of)
        tokenizer = self._tokenizer(pool, info)
        if tokenizer is None:
            tokenizer = await self._load(pool, info)
            if of is None:
                self._tokenizers[pool.name] = info.tokenizer_digest, tokenizer
        return info, tokenizer

    async def encode(
        self, pool: Pool, prompt: Prompt, tenant: str, of: Announcement | None = None, *, whole: bool = False
    ) -> tuple[ModelInfo, Encoded]:
        """Return the model of a pool, or of one of its replicas, and a prompt in its tokens. Tenants take turns with
        long prompts and new sizes of images, because quotas apply only later. `whole`: also of a text that is far too
        long for the model.

        Raises:
            NoReplicaError: for the reasons of `model`, or no replica can say what images become. A prompt of token ids
                needs no tokenizer.
            InvalidRequestError: for the reasons of `Tokenizer.encode_prompt`, or the model can't take the images.
        """
        if isinstance(prompt, TokenPrompt):
            return self._info(pool, of), Encoded(prompt.ids)
        info, tokenizer = await self.model(pool, of)
        images = tuple(image for _field, image in prompt.images()) if isinstance(prompt, ChatPrompt) else ()
        if not images or not isinstance(prompt, ChatPrompt):
            return info, Encoded(await self._ids(tokenizer, info, prompt, tenant, whole=whole))
        check_images(info, prompt)
        ids = await self._ids(tokenizer, info, prompt, tenant, whole=whole)
        tokens = await self._image_tokens.of(pool, info, prompt, tenant)
        return info, with_images(ids, info.image_ids, images, tokens)

    async def _ids(
        self, tokenizer: Tokenizer, info: ModelInfo, prompt: Prompt, tenant: str, *, whole: bool
    ) -> Sequence[int]:
        context = None if whole else info.max_context_tokens
        image = ImageMark(info.image_text, info.image_ids) if info.image_ids else None
        if tokenizer.is_quick(prompt):
            return await tokenizer.encode_prompt(prompt, context, image)
        async with self._fair_turns.turn(tenant):
            return await tokenizer.encode_prompt(prompt, context, image)

    async def encode_inputs(
        self,
        pool: Pool,
        texts: Texts,
        max_tokens: int | None,
        tenant: str,
        *,
        keep_end: bool,
        of: Announcement | None = None,
    ) -> list[EncodedInput]:
        """Return the token ids of texts, or pairs of texts, as `Tokenizer.encode_inputs`, by the tokenizer of a pool or
        of one of its replicas. Tenants take turns.

        Raises:
            NoReplicaError: for the reasons of `model`.
        """
        _info, tokenizer = await self.model(pool, of)
        async with self._fair_turns.turn(tenant):
            return await tokenizer.encode_inputs(texts, max_tokens, keep_end=keep_end)

    def require(self, pool: Pool) -> ModelInfo:
        """Return the model of a pool.

        Raises:
            NoReplicaError: no replica of the pool has ever been seen.
        """
        return self._require(pool)

    async def token_bytes(self, pool: Pool, of: Announcement | None = None) -> Mapping[int, bytes] | None:
        """Return the texts of a model's tokens in UTF-8; None where its tokenizer can't be loaded."""
        try:
            return (await self.model(pool, of))[1].token_bytes
        except UnavailableError as error:
            # A prompt of token ids is served without a tokenizer, too.
            _LOG.warning("catalog.no_token_bytes", extra={"pool": pool.name, "error": str(error)})
            return None

    def _info(self, pool: Pool, of: Announcement | None) -> ModelInfo:
        return self._require(pool) if of is None else self._with_adapters(pool, of.model)

    def _require(self, pool: Pool) -> ModelInfo:
        info = self.known(pool)
        if info is None:
            raise NoReplicaError(
                f"no replica of {pool.name!r} has reported yet, so its tokenizer is not known; try again when its "
                "first one runs (operators: `penstock status` shows the pool's replicas)",
                2.0,
            )
        return info

    def _tokenizer(self, pool: Pool, info: ModelInfo) -> Tokenizer | None:
        digest, tokenizer = self._tokenizers.get(pool.name, ("", None))
        return tokenizer if digest == info.tokenizer_digest else None

    def known(self, pool: Pool) -> ModelInfo | None:
        """Return a pool's model; None while no replica of it has ever been seen."""
        announcement = pool.replicas.any_announcement()
        if announcement is not None:
            if self._models.get(pool.name) != announcement.model:
                self._models[pool.name] = announcement.model
                self._write(pool, announcement.model)
        elif pool.name not in self._models and (stored := self._read(pool)) is not None:
            self._models[pool.name] = stored
        info = self._models.get(pool.name)
        return None if info is None else self._with_adapters(pool, info)

    def _with_adapters(self, pool: Pool, info: ModelInfo) -> ModelInfo:
        return info if self._adapters is None else self._adapters.added(pool.name, info)

    async def _load(self, pool: Pool, info: ModelInfo) -> Tokenizer:
        async def fetch() -> Mapping[str, bytes]:
            lost: LinkError | None = None
            for replica_id in pool.replicas.reading(info.tokenizer_digest):
                if (link := pool.replicas.link(replica_id)) is not None:
                    try:
                        return await link.fetch_tokenizer(info.tokenizer_digest)
                    except LinkError as error:
                        lost = error
            raise lost or _unread(pool, info.tokenizer_digest)

        try:
            return await self._store.get(info.tokenizer_digest, fetch)
        except LinkError as error:
            raise NoReplicaError(str(error), 1.0) from error

    async def close(self) -> None:
        """Give up loads, and end the threads that encode."""
        await self._store.close()

    def describe(self, name: str) -> api.Model:
        """Describe a model, or what an alias stands for, for clients."""
        found = [self._describe(pool) for pool in self.pools(name)]
        if not found or name in self._pools:
            return found[0] if found else api.Model(name=name)
        first = found[0]
        first.alias_of.extend(each.name for each in found)
        first.name = name
        first.max_context_tokens = min((each.max_context_tokens for each in found if each.digest), default=0)
        first.ready_replicas = sum(each.ready_replicas for each in found)
        return first

    def _describe(self, pool: Pool) -> api.Model:
        info = self.known(pool)
        if info is None:
            return api.Model(name=pool.name)
        tokenizer = self._tokenizer(pool, info)
        chat = tokenizer is not None and tokenizer.has_chat_template
        able = replace(info.capabilities, max_logprobs=min(info.capabilities.max_logprobs, self._max_logprobs))
        return api.Model(
            name=pool.name,
            max_context_tokens=info.max_context_tokens,
            vocabulary_size=info.vocabulary_size,
            lora_adapters=info.lora_adapters,
            capabilities=capabilities_to_wire(able, chat=chat),
            ready_replicas=pool.replicas.ready(),
            digest=info.digest,
            task=model_task_to_wire(info.task),
            pooling=pooling_to_wire(info.pooling) if info.task is not ModelTask.GENERATE else None,
        )

    def _file(self, pool: Pool) -> Path:
        return self._cache_dir / "models" / f"{pool.name}.json"

    def _write(self, pool: Pool, info: ModelInfo) -> None:
        path = self._file(pool)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A file of its own: the router's other processes write the same file at the same time.
            partial = path.with_suffix(f".{secrets.token_hex(4)}.partial")
            partial.write_text(json.dumps({"of": pool.settings.model, "info": asdict(info)}), encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            # The cache only helps while there is no replica.
            _LOG.warning("catalog.not_stored", extra={"pool": pool.name, "error": str(error)})

    def _read(self, pool: Pool) -> ModelInfo | None:
        try:
            stored = json.loads(self._file(pool).read_text(encoding="utf-8"))
            # The settings may have a new model by now, whose engines still load.
            return model_from_fields(stored["info"]) if stored["of"] == pool.settings.model else None
        except (OSError, ValueError, TypeError, KeyError):
            return None


def _unread(pool: Pool, digest: str) -> NoReplicaError:
    known = [name for name, each in pool.replicas.announcements.items() if each.model.tokenizer_digest == digest]
    if not known:
        return NoReplicaError(f"no replica of {pool.name!r} runs now, and its tokenizer was never read", 1.0)
    return NoReplicaError(
        f"{pool.name!r}: this router reaches none of the pool's replicas ({len(known)}) now, and needs one for its "
        "tokenizer (operators: `penstock status` says why it reaches none)",
        1.0,
    )
