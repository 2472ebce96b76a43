"""Settings of router processes: limits of requests, and serving."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cluster.settings.section import FilePath, Host, Section


class RouterTlsSettings(Section):
    """TLS on the public port; this section switches it on. Files are PEM and are read again when they change."""

    certificate_file: FilePath
    """The router's certificate, followed by those of intermediate authorities."""
    private_key_file: FilePath
    """Private key of the certificate, not encrypted."""
    client_ca_file: FilePath | None = None
    """Certificates of the authorities that sign clients' certificates. Every client must then show one. Default:
    clients are asked for none."""


class JobsSettings(Section):
    """Durable batch jobs. The values must be the same on every router. Bounds on stored jobs hold per pool. Bytes are
    counted as stored: compressed, bodies and results together.
    """

    in_flight: int = Field(default=16, ge=1, le=4096)
    """Most items of a job that wait or run at once; never more than the pool's replicas take together. Raise it where a
    job alone cannot keep the pool busy."""
    max_attempts: int = Field(default=3, ge=1, le=20)
    """Number of executions of an item that may fail inside the cluster; the last failure becomes its result."""
    jobs_per_router: int = Field(default=16, ge=1, le=1024)
    """Most jobs that one router feeds at once, per pool."""
    tenant_feeding: int = Field(default=4, ge=1, le=1024)
    """Most jobs of one tenant that are fed at once, over all routers, per pool. Further ones wait."""
    poll_s: float = Field(default=1.0, ge=0.02, le=60)
    """Seconds between two looks of a router for jobs that no router feeds."""
    lease_s: float = Field(default=10.0, ge=0.5, le=600)
    """Seconds that a router which feeds a job may be silent before another router takes the job over."""
    upload_s: float = Field(default=600.0, ge=1)
    """Seconds that an upload may be silent before it is dropped."""
    run_within_s: float = Field(default=7 * 86_400.0, ge=1)
    """Longest time from a job's submission to its end, in seconds; then it expires. Clients may ask for less."""
    ttl_s: float = Field(default=7 * 86_400.0, ge=1)
    """Seconds for which results are kept after a job's end."""
    file_ttl_s: float = Field(default=30 * 86_400.0, ge=1)
    """Seconds for which a file is kept that was uploaded over HTTP. Clients may ask for less. They may ask that results
    of a batch are kept for so long."""
    max_job_items: int = Field(default=100_000, ge=1, le=1_000_000)
    """Most items of one job."""
    max_item_bytes: int = Field(default=1 << 20, ge=1024, le=64 << 20)
    """Largest item in bytes, as a protobuf message."""
    tenant_jobs: int = Field(default=1_000, ge=1)
    """Most jobs of one tenant that are stored, ended ones included."""
    tenant_items: int = Field(default=1_000_000, ge=1)
    """Most items of one tenant's stored jobs, all jobs together."""
    tenant_mb: int = Field(default=1_024, ge=1)
    """Most MiB of one tenant's stored jobs, all jobs together."""
    max_jobs: int = Field(default=10_000, ge=1)
    """Most jobs that are stored, of all tenants together."""
    max_items: int = Field(default=5_000_000, ge=1)
    """Most items of all stored jobs together."""
    max_mb: int = Field(default=4_096, ge=1)
    """Most MiB of all stored jobs together. Redis keeps them in memory."""


class AffinitySettings(Section):
    """Preference of requests for replicas that have the beginning of their prompt cached."""

    prefix: bool = True
    """Whether a request prefers replicas that ran prompts with the same beginning."""
    session: bool = True
    """Whether a request with a session_id prefers the replica that ran the session's last request."""
    max_preferred: int = Field(default=2, ge=1, le=8)
    """Most replicas that one request may prefer, and on which one beginning is remembered."""
    block_tokens: int = Field(default=64, ge=8, le=4096)
    """Step, in tokens, in which beginnings of prompts are compared. A smaller step costs the router more time; a larger
    one finds shorter common beginnings and wastes cache."""
    index_blocks: int = Field(default=131_072, ge=1_024)
    """Most beginnings that a router remembers per pool, about 120 bytes each."""
    share_prefixes_across_tenants: bool = False
    """Whether tenants share cached beginnings of prompts. A tenant can then find out by timing what others sent."""


