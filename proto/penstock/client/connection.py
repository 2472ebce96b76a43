"""Connections of clients to routers: targets, channel options and credentials."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc

from penstock.client.credentials import ApiKey, Credentials, check_metadata, check_plaintext, is_local
from penstock.client.explain import Attempt
from penstock.client.retry import Attempts, RetryPolicy
from penstock.client.targets import DEFAULT_PORT, checked_targets
from penstock.v1 import admin_pb2_grpc, embeddings_pb2_grpc, inference_pb2, inference_pb2_grpc, jobs_pb2_grpc
from penstock.values.fields import unfit

DEFAULT_TARGET = f"127.0.0.1:{DEFAULT_PORT}"

CHANNEL_OPTIONS: tuple[tuple[str, int | str], ...] = (
    # Long outputs with log probabilities pass gRPC's 4 MiB.
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 256 << 20),
    # Its own connections: a new client must not inherit the back-off of an earlier one to the same address.
    ("grpc.use_local_subchannel_pool", 1),
    # Detects a router that vanished without closing its connection while a stream is quiet.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # gRPC 1.82 obeys this option, a minute by default; the one above alone changes nothing.
    ("grpc.http2.ping_timeout_ms", 10_000),
    # A restarted router is found again soon, not only after gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Despite its name, the timeout of one attempt to connect, 20 s by default. That is longer than a stream may be
    # broken (RetryPolicy.resume_for): one router that accepts connections and never answers would end the stream.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # A name with several addresses, such as a headless service, is a set of routers.
    ("grpc.lb_policy_name", "round_robin"),
)

RESUMES = (("penstock-resume", "1"),)
"""Metadata of a call that goes on with a stream: a router takes new ones first."""

MetadataHook = Callable[[], Iterable[tuple[str, str]]]
"""Function that returns the metadata of one attempt, such as credentials that change."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificates and keys for TLS. All values are PEM; the private key is kept out of repr."""

    root_certificates: bytes | None = None
    """Authorities that may sign the router's certificate; None trusts gRPC's default."""
    certificate_chain: bytes | None = None
    """The client's own certificate, for routers that ask for one; needs `private_key`."""
    private_key: bytes | None = field(default=None, repr=False)
    server_name: str = ""
    """Name in the router's certificate, where it differs from the target's."""

    def __post_init__(self) -> None:
        for name in ("root_certificates", "certificate_chain", "private_key"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bytes):
                # Without the value: it may be a private key.
                raise TypeError(f"tls.{name}: must be bytes, got {type(value).__name__}")
        pair = {"certificate_chain": self.certificate_chain, "private_key": self.private_key}
        missing = [name for name, value in pair.items() if not value]
        if len(missing) == 1:
            # gRPC would end the process.
            raise ValueError(f"tls.{missing[0]}: certificate_chain and private_key must be given together")

    def credentials(self) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(self.root_certificates, self.private_key, self.certificate_chain)


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials of a client, and the connections that may carry them."""

    tls: Tls | None = None
    api_key: ApiKey | None = field(default=None, repr=False)
    allow_plaintext_key: bool = False
    metadata: MetadataHook | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """Everything that both clients need to know of their routers."""

    targets: tuple[str, ...]
    tls: Tls | None
    credentials: Credentials | None
    metadata: MetadataHook | None
    timeout: float | None
    retry: RetryPolicy
    options: tuple[tuple[str, Any], ...]

    @classmethod
    def build(
        cls,
        targets: str | Sequence[str],
        access: Access,
        timeout: float | None,
        retry: RetryPolicy | None,
        options: Sequence[tuple[str, Any]],
    ) -> Connection:
        """Normalise a client's arguments.

        Raises:
            ValueError: there is no target, one is not host:port, or the key can't be sent, or would travel in the clear
                to another machine.
            TypeError: an argument is of another type.
        """
        if not isinstance(retry, RetryPolicy | None):
            raise unfit("retry", "a RetryPolicy", retry)
        tls, key = access.tls, access.api_key
        names = checked_targets(targets, tls=tls is not None)
        if key is not None and tls is None and not access.allow_plaintext_key:
            check_plaintext(names)
        # A proxy that the environment names is for other hosts; it would get a key that travels in the clear.
        here = {"grpc.enable_http_proxy": 0} if all(map(is_local, names)) else {}
        merged = dict(CHANNEL_OPTIONS) | here | dict(options)
        if tls is not None and tls.server_name:
            merged["grpc.ssl_target_name_override"] = tls.server_name
        credentials = Credentials(key) if key is not None else None
        if credentials is not None and not callable(key):
            # A key from a function is checked at each call.
            credentials.metadata()
        return cls(names, tls, credentials, access.metadata, timeout, retry or RetryPolicy(), tuple(merged.items()))

    def attempts(self, timeout: float | None) -> Attempts:
        """Return the retry state of a new call; its own timeout, in seconds, wins over the client's."""
        return Attempts(self.retry, self.timeout if timeout is None else timeout)

    def attempt(self, target: str, timeout: float | None) -> Attempt:
        """Return what errors of an attempt are explained with; `timeout` is the whole call's, in seconds."""
        return Attempt(target, self.tls is not None, timeout)

    def call_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of one attempt.

        Raises:
            ValueError: gRPC can't send them.
        """
        key = self.credentials.metadata() if self.credentials else ()
        if self.metadata is None:
            return key
        added = self.metadata()
        if not isinstance(added, Iterable):
            raise unfit("metadata", "pairs of a name and a value", added)
        added = tuple(added)
        check_metadata(added)
        return (*key, *added)

    def stream_metadata(self, request: inference_pb2.StreamGenerateRequest) -> tuple[tuple[str, str], ...]:
        """Return the metadata of one attempt of a stream.

        Raises:
            ValueError: gRPC can't send them.
        """
        return (*self.call_metadata(), *(RESUMES if request.HasField("resume") else ()))

    def rotation(self) -> itertools.cycle[int]:
        """Return the order in which attempts visit targets. Its start is random, so that clients spread."""
        start = random.randrange(len(self.targets))  # noqa: S311  # no secret
        return itertools.cycle([*range(start, len(self.targets)), *range(start)])


class Tries(Protocol):
    """State of a call over all its tries."""

    target: int | None
    """Number of the router of the last try; None before it."""


def next_target(rotation: Iterator[int], tries: Tries) -> int:
    """Return the number of the router of a call's next try: another one than last time, where there is one. After the
    death of a router of two its streams would else choose it again half of the time, and wait longer after each time.
    """
    target = next(rotation)
    if target == tries.target:
        target = next(rotation)
    tries.target = target
    return target


class OpenStream(Protocol):
    """Function that opens a stream at the next router."""

    def __call__(
        self, request: inference_pb2.StreamGenerateRequest, attempts: Attempts, *, again: bool
    ) -> tuple[Any, Attempt]:
        """Return the call and what its errors are explained with; `again` is true after the stream's first call."""


class Stubs:
    """Stubs of all services over one channel, of either stack."""

    def __init__(self, channel: Any, target: str = "") -> None:
        """`target`: address of the channel's router, for errors."""
        self.target = target
        self.inference: Any = inference_pb2_grpc.InferenceServiceStub(channel)
        self.embeddings: Any = embeddings_pb2_grpc.EmbeddingServiceStub(channel)
        self.jobs: Any = jobs_pb2_grpc.JobServiceStub(channel)
        self.admin: Any = admin_pb2_grpc.AdminServiceStub(channel)
