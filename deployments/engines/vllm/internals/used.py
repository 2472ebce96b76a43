"""The list of what we use of vLLM. The only one: the check at start and `make vllm-check` read it.

A name is `module:qualified.name`, where the module is the one that we import it from. An attribute of an instance
stands under its class, whether the class declares it or a method sets it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Used:
    """One function or class of vLLM that we call, replace or read."""

    name: str
    parameters: tuple[str, ...] | None = None
    """All parameters of a function, where we rely on there being no others; None where we pass only some."""
    passes: tuple[str, ...] = ()
    """Parameters that we pass by name. Those of a class are its constructor's, or its fields."""
    attributes: tuple[str, ...] = ()
    """Fields, properties, methods and instance attributes that we read, set, call or replace."""
    members: tuple[str, ...] = ()
    """Members of an enumeration."""
    message: bool = False
    """Whether it comes over the socket from the engine process, so that its fields are checked at start."""

    @property
    def module(self) -> str:
        """Name of the module."""
        return self.name.partition(":")[0]

    @property
    def path(self) -> str:
        """Qualified name inside the module; empty for the module itself."""
        return self.name.partition(":")[2]


CHECKED = (
    Used("vllm.v1.engine.core_client:BackgroundResources.validate_alive", ("self", "frames")),
    Used("vllm.v1.engine.detokenizer:IncrementalDetokenizer.from_new_request", ("tokenizer", "request")),
    Used("vllm.v1.engine.detokenizer:BaseIncrementalDetokenizer.update", ("self", "new_token_ids", "stop_terminated")),
    Used("vllm.v1.engine.detokenizer:BaseIncrementalDetokenizer.get_next_output_text", ("self", "finished", "delta")),
    Used("vllm.v1.engine.detokenizer:FastIncrementalDetokenizer.decode_next", ("self", "next_token_id")),
    Used(
        "vllm.sampling_params:SamplingParams.verify",
        ("self", "model_config", "speculative_config", "structured_outputs_config", "tokenizer"),
    ),
    Used("vllm.v1.engine.core_client:AsyncMPClient._format_exception", ("self", "e")),
    Used("vllm.v1.engine.core_client:AsyncMPClient.add_request_async", ("self", "request")),
    Used("vllm.v1.engine.core_client:AsyncMPClient.abort_requests_async", ("self", "request_ids")),
    Used("vllm.v1.engine.core_client:AsyncMPClient.call_utility_async", ("self", "method", "args")),
    Used("vllm.v1.engine.core_client:AsyncMPClient.get_supported_tasks_async", ("self",)),
    Used(
        "vllm.v1.engine:EngineCoreOutputs",
        attributes=("outputs", "scheduler_stats", "timestamp", "utility_output"),
        message=True,
    ),
    Used(
        "vllm.v1.engine:EngineCoreOutput",
        attributes=(
            *("request_id", "new_token_ids", "new_logprobs", "new_prompt_logprobs_tensors", "pooling_output"),
            *("finish_reason", "stop_reason", "events", "prefill_stats"),
        ),
        message=True,
    ),
    Used("vllm.v1.engine:UtilityOutput", attributes=("call_id", "failure_message", "result"), message=True),
)
"""What `check_internals` checks at every start."""

MAY_LACK = ("vllm.v1.engine:EngineCoreOutput.error",)
"""What newer releases have, and we read where it is. vLLM 0.33 brought it."""

