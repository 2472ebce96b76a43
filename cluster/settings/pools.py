"""A pool: its model and engine, and how it is controlled."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from cluster.settings.section import Section


def _off(value: Any) -> Any:
    return "off" if value is False else value


Mode = Annotated[Literal["off", "advisory", "active"], BeforeValidator(_off)]
"""How far a controller goes. False is "off" too: that is what YAML makes of an off without quotes."""


class EngineKind(enum.StrEnum):
    """Names an engine."""

    VLLM = "vllm"
    SIM = "sim"


class SpeculativeSettings(Section):
    """Configures speculative decoding; passed to vLLM."""

    method: Literal["ngram", "draft_model", "eagle", "eagle3"] = "ngram"
    num_speculative_tokens: int = Field(default=3, ge=1, le=16)
    """Draft tokens per step."""
    model: str = ""
    """The draft model; empty for ngram."""
    prompt_lookup_min: int = Field(default=2, ge=1, le=16)
    """ngram: shortest match, in tokens."""
    prompt_lookup_max: int = Field(default=4, ge=1, le=32)
    """ngram: longest match, in tokens."""


class VllmSettings(Section):
    """Configures a vLLM engine. Unset fields keep vLLM's own default for the hardware."""

    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """"auto" is the model's own, but float32 on a CPU without bfloat16 instructions if the weights are small enough."""
    quantization: str | None = None
    """A vLLM quantization method, such as "awq", "gptq", "fp8"."""
    kv_cache_dtype: str = "auto"
    """"auto" or a vLLM KV cache dtype, such as "fp8"."""
    kv_cache_memory_mb: int | None = Field(default=None, ge=8)
    """KV cache per rank in MiB. Default: 256 on a CPU, where vLLM would take nearly all memory; vLLM's own choice on a
    GPU."""
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    block_size: int | None = Field(default=None, ge=8)
    """Tokens per KV block; default 32 on a CPU, vLLM's own on a GPU."""
    max_model_len: int | None = Field(default=None, ge=16)
    """Context length in tokens; default: the model's."""
    max_num_seqs: int = Field(default=256, ge=1, le=4096)
    """Largest batch; the live limit moves below it."""
    max_num_batched_tokens: int | None = Field(default=None, ge=32)
    """Largest token budget of a step. On a CPU at least max_model_len."""
    enable_prefix_caching: bool = True
    enforce_eager: bool | None = None
    """Default: true on a CPU (fast start), false on a GPU."""
    speculative: SpeculativeSettings | None = None
    lora_modules: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    """Adapter name to path."""
    max_lora_rank: int = Field(default=16, ge=1)
    trust_remote_code: bool = False
    load_format: str = "auto"
    """"dummy" gives random weights, for tests."""
    allow_split_prefill_on_cpu: bool = False
    """Switches off the guard against vLLM's CPU crash on seeded requests with a split prefill. For fault tests only."""


class SimSettings(Section):
    """Configures the simulated engine: a step takes base + per_token * tokens + per_kv_token * context read.

    Every second of a run costs something, simulated or not, so that a step of any length would be one that never ends.
    """

    base_ms: float = Field(default=5.0, ge=0, le=60_000)
    per_token_us: float = Field(default=20.0, ge=0, le=1_000_000)
    per_kv_token_us: float = Field(default=0.02, ge=0, le=1_000)
    kv_tokens: int = Field(default=200_000, ge=64)
    """KV cache capacity in tokens."""
    max_num_seqs: int = Field(default=64, ge=1, le=4096)
    max_num_batched_tokens: int = Field(default=2048, ge=1)
    max_model_len: int = Field(default=32_768, ge=16)
    time_scale: float = Field(default=1.0, ge=0, le=1_000)
    """Multiplies step times; 0 steps as fast as the loop turns."""
    start_s: float = Field(default=0.0, ge=0, le=86_400)
    """Cold start."""
    block_size: int = Field(default=16, ge=1)
    """Tokens per block of the prefix cache."""


class ClassSloSettings(Section):
    """Is what one class of requests is promised. Unset promises nothing."""

    ttft_p99_s: float | None = Field(default=None, gt=0, le=3600)
    """Time to first token, 99th percentile, from the request's arrival."""
    itl_p95_s: float | None = Field(default=None, gt=0, le=60)
    """Time between two tokens, 95th percentile."""


class SloSettings(Section):
    """Is what a pool promises. All classes share a replica's batch, so the tightest itl_p95_s holds for all."""

    interactive: ClassSloSettings = ClassSloSettings()
    standard: ClassSloSettings = ClassSloSettings()
    batch: ClassSloSettings = ClassSloSettings()
    attainment: float = Field(default=0.99, gt=0, lt=1)
    """Part of the requests that must be served within their SLO."""