class LimitSettings(Section):
    """Limits of what one request may ask for. The API's documented limits are the upper ends; an operator can only set
    lower ones.
    """

    max_choices: int = Field(default=16, ge=1, le=16)
    """Largest n, the number of choices of one request."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Largest max_tokens, which is also the value of a request without one. Default: the context left after the
    prompt."""
    max_stop_strings: int = Field(default=16, ge=0, le=16)
    """Most stop strings of a request."""
    max_stop_bytes: int = Field(default=256, ge=1, le=256)
    """Longest stop string, in bytes of UTF-8."""
    max_stop_tokens: int = Field(default=64, ge=0, le=64)
    """Most stop token ids of a request."""
    max_logprobs: int = Field(default=20, ge=0, le=20)
    """Largest logprobs and prompt_logprobs: the alternatives returned with each token."""
    max_prompt_logprobs: int = Field(default=131_072, ge=1, le=131_072)
    """Most log probabilities of a prompt: its tokens times 1 + prompt_logprobs. Each takes some 20 bytes of the answer,
    60 over HTTP, and some microseconds of the router."""
    max_logit_biases: int = Field(default=1_024, ge=0, le=1_024)
    """Most entries of logit_bias."""
    max_schema_bytes: int = Field(default=65_536, ge=2, le=65_536)
    """Largest JSON Schema, in bytes."""
    max_schema_depth: int = Field(default=64, ge=1, le=64)
    """Deepest nesting of objects and arrays in a JSON Schema. The time to compile a schema grows with a power of its
    depth."""
    max_grammar_bytes: int = Field(default=65_536, ge=1, le=65_536)
    """Largest grammar, in bytes."""
    max_regex_bytes: int = Field(default=4_096, ge=1, le=4_096)
    """Largest regular expression, in bytes."""
    max_group_depth: int = Field(default=64, ge=1, le=64)
    """Deepest nesting of groups in a regular expression or grammar."""
    max_repetitions: int = Field(default=131_072, ge=1, le=131_072)
    """Largest size, in characters, of a regular expression or grammar with its counted repetitions written out:
    (a{1000}){1000} is a million."""
    max_choice_values: int = Field(default=1_024, ge=1, le=1_024)
    """Most allowed answers of a choice constraint."""
    max_messages: int = Field(default=1_024, ge=1, le=1_024)
    """Most messages of a conversation."""
    max_rendered_characters: int = Field(default=32 << 20, ge=1_024)
    """Longest text, in characters, that a chat template may render from a conversation."""


class MergingSettings(Section):
    """Merging of tokens into messages, for streams whose clients leave `flush_interval` out. A message costs a router
    and its client far more CPU than a token does.
    """

    streams: int = Field(default=64, ge=1)
    """Number of open streams of a router process from which tokens are merged. At this number two tokens of a stream
    share a message; each further quarter of it adds one token. Raise it for smoother streams, lower it to save CPU."""
    at_most_s: float = Field(default=0.1, ge=0, le=10)
    """Longest time in seconds that a token waits for the next ones; 0 switches merging off."""


class HttpSettings(Section):
    """The HTTP API, which OpenAI's SDKs call."""

    port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the HTTP API; 0 takes a free one. Default: none, except that `penstock up` takes 8000."""
    max_body_bytes: int = Field(default=16 << 20, ge=1 << 16, le=256 << 20)
    """Largest body of a request, in bytes."""
    cors_origins: tuple[str, ...] = Field(default=(), max_length=64)
    """Origins whose pages may call from a browser, such as https://app.example.com; * is every one. Default: none."""
    max_file_mb: int = Field(default=200, ge=1, le=10_000)
    """Largest file of an upload, in MiB. It passes through without being held in memory, and is kept in Redis."""
    responses_ttl_s: float = Field(default=30 * 86_400.0, ge=1)
    """Seconds for which a response of the Responses API is kept after its end. One that runs longer is dropped."""
    responses_per_tenant: int = Field(default=10_000, ge=1)
    """Most responses of one tenant that are stored. The oldest make room for new ones."""
    responses_tenant_mb: int = Field(default=256, ge=1)
    """Most MiB of one tenant's stored responses, compressed. The oldest make room for new ones. Redis keeps them in
    memory."""


class RecordSettings(Section):
    """Records of requests that have ended, for `penstock explain` and the console. They have no prompts or outputs."""

    most: int = Field(default=10_000, ge=0, le=1_000_000)
    """Newest requests of a pool that are remembered; 0 remembers none."""
    missed_s: float = Field(default=86_400.0, ge=0)
    """Seconds for which requests that missed their SLO, or failed, are remembered."""
    max_mb: int = Field(default=64, ge=1, le=65_536)
    """Most MiB of a pool's records. Redis keeps them in memory; the oldest make room for new ones."""


