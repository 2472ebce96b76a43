"""Settings of a pool: its model, engine, SLO and control."""

from __future__ import annotations

import enum
from typing import Any, Literal

from pydantic import Field, model_validator

from cluster.settings.control.autoscale import AutoscaleSettings
from cluster.settings.control.mode import Mode
from cluster.settings.rollout import RolloutSettings
from cluster.settings.section import Section, Source
from cluster.sources import REVISION, STORES, is_hub_id


class EngineKind(enum.StrEnum):
    """Kind of engine."""

    VLLM = "vllm"
    """vLLM on GPUs or CPUs."""
    SIM = "sim"
    """Simulated engine without a model."""


class TaskKind(enum.StrEnum):
    """Task of a pool's model."""

    AUTO = "auto"
    """What the model's files name."""
    GENERATE = "generate"
    """Text."""
    EMBED = "embed"
    """Vectors."""
    CLASSIFY = "classify"
    """Numbers for each of the model's classes; with one class, scores of pairs of texts."""


class SpeculativeSettings(Section):
    """Speculative decoding; the values are passed to vLLM."""

    method: Literal["ngram", "draft_model", "eagle", "eagle3"] = "ngram"
    """Source of draft tokens: "ngram" copies from the prompt; the others use a draft model."""
    num_speculative_tokens: int = Field(default=3, ge=1, le=16)
    """Number of draft tokens per step."""
    model: Source = ""
    """Draft model: a local folder, or a hub id with "@revision" at its end for one revision; empty for ngram. It may be
    in an object store where the pool's model is in one."""
    prompt_lookup_min: int = Field(default=2, ge=1, le=16)
    """Shortest match in the prompt, in tokens. For ngram only."""
    prompt_lookup_max: int = Field(default=4, ge=1, le=32)
    """Longest match in the prompt, in tokens. For ngram only."""


class StructuredOutputSettings(Section):
    """How an engine holds output to a JSON Schema, regular expression, choice or grammar."""

    compiler: Literal["llguidance", "xgrammar"] = "llguidance"
    """Library that compiles constraints, the same for all requests of an engine. llguidance follows more of JSON Schema
    and refuses the rest. xgrammar follows less; it takes tokenizers that llguidance does not know, propertyNames, and
    integers of 64 bits."""
    any_whitespace: bool = False
    """Whether JSON may have any white space between its parts. Many models then write white space until max_tokens.
    Default: JSON is compact."""


