"""gRPC options of our servers, and of links to and from release 0.2, each with its reason."""

from __future__ import annotations

MAX_INNER_MESSAGE = 64 << 20
"""Bytes; frames and tokenizers are far smaller."""

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    # By default gRPC cancels part of a burst of new calls; Penstock sheds load itself, with a reason and a RetryInfo.
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
    # And it cancels calls that a busy process has not taken up after 30 s, which clients do not try again. Calls have
    # deadlines of their own. Seconds.
    ("grpc.server_max_unrequested_time_in_server", 3_600),
    ("grpc.max_concurrent_streams", 1_000_000),
    # Clients may ping to find dead connections; without these options the server would treat that as an attack.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # gRPC 1.82 obeys this option, a minute by default; the one above alone changes nothing.
    ("grpc.http2.ping_timeout_ms", 10_000),
)

INNER_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_INNER_MESSAGE),
    ("grpc.max_send_message_length", MAX_INNER_MESSAGE),
    # A replica that restarted at the same address must be found at once, not after gRPC's two-minute backoff.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A proxy that the environment names is for hosts outside the cluster.
    ("grpc.enable_http_proxy", 0),
    # One channel per link: a shared subchannel would let one link's flow control hold up another.
    ("grpc.use_local_subchannel_pool", 1),
)