FRONTEND = (
    Used("vllm.inputs.engine:tokens_input", passes=("prompt_token_ids", "cache_salt")),
    Used("vllm.usage.usage_lib:UsageContext", members=("API_SERVER",)),
    Used("vllm.v1.metrics.prometheus:unregister_vllm_metrics", ()),
    Used(
        "vllm.v1.engine.async_llm:AsyncLLM",
        attributes=(
            *("from_vllm_config", "output_handler", "engine_core", "input_processor", "output_processor"),
            *("vllm_config", "check_health", "shutdown", "sleep", "wake_up"),
        ),
    ),
    Used("vllm.v1.engine.async_llm:AsyncLLM.sleep", passes=("level",)),
    Used(
        "vllm.v1.engine.async_llm:AsyncLLM.from_vllm_config",
        passes=("vllm_config", "usage_context", "stat_loggers", "disable_log_stats"),
    ),
    Used("vllm.v1.engine.async_llm:AsyncLLM.shutdown", passes=("timeout",)),
    Used("vllm.v1.engine.core_client:AsyncMPClient", attributes=("resources", "decoder", "utility_results")),
    Used(
        "vllm.v1.engine.core_client:BackgroundResources",
        attributes=("output_socket", "output_queue_task", "engine_dead", "engine_manager"),
    ),
    Used("vllm.v1.engine.utils:CoreEngineProcManager", attributes=("processes",)),
    Used("vllm.v1.engine.utils:get_mp_context", ()),
    Used("vllm.v1.engine.input_processor:InputProcessor", attributes=("assign_request_id", "get_tokenizer")),
    Used(
        "vllm.v1.engine.input_processor:InputProcessor.process_inputs",
        passes=("request_id", "prompt", "params", "supported_tasks", "lora_request"),
    ),
    Used("vllm.v1.engine.output_processor:OutputProcessor", attributes=("tokenizer",)),
    Used(
        "vllm.v1.engine:EngineCoreRequest",
        attributes=(
            *("request_id", "prompt_token_ids", "sampling_params", "pooling_params"),
            *("reasoning_ended", "reasoning_parser_kwargs"),
        ),
    ),
    Used("vllm.v1.engine:EngineCoreEvent", attributes=("type", "timestamp")),
    Used("vllm.v1.engine:EngineCoreEventType", members=("SCHEDULED", "PREEMPTED")),
    # Where an output has an error.
    Used("vllm.outputs:RequestError", attributes=("code", "message", "retryable")),
    Used("vllm.v1.engine:FinishReason", members=("STOP", "LENGTH", "ABORT", "ERROR", "REPETITION")),
    Used("vllm.v1.serial_utils:UtilityResult", attributes=("result",)),
    Used(
        "vllm.v1.engine.detokenizer:IncrementalDetokenizer",
        attributes=("num_output_tokens", "update", "get_next_output_text"),
    ),
    Used(
        "vllm.v1.engine.detokenizer:BaseIncrementalDetokenizer", attributes=("min_tokens", "_last_output_text_offset")
    ),
    Used("vllm.v1.engine.detokenizer:FastIncrementalDetokenizer", attributes=("decode_next", "tokenizer")),
    Used(
        "vllm.v1.metrics.stats:SchedulerStats",
        attributes=("num_running_reqs", "kv_cache_usage", "spec_decoding_stats", "num_kv_fetch_reqs_by_stage"),
    ),
    Used("vllm.v1.metrics.stats:PrefillStats", attributes=("num_cached_tokens",)),
    Used("vllm.v1.spec_decode.metrics:SpecDecodingStats", attributes=("num_draft_tokens", "num_accepted_tokens")),
    Used("vllm.v1.outputs:LogprobsLists", attributes=("logprob_token_ids", "logprobs", "sampled_token_ranks")),
    # Read by place.
    Used("vllm.v1.outputs:LogprobsTensors", attributes=("logprob_token_ids", "logprobs", "selected_token_ranks")),
)
"""The frontend's: `adapter`, `pump`, `sequence`, `logprobs`, `text`."""