class ControlSettings(Section):
    """Configures what follows from the SLO: each replica's live batch limit."""

    mode: Mode | None = None
    """"off" leaves the limit where it is; "advisory" decides and exports, but does not act; "active" acts. Default:
    active where an itl_p95_s is set, else off."""
    period_s: float = Field(default=1.0, ge=0.05, le=60)
    """Between two decisions."""
    window_s: float = Field(default=15.0, ge=1, le=300)
    """Steps of so long are what a decision looks at."""
    min_batch: int = Field(default=1, ge=1)
    """Smallest batch limit, in sequences."""
    max_batch: int | None = Field(default=None, ge=1)
    """Largest batch limit; default: the engine's max_num_seqs, which bounds it in any case."""
    start_batch: int = Field(default=16, ge=1)
    """The limit of a new replica that knows nothing of its engine yet; it doubles while the latency allows."""

    @model_validator(mode="after")
    def _has_room(self) -> ControlSettings:
        if self.max_batch is not None and self.max_batch < self.min_batch:
            raise ValueError(f"max_batch must be at least min_batch = {self.min_batch}, got {self.max_batch}")
        return self


class AutoscaleSettings(Section):
    """Configures how many replicas a pool has. Without it the number is `replicas`, for ever."""

    mode: Mode = "off"
    """"advisory" decides, records and exports, but does not act; "active" acts."""
    min_replicas: int = Field(default=1, ge=0, le=1024)
    """0 lets a pool without requests give up its last replica; requests then wait for a start."""
    max_replicas: int | None = Field(default=None, ge=1, le=1024)
    """Must be set where the mode is not "off"."""
    cold_start_s: float = Field(default=180.0, gt=0, le=7200)
    """How long a start takes, until some were measured."""
    start_timeout_s: float = Field(default=900.0, gt=0, le=14_400)
    """A replica that takes no work so long after it was asked for counts as a failed start."""
    fill: float = Field(default=0.66, ge=0.1, le=1)
    """Part of a replica's time that is planned for in a pool of four, at first; it then follows the attainment. In a
    larger pool a smaller part is left free, as its load scatters less: of one that does the work of 16, half as large a
    part of the work as of one that does the work of four."""
    rate_window_s: float = Field(default=60.0, ge=1, le=3600)
    """Arrivals are averaged over so long."""
    drain_s: float = Field(default=60.0, ge=1, le=3600)
    """What has piled up beyond the SLO is to be worked off in so long."""
    hold_s: float = Field(default=30.0, ge=0, le=3600)
    """Between a change and a removal."""
    look_back_s: float = Field(default=300.0, ge=1, le=86_400)
    """Removal goes down to the most that was needed in three cold starts or three minutes, in no longer than this; in
    up to six times as long after removals that had to be taken back, and never in more than the two hours that are
    remembered."""
    idle_s: float = Field(default=900.0, ge=1, le=86_400)
    """Without a request for so long a pool may go to 0, where min_replicas is 0."""
    up_window_s: float = Field(default=60.0, ge=1, le=3600)
    """At most twice the replicas, or four more, within so long."""
    down_window_s: float = Field(default=300.0, ge=1, le=86_400)
    """At most a quarter of the replicas fewer within so long, but one always."""
    stale_s: float = Field(default=30.0, ge=1, le=3600)
    """Values older than this freeze removal."""

    @model_validator(mode="after")
    def _has_bounds(self) -> AutoscaleSettings:
        if self.mode != "off" and self.max_replicas is None:
            raise ValueError(f"max_replicas must be set where mode is {self.mode!r}")
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas must be at least min_replicas = {self.min_replicas}, got {self.max_replicas}"
            )
        return self


class PoolSettings(Section):
    """Describes a pool: one model with its own Serve application, queue and replicas."""

    model: str = "demo"
    """A local folder, a hub id, or "demo" for the model that ships with Penstock. Simulated: only its tokenizer."""
    engine: EngineKind = EngineKind.VLLM
    replicas: int = Field(default=1, ge=1, le=1024)
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    """GPUs, or CPU ranks, that share every layer; on one machine."""
    pipeline_parallel_size: int = Field(default=1, ge=1, le=64)
    """Machines that each hold a part of the layers, with tensor_parallel_size GPUs each."""
    vllm: VllmSettings = VllmSettings()
    sim: SimSettings = SimSettings()
    slo: SloSettings = SloSettings()
    control: ControlSettings = ControlSettings()
    autoscale: AutoscaleSettings = AutoscaleSettings()
    price_per_gpu_hour: float = Field(default=0.0, ge=0)
    """For receipts and the ledger, as the other prices; in any currency."""
    budget_per_hour: float | None = Field(default=None, ge=0)
    """What the pool may cost, in the same currency; default: no bound. Binds only with a price_per_gpu_hour."""
    price_per_million_prompt_tokens: float = Field(default=0.0, ge=0)
    price_per_million_cached_tokens: float | None = Field(default=None, ge=0)
    """Of prompt tokens found in the prefix cache; default: as other prompt tokens."""
    price_per_million_output_tokens: float = Field(default=0.0, ge=0)

    @property
    def ranks(self) -> int:
        """Accelerators of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size