class VllmSettings(Section):
    """A vLLM engine. Unset fields keep vLLM's own default for the hardware."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Data type of weights and activations. "auto" is the model's own; on a CPU without bfloat16 instructions it is
    float32 if the weights are small enough."""
    quantization: str | None = None
    """Quantization method of vLLM, such as "awq", "gptq", "fp8". Default: the one that the model's files name."""
    kv_cache_dtype: str = "auto"
    """Data type of the KV cache: "auto", or one of vLLM's, such as "fp8", which needs less memory."""
    kv_cache_memory_mb: int | None = Field(default=None, ge=8)
    """Size of the KV cache per rank, in MiB. Default: 256 on a CPU, 64 for the demo model there, where vLLM would take
    nearly all memory; on a GPU vLLM's own choice."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    """Part of a GPU's memory that vLLM may use for weights, activations and KV cache. Not used on a CPU."""
    block_size: int | None = Field(default=None, ge=8)
    """Tokens per block of the KV cache. Default: 32 on a CPU, vLLM's own on a GPU."""
    max_model_len: int | None = Field(default=None, ge=16)
    """Context length in tokens. Default: the model's. Lower it to save KV cache."""
    max_num_seqs: int = Field(default=256, ge=1, le=4096)
    """Largest batch, in sequences. The live batch limit of `control` stays at or below it."""
    max_num_batched_tokens: int | None = Field(default=None, ge=32)
    """Most tokens that one engine step may process. On a CPU at least max_model_len."""
    enable_prefix_caching: bool = True
    """Whether the KV cache of a prompt's beginning is reused by later prompts with the same beginning."""
    enforce_eager: bool | None = None
    """Whether vLLM runs without compilation and CUDA graphs: a faster start, slower steps. Default: true on a CPU,
    false on a GPU."""
    speculative: SpeculativeSettings | None = None
    """Speculative decoding. Default: off."""
    lora_modules: dict[str, Source] = {}  # noqa: RUF012 - pydantic copies it
    """LoRA adapters that are loaded at the start: name to place, as in an adapter's `source`. Requests select one by
    its name. Others can be put into the registry while the cluster runs."""
    max_loras: int | None = Field(default=None, ge=0, le=1024)
    """Adapters that one step may use; requests for more of them wait. 0 takes none. Default: the number of
    lora_modules, so that without these the registry can add none."""
    max_cpu_loras: int | None = Field(default=None, ge=1, le=65_536)
    """Adapters that stay in a replica's memory, at least max_loras. Others are read from its disk when a request asks
    for them, and the least used one goes. Default: four times max_loras."""
    max_lora_rank: int = Field(default=16, ge=1)
    """Largest rank of an adapter."""
    trust_remote_code: bool = False
    """Whether Python code from the model's repository may run. Only for models that you trust."""
    load_format: str = "auto"
    """Format of the weights, as vLLM names it. "dummy" gives random weights, for tests. "auto" is "runai_streamer" for
    a model in an object store."""
    structured_output: StructuredOutputSettings = StructuredOutputSettings()
    """Constrained output."""
    tool_call_parser: str | None = None
    """vLLM's parser of the model's tool calls, such as "hermes", "llama3_json", "mistral" or "qwen3_coder". Requests
    may have tools then. A start with a name that vLLM does not know lists all names. Default: "hermes" for the demo
    model, no tools for others."""
    reasoning_parser: str | None = None
    """vLLM's parser of the model's reasoning, such as "qwen3" or "deepseek_r1". Reasoning then has a channel of its
    own, and structured output begins after it. Default: "deepseek_v3" for the demo model; for others reasoning is part
    of the text."""
    extra: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Any other engine argument of vLLM, by vLLM's own name, such as hf_overrides or kv_transfer_config. Names are
    checked when an engine starts. Arguments that have a setting of their own, or that Penstock must set itself, are
    refused."""
    allow_split_prefill_on_cpu: bool = False
    """Whether a prefill may be split over steps on a CPU, where vLLM then crashes on requests with a seed. For fault
    tests only."""

    @property
    def adapter_slots(self) -> int:
        """Number of adapters that one step may use."""
        return len(self.lora_modules) if self.max_loras is None else self.max_loras

    @model_validator(mode="after")
    def _has_room_for_adapters(self) -> VllmSettings:
        if self.lora_modules and not self.adapter_slots:
            raise ValueError(f"max_loras must be at least 1 with {len(self.lora_modules)} lora_modules, got 0")
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.adapter_slots:
            raise ValueError(
                f"max_cpu_loras must be at least max_loras = {self.adapter_slots}, got {self.max_cpu_loras}"
            )
        return self


class SimSettings(Section):
    """The simulated engine. A step takes base_ms + per_token_us * tokens + per_kv_token_us * context tokens read.

    All times are bounded: every second of a test or simulation costs time, so a step of any length might never end.
    """

    base_ms: float = Field(default=5.0, ge=0, le=60_000)
    """Fixed time of a step, in milliseconds."""
    per_token_us: float = Field(default=20.0, ge=0, le=1_000_000)
    """Time per token that a step computes, in microseconds."""
    per_kv_token_us: float = Field(default=0.02, ge=0, le=1_000)
    """Time per token of context that a step reads from the KV cache, in microseconds."""
    kv_tokens: int = Field(default=200_000, ge=64)
    """Capacity of the KV cache, in tokens."""
    max_num_seqs: int = Field(default=64, ge=1, le=4096)
    """Largest batch, in sequences."""
    max_num_batched_tokens: int = Field(default=2048, ge=1)
    """Most tokens that one step may process."""
    max_model_len: int = Field(default=32_768, ge=16)
    """Context length in tokens."""
    time_scale: float = Field(default=1.0, ge=0, le=1_000)
    """Factor of all step times; 0 runs steps without any wait."""
    start_s: float = Field(default=0.0, ge=0, le=86_400)
    """Duration of a replica's start, in seconds."""
    wake_s: float = Field(default=0.0, ge=0, le=86_400)
    """Duration of a standby's wake-up, in seconds."""
    block_size: int = Field(default=16, ge=1)
    """Tokens per block of the prefix cache."""
    answer: str = ""
    """Text of every answer, to try clients with. Requests may then have tools: reasoning is text between <think> and
    </think> at the beginning, and a tool call is between <tool_call> and </tool_call>, as in Qwen3's format. Requests
    for structured output, or with a tool that must be called, get this text too, so write it as they need it. Default:
    made-up tokens."""
    max_loras: int = Field(default=64, ge=0, le=65_536)
    """Most LoRA adapters that are loaded. They change the made-up tokens."""
    adapter_load_s: float = Field(default=0.0, ge=0, le=3600)
    """Duration of the loading of an adapter, in seconds."""
    vector_size: int = Field(default=64, ge=1, le=16_384)
    """Number of dimensions of a vector, or number of classes, where the pool's task is "embed" or "classify"."""


