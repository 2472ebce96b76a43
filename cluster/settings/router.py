"""Router processes: who may call, what is let in, and what they serve."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cluster.settings.section import FilePath, Host, Section


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
    max_schema_depth: int = Field(default=64, ge=1, le=64)
    """Deepest nesting of objects and arrays in a JSON Schema. The time to compile one grows with a power of it."""
    max_grammar_bytes: int = Field(default=65_536, ge=1, le=65_536)
    max_regex_bytes: int = Field(default=4_096, ge=1, le=4_096)
    max_group_depth: int = Field(default=64, ge=1, le=64)
    """Deepest nesting of groups in a regular expression or grammar."""
    max_counted_properties: int = Field(default=100, ge=1, le=100)
    """Properties of an object in a JSON Schema that says minProperties or maxProperties; 100 take an engine about a
    second."""
    max_repetitions: int = Field(default=131_072, ge=1, le=131_072)
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

    streams: int = Field(default=64, ge=1)
    """From so many streams of a process on, two tokens of each share a message, and one more per quarter of it."""
    at_most_s: float = Field(default=0.1, ge=0, le=10)
    """No token waits longer for the next ones; 0 merges nothing."""


class RouterSettings(Section):
    """Configures a router process."""

    host: Host = "127.0.0.1"
    """A name or address that others can reach needs the `auth` section. :: is every address, of IPv4 as well."""
    tls: RouterTlsSettings | None = None
    """Default: the port speaks in the clear."""
    port: int = Field(default=50051, ge=0, le=65535)
    """0 takes a free port."""
    processes: int = Field(default=1, ge=1, le=64)
    """Router processes that share the port."""
    metrics_port: int = Field(default=0, ge=0, le=65535)
    """Prometheus endpoint of the first process, the next ports for the others; 0 takes free ones."""
    reflection: bool = True
    grpc_server: Literal["direct", "aio"] = "direct"
    """What serves the port: `direct` works on gRPC's core itself and takes less CPU per message; `aio` is grpc.aio, for
    the case that `direct` misbehaves."""
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
    quarantine_s: float = Field(default=600.0, ge=0, le=2_592_000)
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

    @model_validator(mode="after")
    def _ports_differ(self) -> RouterSettings:
        last = self.metrics_port + self.processes - 1
        if self.metrics_port and self.metrics_port <= self.port <= last:
            raise ValueError(
                f"port must not be among those of the metrics, metrics_port to metrics_port + processes - 1 = "
                f"{self.metrics_port} to {last}, got {self.port}"
            )
        return self