class RouterSettings(Section):
    """Router processes."""

    host: Host = "127.0.0.1"
    """Name or address on which the router listens. One that other machines can reach needs the `auth` section. :: is
    every address, IPv4 included."""
    tls: RouterTlsSettings | None = None
    """TLS on the public port. Default: no TLS; requests and keys travel in the clear."""
    port: int = Field(default=50051, ge=0, le=65535)
    """Port of the public gRPC API; 0 takes a free one."""
    http: HttpSettings = HttpSettings()
    """The HTTP API."""
    processes: int = Field(default=1, ge=1, le=64)
    """Number of router processes that share the port. Raise it where one process uses all of a CPU core."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Port of the first process's Prometheus endpoint; the other processes use the next ports. 0 takes free ones."""
    reflection: bool = True
    """Whether the server describes its API by gRPC reflection, which tools such as grpcurl use."""
    grpc_server: Literal["direct", "aio"] = "direct"
    """Implementation of the gRPC server: `direct` uses gRPC's core itself and takes less CPU per message; `aio` is
    grpc.aio, a fallback if `direct` misbehaves."""
    max_message_bytes: int = Field(default=16 << 20, ge=1 << 16, le=256 << 20)
    """Largest request message, in bytes."""
    max_prompt_bytes: int = Field(default=4 << 20, ge=1024)
    """Largest prompt text in bytes, checked before it is tokenized."""
    max_images_mb: float = Field(default=1_024.0, gt=0)
    """Most MiB of images that a router process holds for requests that wait or run. Above it, new requests with images
    get UNAVAILABLE."""
    drain_s: float = Field(default=30.0, ge=0)
    """Seconds that running streams may continue after SIGTERM."""
    link_ping_s: float = Field(default=2.0, gt=0)
    """Seconds within which a replica must answer a ping; a replica that does not counts as lost."""
    max_attempts: int = Field(default=3, ge=1, le=20)
    """Number of attempts of a choice that may be lost to failing replicas. After each loss but the last the choice
    continues on another replica."""
    first_token_timeout_s: float = Field(default=120.0, ge=0)
    """Seconds without output after which a replica that owes a first token counts as hung; its work moves to others.
    Must be longer than the longest prefill and the compilation of a grammar; 0 switches the check off."""
    token_timeout_s: float = Field(default=60.0, ge=0)
    """Seconds without output after which a replica that owes only later tokens counts as hung; 0 switches the check
    off. Replicas check their engines themselves, and sooner; this catches replicas that cannot."""
    quarantine_s: float = Field(default=600.0, ge=0, le=2_592_000)
    """Seconds for which a request content is refused after it was found to kill engines; 0 does not look for such
    requests."""
    breaker_failures: int = Field(default=5, ge=0)
    """Number of attempts in a row that fail on a replica's engine before a router gives that replica no work for a
    while; 0 switches this off."""
    breaker_open_s: float = Field(default=5.0, gt=0, le=60)
    """Seconds of the first such pause; each further one is twice as long, up to a minute."""
    max_unread_mb: float = Field(default=16.0, gt=0, le=1_024)
    """Most MiB of output that a router keeps for a client that reads too slowly; a stream with more ends with
    RESOURCE_EXHAUSTED. The default is some 15,000 tokens with 20 log probabilities each; without them it is more than
    any model's context."""
    max_unread_total_mb: float = Field(default=512.0, gt=0)
    """Most MiB of unread output of all streams of a pool together; above it the streams with the most unread output end
    first."""
    expected_output_tokens: int = Field(default=256, ge=1)
    """Output tokens that a request is assumed to produce, or its max_tokens where that is less, when room in a
    replica's KV cache is reserved for it. Set it near the usual output length."""
    merging: MergingSettings = MergingSettings()
    """Merging of tokens into messages."""
    affinity: AffinitySettings = AffinitySettings()
    """Preference for replicas with a cached prompt prefix."""
    limits: LimitSettings = LimitSettings()
    """Limits of a request."""
    records: RecordSettings = RecordSettings()
    """Records of requests that have ended."""

    @model_validator(mode="after")
    def _ports_differ(self) -> RouterSettings:
        last = self.metrics_port + self.processes - 1
        for name, port in (("port", self.port), ("http.port", self.http.port)):
            if port and self.metrics_port and self.metrics_port <= port <= last:
                raise ValueError(
                    f"{name} must not be among those of the metrics, metrics_port to metrics_port + processes - 1 = "
                    f"{self.metrics_port} to {last}, got {port}"
                )
        if self.port and self.port == self.http.port:
            raise ValueError(f"http.port must not be port = {self.port}, got {self.http.port}")
        return self
