"""The way in which gRPC reads sockets in a router process. Import it before gRPC, which reads the variable on import.

By default gRPC 1.82 reads sockets in a thread pool. The pool hands over to the thread that waits for completions, and
that one wakes the event loop. With these two experiments off, the waiting thread reads itself, so a replica's frame
passes one thread less.

Processes that it starts inherit the variable. A client on `grpc.aio` must not have it: there the waiting thread blocks
when the event loop is busy, and then reads no socket either.
"""

from __future__ import annotations

import os

EXPERIMENTS = "-event_engine_client,-event_engine_listener"

# A value that the operator has set stays.
os.environ.setdefault("GRPC_EXPERIMENTS", EXPERIMENTS)
