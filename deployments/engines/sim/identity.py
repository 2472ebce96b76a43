"""Identity of a simulated engine."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from cluster.digests import tokenizer_digest
from cluster.image_files import MAX_IMAGES
from cluster.models import ModelInfo, Windows
from cluster.settings import PoolSettings, SimSettings, TaskKind
from deployments.engines import identity
from deployments.engines.base import EngineIdentity
from deployments.engines.limits import prefill_window
from deployments.engines.sim.images import SimPlaceholder
from penstock.models import NOTHING_GENERATED, Capabilities, ModelTask, PoolingFeatures


def sim_windows(settings: SimSettings) -> Windows:
    """Return the windows that a simulated engine publishes."""
    return Windows(settings.max_num_seqs, settings.kv_tokens, prefill_window(settings.max_num_batched_tokens))


def identify(
    pool: PoolSettings,
    files: Mapping[str, bytes],
    context: int,
    vocabulary_size: int,
    features: PoolingFeatures,
    placeholder: SimPlaceholder,
) -> EngineIdentity:
    """Describe an engine.

    Args:
        pool: the pool's settings.
        files: the tokenizer's, by name; none where tokens are bytes.
        context: context length in tokens.
        vocabulary_size: of the tokenizer.
        features: of its vectors.
        placeholder: what stands for an image.
    """
    task = task_of(pool)
    tokenizer = tokenizer_digest(files) if files else "0" * 64
    answer = f"\0{pool.sim.answer}" if pool.sim.answer else ""
    digest = hashlib.sha256(f"sim\0{tokenizer}\0{context}{answer}".encode()).hexdigest()
    ranks, answers = pool.tensor_parallel_size, bool(pool.sim.answer)
    return EngineIdentity(
        model=ModelInfo(
            digest=digest,
            tokenizer_digest=tokenizer,
            max_context_tokens=context,
            vocabulary_size=vocabulary_size,
            capabilities=(
                Capabilities(
                    structured_output=answers,
                    logit_bias=False,
                    tools=answers,
                    reasoning=answers,
                    prompt_logprobs=True,
                    max_images=MAX_IMAGES if placeholder.ids else 0,
                )
                if task is ModelTask.GENERATE
                else NOTHING_GENERATED
            ),
            task=task,
            pooling=features,
            image_text=placeholder.text,
            image_ids=placeholder.ids,
        ),
        group_id=identity.group_id(digest, "sim", ranks, "none"),
        tensor_parallel_size=ranks,
        hardware="sim",
        tokenizer_files=files,
        windows=sim_windows(pool.sim),
        sleeps=True,
    )


def task_of(pool: PoolSettings) -> ModelTask:
    """Return the task of a pool's simulated engines."""
    return ModelTask.GENERATE if pool.task is TaskKind.AUTO else ModelTask(pool.task.value)