PARAMETERS = (
    Used(
        "vllm.sampling_params:SamplingParams",
        passes=(
            *("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty"),
            *("frequency_penalty", "repetition_penalty", "seed", "stop", "stop_token_ids", "ignore_eos", "logprobs"),
            *("prompt_logprobs", "logit_bias", "structured_outputs", "extra_args", "detokenize", "output_kind"),
            *("skip_clone", "skip_special_tokens"),
        ),
        attributes=(
            *("eos_token_id", "stop", "stop_token_ids", "structured_outputs", "extra_args"),
            *("skip_special_tokens", "spaces_between_special_tokens"),
            *("max_tokens", "min_tokens", "presence_penalty", "frequency_penalty"),
        ),
    ),
    Used("vllm.sampling_params:RequestOutputKind", members=("DELTA",)),
    Used(
        "vllm.sampling_params:StructuredOutputsParams",
        passes=("json", "regex", "choice", "grammar", "structural_tag"),
        attributes=("structural_tag",),
    ),
    Used("vllm.pooling_params:PoolingParams", passes=("task", "dimensions", "use_activation", "extra_kwargs")),
    Used(
        "vllm.lora.request:LoRARequest", passes=("lora_name", "lora_int_id", "lora_path"), attributes=("lora_int_id",)
    ),
    Used("vllm.lora.utils:get_adapter_absolute_path"),
    Used("vllm.lora.peft_helper:PEFTHelper.from_local_dir"),
    Used("vllm.lora.peft_helper:PEFTHelper", attributes=("get_rank_and_scaling", "validate_legal")),
)
"""Requests' parameters and adapters."""

CONFIGURATION = (
    Used(
        "vllm.engine.arg_utils:AsyncEngineArgs",
        passes=(
            *("model", "runner", "tensor_parallel_size", "pipeline_parallel_size", "distributed_executor_backend"),
            *("dtype", "quantization", "kv_cache_dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens"),
            *("enable_prefix_caching", "trust_remote_code", "load_format", "enforce_eager", "generation_config"),
            *("disable_log_stats", "structured_outputs_config", "gpu_memory_utilization", "kv_cache_memory_bytes"),
            *("block_size", "async_scheduling", "enable_chunked_prefill", "speculative_config", "enable_lora"),
            *("max_loras", "max_cpu_loras", "max_lora_rank", "enable_sleep_mode"),
        ),
        attributes=("create_model_config", "create_engine_config"),
    ),
    Used("vllm.platforms:current_platform"),
    Used(
        "vllm.platforms.interface:Platform",
        attributes=("is_cpu", "is_unspecified", "get_device_name", "is_sleep_mode_available"),
    ),
    Used(
        "vllm.config.vllm:VllmConfig",
        attributes=(
            *("model_config", "cache_config", "scheduler_config", "lora_config", "speculative_config"),
            *("structured_outputs_config", "use_v2_model_runner"),
        ),
    ),
    Used(
        "vllm.config.model:ModelConfig",
        attributes=(
            *("model", "revision", "tokenizer", "tokenizer_revision", "trust_remote_code", "dtype", "quantization"),
            *("max_model_len", "max_logprobs", "logits_processors", "runner_type", "hf_config", "get_vocab_size"),
            *("get_pooling_task", "embedding_size", "is_matryoshka", "matryoshka_dimensions", "model_weights"),
            "enable_sleep_mode",
        ),
    ),
    Used("vllm.config.cache:CacheConfig", attributes=("num_gpu_blocks", "block_size", "kv_sharing_fast_prefill")),
    Used(
        "vllm.config.scheduler:SchedulerConfig",
        attributes=(
            *("max_num_seqs", "max_num_batched_tokens", "async_scheduling", "scheduler_cls"),
            "enable_chunked_prefill",
        ),
    ),
    Used("vllm.config.lora:LoRAConfig", attributes=("max_loras",)),
    Used("vllm.renderers.hf:resolve_chat_template", passes=("tokenizer", "chat_template", "tools", "model_config")),
    Used("vllm.tokenizers.registry:cached_tokenizer_from_config"),
    Used("vllm.tokenizers:cached_tokenizer_from_config"),
    Used("vllm.tokenizers.registry:get_tokenizer", passes=("tokenizer_mode", "revision", "trust_remote_code")),
    Used("vllm.tokenizers.registry:tokenizer_args_from_config"),
)
"""The start's: `startup`."""