class ClassSloSettings(Section):
    """Latency that one class of requests is promised. Unset promises nothing."""

    ttft_p99_s: float | None = Field(default=None, gt=0, le=3600)
    """Time to first token, 99th percentile, in seconds from the request's arrival."""
    itl_p95_s: float | None = Field(default=None, gt=0, le=60)
    """Time between two tokens, 95th percentile, in seconds."""


class SloSettings(Section):
    """SLO of a pool. All classes share a replica's batch, so the tightest itl_p95_s holds for all."""

    interactive: ClassSloSettings = ClassSloSettings()
    """SLO of class INTERACTIVE."""
    standard: ClassSloSettings = ClassSloSettings()
    """SLO of class STANDARD."""
    batch: ClassSloSettings = ClassSloSettings()
    """SLO of class BATCH."""
    attainment: float = Field(default=0.99, gt=0, lt=1)
    """Part of the requests that must be served within their SLO. A higher one takes more replicas."""


class ControlSettings(Section):
    """Control of each replica's live batch limit by the SLO: small batches give short times between tokens, large ones
    more throughput.
    """

    mode: Mode | None = None
    """"off" holds the limit at `max_batch`. "advisory" does too, decides and exports the decisions as metrics, but does
    not act. "active" acts. Default: active where an itl_p95_s is set, else off."""
    period_s: float = Field(default=1.0, ge=0.05, le=60)
    """Seconds between two decisions."""
    window_s: float = Field(default=15.0, ge=1, le=300)
    """Seconds of recent engine steps on which a decision rests."""
    min_batch: int = Field(default=1, ge=1)
    """Smallest batch limit, in sequences. It holds even where the SLO is missed."""
    max_batch: int | None = Field(default=None, ge=1)
    """Largest batch limit, in sequences. Default: the engine's max_num_seqs, which bounds it in any case."""
    start_batch: int = Field(default=16, ge=1)
    """Batch limit, in sequences, of a new replica that has not measured its engine yet; it doubles while the latency
    allows."""

    @model_validator(mode="after")
    def _has_room(self) -> ControlSettings:
        if self.max_batch is not None and self.max_batch < self.min_batch:
            raise ValueError(f"max_batch must be at least min_batch = {self.min_batch}, got {self.max_batch}")
        return self


_DEMO = "demo"
_STREAMED = ("auto", "runai_streamer", "runai_streamer_sharded")
"""Formats in which vLLM can read weights from an object store."""
_DEMO_PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "deepseek_v3"}


