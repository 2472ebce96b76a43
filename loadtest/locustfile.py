"""Load tests of a Penstock cluster with Locust: `locust -f loadtest/locustfile.py --host router:50051`.

loadtest/README.md describes the flags and how latencies are counted.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Locust often starts outside of an installation, with this file alone.
_ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [folder for folder in (str(_ROOT), str(_ROOT / "proto")) if folder not in sys.path]

import loadtest.load.locust.hooks  # noqa: E402, F401  # listens to Locust's events
from loadtest.load.locust.users import AgentUser, BatchUser, ChatUser, RagUser  # noqa: E402

__all__ = ["AgentUser", "BatchUser", "ChatUser", "RagUser"]