CORE = (
    Used(
        "vllm.v1.core.sched.scheduler:Scheduler",
        attributes=(
            *("schedule", "update_from_output", "make_stats", "max_num_running_reqs", "max_num_active_reqs"),
            *("max_num_scheduled_tokens", "scheduler_config", "running", "num_spec_tokens", "use_v2_model_runner"),
        ),
    ),
    Used("vllm.v1.core.sched.async_scheduler:AsyncScheduler"),
    Used(
        "vllm.v1.core.sched.output:SchedulerOutput",
        attributes=("total_num_scheduled_tokens", "scheduled_new_reqs", "scheduled_cached_reqs"),
    ),
    Used(
        "vllm.v1.core.sched.output:NewRequestData",
        attributes=("prompt_token_ids", "sampling_params", "num_computed_tokens"),
    ),
    Used("vllm.v1.core.sched.output:CachedRequestData", attributes=("num_computed_tokens",)),
    Used("vllm.v1.engine.core:EngineCore", attributes=("scheduler", "is_scheduler_paused", "add_lora", "remove_lora")),
    Used("vllm.v1.structured_output:StructuredOutputManager._create_grammar", ("self", "request")),
    Used("vllm.v1.structured_output:StructuredOutputManager.accept_tokens", ("self", "request", "new_token_ids")),
    Used(
        "vllm.v1.request:Request",
        attributes=("request_id", "sampling_params", "stop_reason", "structured_output_request"),
    ),
    Used("vllm.v1.structured_output.request:StructuredOutputRequest", attributes=("grammar",)),
    Used("vllm.v1.structured_output.backend_guidance:GuidanceBackend.is_tokenizer_supported", passes=("tokenizer",)),
    Used("vllm.v1.structured_output.backend_guidance:GuidanceGrammar", attributes=("ll_matcher", "accept_tokens")),
    Used("vllm.v1.structured_output.backend_xgrammar:has_xgrammar_unsupported_json_features", ("schema",)),
    Used("vllm.v1.executor.uniproc_executor:UniProcExecutor", attributes=("_init_executor", "collective_rpc")),
    Used("vllm.v1.executor.multiproc_executor"),
    Used("vllm.v1.worker.cpu_worker"),
    Used(
        "vllm.v1.sample.logits_processor:LogitsProcessor", attributes=("is_argmax_invariant", "update_state", "apply")
    ),
    Used("vllm.v1.sample.logits_processor.builtin:process_dict_updates", ("req_entries", "batch_update", "new_state")),
    Used("vllm.distributed.device_communicators.shm_broadcast:sched_yield"),
    Used("vllm.lora.model_manager:LoRAModelManager", attributes=("lora_slots", "lora_config")),
    Used("vllm.lora.model_manager:LoRAModelManager._create_lora_modules", ("self",)),
)
"""The engine process's: `scheduler`, `in_core`, `plugin`, `resume_penalties`, `compilers`."""

