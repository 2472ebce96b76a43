"""Vectors instead of tokens: vLLM's pooling models."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster.errors import EngineRequestError, EngineStartError
from cluster.models import GenerationSpec
from cluster.settings import TaskKind
from deployments.engines.vllm.sequence import VllmSequence
from penstock.models import FinishReason, ModelTask, PoolingFeatures

if TYPE_CHECKING:
    import vllm

SECOND_KEY = "compressed_token_type_ids"
"""Key in `extra_kwargs` by which vLLM's model runners find where the second text of a pair begins."""
_NOT_FINITE = "the model's result has numbers that are NaN or infinite: they overflow in its computation"
RUNNERS = {
    TaskKind.AUTO: "auto",
    TaskKind.GENERATE: "generate",
    TaskKind.EMBED: "pooling",
    TaskKind.CLASSIFY: "pooling",
}
"""vLLM's `runner` for the task of a pool."""


def task_of(kind: TaskKind, config: Any, supported: tuple[str, ...]) -> ModelTask:
    """Return the task of a model that runs.

    Args:
        kind: the pool's setting.
        config: vLLM's ModelConfig.
        supported: tasks that vLLM's engine reports.

    Raises:
        EngineStartError: the model has another task than the setting asks for, or one that Penstock does not serve.
    """
    if config.runner_type == "generate":
        return ModelTask.GENERATE
    wanted = config.get_pooling_task(supported) if kind is TaskKind.AUTO else kind.value
    if wanted not in supported or wanted not in (ModelTask.EMBED, ModelTask.CLASSIFY):
        able = ", ".join(sorted({ModelTask.EMBED.value, ModelTask.CLASSIFY.value} & set(supported))) or "neither"
        raise EngineStartError(
            f"pools.NAME.task: the model does not do {wanted!r}; of embed and classify it does {able}", final=True
        )
    return ModelTask(wanted)


def features_of(config: Any, task: ModelTask) -> PoolingFeatures:
    """Describe a model. `config` is vLLM's ModelConfig."""
    if task is ModelTask.EMBED:
        sizes = tuple(sorted(config.matryoshka_dimensions or ()))
        return PoolingFeatures(int(config.embedding_size), bool(config.is_matryoshka), sizes)
    if task is ModelTask.CLASSIFY:
        names = dict(getattr(config.hf_config, "id2label", None) or {})
        size = int(getattr(config.hf_config, "num_labels", 0) or len(names) or 1)
        labels = tuple(str(names[number]) for number in range(size) if number in names)
        return PoolingFeatures(size, labels=labels if len(labels) == size else ())
    return PoolingFeatures()


def to_pooling(spec: GenerationSpec) -> vllm.PoolingParams:
    """Build vLLM's parameters for one input.

    Raises:
        EngineRequestError: it is no work for a pooling model.
    """
    from vllm.pooling_params import PoolingParams

    pooling = spec.pooling
    if pooling is None:
        raise EngineRequestError("this model embeds or classifies, and generates nothing")
    second = {SECOND_KEY: pooling.second_at[0]} if pooling.second_at else None
    return PoolingParams(
        task=pooling.task.value,
        dimensions=pooling.dimensions,
        use_activation=pooling.activation,
        extra_kwargs=second,
    )


class PooledSequence(VllmSequence):
    """Receiver of the vector of one input. Its first token is the moment the vector came."""

    __slots__ = ()

    def take(self, output: Any, at: float) -> None:
        """Take vLLM's EngineCoreOutput with the vector."""
        if self.finish_reason is not None:
            return
        self.last_output_at = at
        vector = output.pooling_output
        if vector is not None:
            self.first_token_at = at
            self._owner.on_first_token(self)
            if (packed := _packed(vector)) is None:
                self.broken, self.finish_reason = _NOT_FINITE, FinishReason.ERROR
            else:
                self.vectors, self.finish_reason = (packed,), FinishReason.STOP
        elif output.finish_reason is not None:
            reason = str(output.finish_reason)
            self.finish_reason = FinishReason.CANCELLED if reason == "abort" else FinishReason.ERROR
            if reason == "error":
                self.note_error(output)
        else:
            return
        self.left_engine = True
        self._owner.on_output_end(self)

    def failure(self) -> tuple[str, bool]:
        """Return why it failed, and whether its input did it. One that overflows does so at any replica."""
        return (_NOT_FINITE, True) if self.broken == _NOT_FINITE else super().failure()


def _packed(vector: Any) -> bytes | None:
    """Return a vector's numbers. None if one is not finite: JSON can't carry it, and nothing can be compared by it."""
    numbers = vector.detach().float().contiguous().cpu().reshape(-1).numpy()
    if not np.isfinite(numbers).all():
        return None
    return bytes((numbers if sys.byteorder == "little" else numbers.byteswap()).tobytes())
