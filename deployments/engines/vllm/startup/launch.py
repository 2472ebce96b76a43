"""The start of a vLLM engine: from settings to configuration, environment, processes and identity."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.digests import tokenizer_digest
from cluster.errors import EngineStartError
from cluster.gc_tuning import collect_rarely
from cluster.models import GenerationSpec, ModelInfo, Windows
from cluster.ray_serve.gpus import built_for_cpu
from cluster.ray_serve.start_report import StartReport
from cluster.settings import PoolSettings
from deployments.engines import identity, tokenizer_files
from deployments.engines.base import EngineIdentity
from deployments.engines.limits import prefill_window
from deployments.engines.vllm.compilers.check import compiler_id, takes_tokenizer
from deployments.engines.vllm.compilers.tags import TagForm
from deployments.engines.vllm.images.reader import ImageReader
from deployments.engines.vllm.parsing import loader
from deployments.engines.vllm.parsing.loader import Parsers
from deployments.engines.vllm.pooling import RUNNERS, features_of, task_of, to_pooling
from deployments.engines.vllm.sampling import Resumes, translator
from deployments.engines.vllm.startup import precision, processes, sockets, tokenizer
from deployments.engines.vllm.startup.adapters import Adapters, check_folders, folders_of
from deployments.engines.vllm.startup.arguments import (
    SCHEDULERS,
    core_modules,
    engine_arguments,
    revision_arguments,
)
from deployments.engines.vllm.startup.early_core import EarlyCore
from deployments.engines.vllm.startup.environment import engine_environment, inherited
from deployments.engines.vllm.startup.extra import check_names, extra_id
from deployments.engines.vllm.startup.model_folder import folder_of
from deployments.engines.vllm.startup.object_store import check_readers
from penstock.models import NOT_POOLING, NOTHING_GENERATED, Capabilities, ModelTask, PoolingFeatures

if TYPE_CHECKING:
    from deployments.engines.vllm.adapter import Frontend, FrontendEvents

log = logging.getLogger(__name__)

_RESUME_PENALTIES = "deployments.engines.vllm.resume_penalties:ResumePenalties"
"""Name by which vLLM loads the logits processor."""
_FINAL = frozenset(
    {
        *("ValueError", "ValidationError", "TypeError", "KeyError", "AttributeError", "NotImplementedError"),
        *("ImportError", "ModuleNotFoundError", "FileNotFoundError", "SafetensorError"),
    }
)
"""Errors of settings, of a model's files or of the installation. Another start can't mend them."""


@dataclass(frozen=True, slots=True)
class Launched:
    """Running engine."""

    frontend: Frontend
    config: Any
    """vLLM's VllmConfig, completed by the engine."""
    limits: tuple[int, int]
    """Sequences and tokens per step that the engine was started with."""
    translate: Callable[[GenerationSpec], Any]
    """Translation to vLLM's sampling or pooling parameters. It raises EngineRequestError."""
    penalties: Resumes
    tokenizer_files: Mapping[str, bytes]
    """Content of the files that routers need, by name."""
    adapters: Adapters
    parsers: Parsers | None
    """Parsers of tool calls and reasoning; None where the settings name none."""
    constrains: bool
    """Whether the compiler of constraints can work with the model's tokenizer."""
    images: ImageReader
    sockets: Path
    """Folder of the processes' sockets. The code that closes the engine removes it."""
    task: ModelTask = ModelTask.GENERATE
    features: PoolingFeatures = NOT_POOLING

    @property
    def generates(self) -> bool:
        """Whether the model generates text."""
        return bool(self.config.model_config.runner_type == "generate")


def launch(pool: PoolSettings, model: Path | str, cpu_cores: Sequence[int] | None, events: FrontendEvents) -> Launched:
    """Start the engine's processes. Blocks until the model is loaded."""
    with ExitStack() as stack:
        core: EarlyCore | None = None
        if built_for_cpu():
            variables = engine_environment(pool, cpu_cores, on_cpu=True)
            core = stack.enter_context(closing(EarlyCore(core_modules(pool), variables)))
        return _launch(pool, model, cpu_cores, events, core)