class PoolSettings(Section):
    """A pool: one model with its own Serve application, queue and replicas."""

    model: Source = Field(default=_DEMO, min_length=1)
    """Model: a local folder, a hub id, the URL of a prefix in an object store (s3://, gs://, az://), or "demo" for the
    model that ships with Penstock. A simulated engine uses only the tokenizer of a local folder."""
    revision: str = Field(default="", max_length=255, pattern=rf"^({REVISION})?$")
    """Commit, tag or branch of a model from a hub, for its weights, its tokenizer and its own code. Name a commit, so
    that replicas that start later get the same weights. Default: the newest."""
    engine: EngineKind = EngineKind.VLLM
    """Engine of the replicas: vLLM, or a simulated one for tests and load tests."""
    task: TaskKind = TaskKind.AUTO
    """What the model makes of its input: "generate" text, "embed" it as a vector, or "classify" it. "auto" takes what
    the model's files name, and "generate" for a simulated engine. Many models that generate can "embed" too."""
    replicas: int = Field(default=1, ge=1, le=1024)
    """Number of replicas at the start. The autoscaler changes it where `autoscale` is active."""
    cells: int = Field(default=1, ge=1, le=64)
    """Parts of the pool's queue, each with replicas and a hash slot of its own. One serves a few thousand requests per
    second; on a Redis Cluster several serve that many each. At most as many as the pool always has replicas."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    """Number of GPUs, or CPU ranks, of one machine that share every layer of a replica's model."""
    pipeline_parallel_size: int = Field(default=1, ge=1, le=64)
    """Number of machines that each hold a part of the layers, with tensor_parallel_size GPUs each."""
    vllm: VllmSettings = VllmSettings()
    """The vLLM engine, where `engine` is "vllm"."""
    sim: SimSettings = SimSettings()
    """The simulated engine, where `engine` is "sim"."""
    slo: SloSettings = SloSettings()
    """SLO of the pool."""
    control: ControlSettings = ControlSettings()
    """Control of batch limits."""
    autoscale: AutoscaleSettings = AutoscaleSettings()
    """Control of the number of replicas."""
    rollout: RolloutSettings = RolloutSettings()
    """Change of model or engine settings while the pool runs."""
    price_per_gpu_hour: float = Field(default=0.0, ge=0)
    """Price of an accelerator per hour, in any currency, the same for all prices. Receipts and the ledger use it."""
    budget_per_hour: float | None = Field(default=None, ge=0)
    """Most that the pool may cost per hour; it limits the number of replicas, but not below autoscale.min_replicas.
    Default: no limit. It needs a price_per_gpu_hour."""
    price_per_million_prompt_tokens: float = Field(default=0.0, ge=0)
    """Price of a million prompt tokens that are not found in the prefix cache."""
    price_per_million_cached_tokens: float | None = Field(default=None, ge=0)
    """Price of a million prompt tokens found in the prefix cache. Default: that of other prompt tokens."""
    price_per_million_output_tokens: float = Field(default=0.0, ge=0)
    """Price of a million output tokens."""

    @model_validator(mode="before")
    @classmethod
    def _parsers_of_the_demo_model(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("model", _DEMO) == _DEMO:
            vllm = fields.get("vllm", {})
            if isinstance(vllm, dict):
                return {**fields, "vllm": {**_DEMO_PARSERS, **vllm}}
        return fields

    @model_validator(mode="after")
    def _budget_has_a_price(self) -> PoolSettings:
        if self.budget_per_hour is not None and not self.price_per_gpu_hour:
            raise ValueError("price_per_gpu_hour must be above 0 where there is a budget_per_hour, got 0")
        return self

    @model_validator(mode="after")
    def _fills_cells(self) -> PoolSettings:
        scaled = self.autoscale.mode == "active"
        least, name = (self.autoscale.min_replicas, "autoscale.min_replicas") if scaled else (self.replicas, "replicas")
        if self.cells > max(1, least):
            raise ValueError(f"cells must be at most {name} = {least}, because each has its own, got {self.cells}")
        return self

    @model_validator(mode="after")
    def _fits_task(self) -> PoolSettings:
        if self.task in (TaskKind.AUTO, TaskKind.GENERATE):
            return self
        why = f"must be unset where the task is {self.task.value!r}: nothing is generated"
        for name in ("interactive", "standard", "batch"):
            if getattr(self.slo, name).itl_p95_s is not None:
                raise ValueError(f"slo.{name}.itl_p95_s {why}")
        if self.vllm.speculative is not None:
            raise ValueError(f"vllm.speculative {why}")
        return self

    @model_validator(mode="after")
    def _fits_place(self) -> PoolSettings:
        stored = self.model.lower().startswith(tuple(f"{scheme}://" for scheme in STORES))
        if self.revision and (stored or self.model == _DEMO or not is_hub_id(self.model)):
            raise ValueError(f"revision must be unset where model is {self.model!r}: only a hub has revisions")
        if self.revision and "@" in self.model:
            raise ValueError(f"revision must be unset where model has one already, got {self.model!r}")
        if stored and self.engine is EngineKind.VLLM and self.vllm.load_format not in _STREAMED:
            raise ValueError(
                f"vllm.load_format must be one of {', '.join(_STREAMED)} for a model in an object store, "
                f"got {self.vllm.load_format!r}"
            )
        draft = self.vllm.speculative.model if self.vllm.speculative else ""
        if "://" in draft and not stored:
            raise ValueError(f"vllm.speculative.model must not be in an object store where model is {self.model!r}")
        return self

    @property
    def ranks(self) -> int:
        """Number of accelerators of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size