PARSERS = (
    Used("vllm.tool_parsers:ToolParserManager.list_registered"),
    Used("vllm.reasoning:ReasoningParserManager.list_registered"),
    Used(
        "vllm.parser:ParserManager.get_parser",
        passes=(
            *("tool_parser_name", "reasoning_parser_name", "enable_auto_tools", "model_name", "is_harmony"),
            "tokenizer",
        ),
    ),
    Used(
        "vllm.parser.abstract_parser:Parser",
        attributes=(
            *("tool_parser", "reasoning_parser", "tool_strict_level", "model_tokenizer", "adjust_request", "parse"),
            *("parse_delta", "count_reasoning_tokens", "_stream_state"),
        ),
    ),
    Used(
        "vllm.parser.abstract_parser:DelegatingParser",
        attributes=(
            *("parse_delta", "extract_reasoning_streaming", "extract_tool_calls_streaming"),
            *("_extract_tool_calls_streaming", "_is_reasoning_end_streaming"),
        ),
    ),
    Used(
        "vllm.parser.abstract_parser:Parser.parse_delta",
        passes=("delta_text", "delta_token_ids", "request", "prompt_token_ids", "finished"),
    ),
    Used(
        "vllm.parser.abstract_parser:StreamState",
        attributes=("reasoning_ended", "tool_call_text_started", "previous_text"),
    ),
    Used(
        "vllm.tool_parsers.abstract_tool_parser:ToolParser",
        attributes=(
            *("engine_based_streaming", "supports_required_and_named", "prev_tool_call_arr"),
            "streamed_args_for_tool",
        ),
    ),
    Used(
        "vllm.reasoning.abs_reasoning_parsers:ReasoningParser",
        attributes=("is_reasoning_end_streaming", "extract_reasoning_streaming"),
    ),
    Used("vllm.tool_parsers.tool_strict_level:ToolStrictLevel", members=("FUNCTION",)),
    Used(
        "vllm.parser.engine.adapters:ParserEngineReasoningAdapter",
        attributes=("_parser_engine", "reasoning_end_token_ids", "find_reasoning_end"),
    ),
    Used(
        "vllm.parser.engine.parser_engine:ParserEngine",
        attributes=(
            *("_engine", "parser_engine_config", "_feed", "_preprocess_feed", "_events_to_delta"),
            "extract_reasoning_streaming",
        ),
    ),
    Used("vllm.parser.engine.parser_engine:ReasoningEnd", attributes=("offset", "implicit")),
    Used(
        "vllm.parser.engine.parser_engine_config:ParserEngineConfig",
        attributes=("strip_trailing_reasoning_whitespace",),
    ),
    Used(
        "vllm.parser.engine.streaming_parser_engine:StreamingParserEngine",
        attributes=("feed", "_lexer", "_resolved_token_ids"),
    ),
    Used("vllm.parser.engine.incremental_lexer:IncrementalLexer", attributes=("_literal_first_chars",)),
    Used(
        "vllm.tool_parsers.hermes_tool_parser:Hermes2ProToolParser",
        attributes=("_sent_content_idx", "_extract_tool_name", "_extract_tool_args"),
    ),
    Used(
        "vllm.reasoning.deepseek_r1_reasoning_parser:DeepSeekR1ReasoningParser",
        attributes=("start_token_id", "end_token_id"),
    ),
    Used("vllm.reasoning.deepseek_v3_reasoning_parser:DeepSeekV3ReasoningParser", attributes=("_parser",)),
    Used(
        "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest",
        passes=(
            *("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs"),
            "structured_outputs",
        ),
        attributes=("structured_outputs", "skip_special_tokens", "resolve_reasoning_ended", "tools"),
    ),
    Used("vllm.entrypoints.generate.base.protocol:FunctionCall", attributes=("name", "arguments")),
    Used("vllm.entrypoints.generate.base.protocol:DeltaFunctionCall", attributes=("name", "arguments")),
    Used("vllm.entrypoints.generate.base.protocol:DeltaToolCall", attributes=("index", "function")),
    Used("vllm.entrypoints.generate.base.protocol:DeltaMessage", attributes=("content", "reasoning", "tool_calls")),
)
"""The parsers': `parsing`."""

IMAGES = (
    Used("vllm.v1.engine.input_processor:InputProcessor", attributes=("renderer", "mm_encoder_cache_size")),
    Used("vllm.renderers.base:BaseRenderer", attributes=("mm_processor", "_mm_executor", "_mm_processor_only_cache")),
    Used(
        "vllm.multimodal.processing.processor:BaseMultiModalProcessor.__call__",
        passes=("mm_uuid_items", "cache"),
    ),
    Used("vllm.multimodal.processing.processor:BaseMultiModalProcessor", attributes=("info",)),
    Used("vllm.multimodal.processing.context:BaseProcessingInfo", attributes=("allowed_mm_limits", "parse_mm_data")),
    Used("vllm.multimodal.inputs:PlaceholderRange", attributes=("offset", "length", "get_num_embeds")),
    # Read by key.
    Used(
        "vllm.inputs.engine:MultiModalInput",
        attributes=("prompt_token_ids", "mm_kwargs", "mm_hashes", "mm_placeholders"),
    ),
    Used("vllm.inputs.engine:mm_input", passes=("cache_salt",)),
    Used("vllm.model_executor.model_loader:get_model_cls"),
    Used("vllm.model_executor.models.interfaces:SupportsMultiModal", attributes=("get_placeholder_str",)),
    Used("vllm.utils.torch_utils:set_default_torch_num_threads"),
)
"""The images': `images`."""

USED = (*CHECKED, *FRONTEND, *PARAMETERS, *CONFIGURATION, *CORE, *PARSERS, *IMAGES)