def _launch(
    pool: PoolSettings,
    model: Path | str,
    cpu_cores: Sequence[int] | None,
    events: FrontendEvents,
    core: EarlyCore | None,
) -> Launched:
    report = StartReport.of_process()
    report.stage("loading vLLM")
    collect_rarely()
    # The rest of vLLM needs a device while it is imported.
    _check_device(os.environ)
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    from deployments.engines.vllm.adapter import Frontend, UsageContext

    report.stage("reading the model's configuration")
    check_names(pool.vllm.extra, AsyncEngineArgs)
    loader.check_names(pool.vllm)
    processes.reap_orphans()
    check_readers(pool)
    adapters = folders_of(pool)
    on_cpu = current_platform.is_cpu()
    if on_cpu:
        pool = precision.settled(pool, model)
    variables = engine_environment(pool, cpu_cores, on_cpu=on_cpu)
    described = AsyncEngineArgs(**_model_arguments(pool, model)).create_model_config()
    generates = described.runner_type == "generate"
    arguments = engine_arguments(
        pool,
        model,
        on_cpu=on_cpu,
        context_tokens=described.max_model_len,
        generates=generates,
        can_sleep=current_platform.is_sleep_mode_available(),
    )
    with _socket_folder() as folder, inherited({**variables, sockets.FOLDER_VARIABLE: str(folder)}):
        config = AsyncEngineArgs(**arguments).create_engine_config(UsageContext.API_SERVER)
        check_folders(adapters, config)
        # Before the weights, which may take minutes.
        tokenizer_files = tokenizer.files_of(config.model_config)
        parsers = loader.load(pool.vllm, config.model_config)
        penalties = _bring_our_parts(config, generates=generates)
        report.stage("starting engine processes")
        with core.taken_by_vllm() if core else nullcontext():
            frontend = Frontend(config, events)
        frontend.reasons = pool.vllm.reasoning_parser is not None
    report.stage("testing the engine")
    log.info("engine.started", extra={"model": str(model), "pids": frontend.engine_pids(), **variables})
    return Launched(
        frontend=frontend,
        config=config,
        limits=(config.scheduler_config.max_num_seqs, config.scheduler_config.max_num_batched_tokens),
        translate=translator(penalties, _tag_form(pool, frontend)) if generates else to_pooling,
        penalties=penalties,
        tokenizer_files=tokenizer_files,
        adapters=Adapters(adapters),
        parsers=parsers,
        constrains=generates and _can_constrain(pool, frontend),
        images=ImageReader(frontend.llm.input_processor, config.model_config),
        sockets=folder,
    )


def _check_device(environ: Mapping[str, str]) -> None:
    from vllm.platforms import current_platform

    if built_for_cpu() or not current_platform.is_unspecified():
        return
    shown = environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if shown is None else f"; CUDA_VISIBLE_DEVICES is {shown!r}, as Ray or the environment set it"
    raise EngineStartError(
        f"vLLM {version('vllm')} runs on GPUs, and finds none{hidden}; nvidia-smi shows whether a driver works, and a "
        "container needs the driver too; without GPUs: pip install 'penstock-llm[cpu]'",
        final=True,
    )


def _tag_form(pool: PoolSettings, frontend: Frontend) -> TagForm:
    settings = pool.vllm.structured_output
    return TagForm(settings.compiler, lambda: frontend.tokenizer, any_whitespace=settings.any_whitespace)


async def learn_task(pool: PoolSettings, launched: Launched) -> Launched:
    """Find out what a running model makes of its input.

    Raises:
        EngineStartError: it is not what the pool's settings ask for, or Penstock does not serve it.
    """
    if launched.generates:
        return launched
    config = launched.config.model_config
    task = task_of(pool.task, config, await launched.frontend.learn_tasks())
    return replace(launched, task=task, features=features_of(config, task))


def failed(error: Exception) -> EngineStartError:
    """Describe why `launch` failed: the first error of an engine process if there is one, because vLLM's own error only
    says that there was one.
    """
    cause = StartReport.of_process().first_cause() or f"{type(error).__name__}: {error}"
    kind = cause.partition(":")[0]
    return EngineStartError(f"vLLM did not start: {cause}", final=kind in _FINAL)


