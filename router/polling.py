"""How gRPC reads sockets in a router process; has to be imported before gRPC, which looks while it is imported.

By default gRPC 1.82 has a thread pool for it, which hands over to the thread that waits for completions, which wakes
the event loop. With these two experiments off the waiting thread reads, and a replica's frame passes one thread less.
"""

from __future__ import annotations

import os

EXPERIMENTS = "-event_engine_client,-event_engine_listener"

# An operator who sets any experiment knows better.
os.environ.setdefault("GRPC_EXPERIMENTS", EXPERIMENTS)