def identify(pool: PoolSettings, launched: Launched, *, live_batch_limits: bool) -> EngineIdentity:
    """Describe a running engine. Reads the model's files."""
    from vllm.platforms import current_platform

    config = launched.config
    folder = folder_of(config.model_config.model, config.model_config.revision)
    # Of an object store's model the folder has all but the weights.
    digest = identity.model_digest(folder, launched.adapters.folders, config.model_config.model_weights)
    hardware = identity.hardware_name(current_platform.get_device_name())
    speculates = config.speculative_config is not None
    files = launched.tokenizer_files
    if launched.images.digest:
        # What images become decides token ids too.
        files = tokenizer_files.with_entry(files, "image_tokens", launched.images.digest)
    return EngineIdentity(
        model=ModelInfo(
            digest=digest,
            tokenizer_digest=tokenizer_digest(files),
            max_context_tokens=config.model_config.max_model_len,
            vocabulary_size=config.model_config.get_vocab_size(),
            # vLLM refuses these two with speculative decoding.
            capabilities=(
                Capabilities(
                    max_logprobs=_most_logprobs(config.model_config.max_logprobs),
                    min_p=not speculates,
                    logit_bias=not speculates,
                    structured_output=launched.constrains,
                    tools=pool.vllm.tool_call_parser is not None,
                    reasoning=pool.vllm.reasoning_parser is not None,
                    # Its engine process would end.
                    prompt_logprobs=not config.cache_config.kv_sharing_fast_prefill,
                    max_images=launched.images.most,
                )
                if launched.generates
                else NOTHING_GENERATED
            ),
            lora_adapters=tuple(pool.vllm.lora_modules),
            task=launched.task,
            pooling=launched.features,
            image_text=launched.images.text,
            image_ids=launched.images.ids,
        ),
        group_id=identity.group_id(digest, hardware, pool.tensor_parallel_size, _variant(pool, config)),
        tensor_parallel_size=pool.tensor_parallel_size,
        hardware=hardware,
        tokenizer_files=files,
        windows=Windows(
            sequences=launched.limits[0],
            kv_tokens=_kv_tokens(launched),
            prefill_tokens=prefill_window(launched.limits[1]),
        ),
        live_batch_limits=live_batch_limits,
        resumes_penalties=launched.penalties is not Resumes.NOBODY,
        sleeps=config.model_config.enable_sleep_mode,
    )


def _kv_tokens(launched: Launched) -> int:
    cache, scheduler = launched.config.cache_config, launched.config.scheduler_config
    found: int = (cache.num_gpu_blocks or 0) * cache.block_size
    # A model that only encodes keeps no KV cache, so it has room for any batch.
    room: int = scheduler.max_num_seqs * launched.config.model_config.max_model_len
    return found if launched.generates else max(found, room)


def _most_logprobs(allowed: int) -> int:
    most = Capabilities().max_logprobs
    return most if allowed < 0 else min(most, allowed)


def _model_arguments(pool: PoolSettings, model: Path | str) -> dict[str, Any]:
    own = pool.vllm
    return {
        "model": str(model),
        "runner": RUNNERS[pool.task],
        "dtype": own.dtype,
        "quantization": own.quantization,
        "max_model_len": own.max_model_len,
        "trust_remote_code": own.trust_remote_code,
        **revision_arguments(pool),
        **own.extra,
    }


def _can_constrain(pool: PoolSettings, frontend: Frontend) -> bool:
    compiler = pool.vllm.structured_output.compiler
    if takes_tokenizer(compiler, frontend.tokenizer):
        return True
    log.warning(
        "engine.no_structured_output",
        extra={"compiler": compiler, "remedy": 'pools.NAME.vllm.structured_output.compiler = "xgrammar"'},
    )
    return False


def _bring_our_parts(config: Any, *, generates: bool) -> Resumes:
    """Give an engine our scheduler, and our logits processor where it is needed; return what counts prior tokens."""
    scheduler = "LiveAsyncScheduler" if config.scheduler_config.async_scheduling else "LiveScheduler"
    config.scheduler_config.scheduler_cls = f"{SCHEDULERS}.{scheduler}"
    penalties = _resume_of_penalties(config)
    if penalties is Resumes.PROCESSOR and generates:
        config.model_config.logits_processors = [_RESUME_PENALTIES]
    return penalties


def _resume_of_penalties(config: Any) -> Resumes:
    """Return the part that counts prior tokens.

    vLLM's second model runner can. Its first one takes our processor, unless it speculates.
    """
    if config.use_v2_model_runner:
        return Resumes.RUNNER
    return Resumes.PROCESSOR if config.speculative_config is None else Resumes.NOBODY


def _variant(pool: PoolSettings, config: Any) -> str:
    parts = [str(config.model_config.dtype).removeprefix("torch.")]
    if config.model_config.quantization:
        parts.append(config.model_config.quantization)
    if pool.vllm.kv_cache_dtype != "auto":
        parts.append(f"kv-{pool.vllm.kv_cache_dtype}")
    # The same request may have other output under another compiler, or with other arguments.
    parts.append(compiler_id(pool.vllm.structured_output.compiler))
    parts += [name for name in (pool.vllm.tool_call_parser, pool.vllm.reasoning_parser) if name is not None]
    if extra := extra_id(pool.vllm.extra):
        parts.append(extra)
    return "-".join(parts)


@contextmanager
def _socket_folder() -> Iterator[Path]:
    """Make the folder. It stays if the engine starts, and is removed on an error."""
    folder = sockets.make_folder()
    try:
        yield folder
    except BaseException:
        sockets.remove_folder(folder)
        raise
