"""Host of a local Ray cluster in a separate process, which keeps Ray's signal handlers, output and threads out of the
CLI.

Run as `python -m cluster.bootstrap.ray_host READY_FILE NUM_CPUS`; ends with its parent or on SIGTERM.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

import psutil


def main() -> int:
    """Start Ray and the Serve controller, write the ready file, wait for a signal, stop both."""
    ready_file, cpus = Path(sys.argv[1]), int(sys.argv[2])
    stop = threading.Event()
    import ray
    from ray import serve

    context = ray.init(num_cpus=cpus, include_dashboard=True, dashboard_port=0, logging_level="WARNING")
    serve.start(proxy_location="Disabled")
    # After ray.init, which installs its own handlers.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    fields = {
        "dashboard": f"http://{context.dashboard_url}",
        "token_file": os.environ.get("RAY_AUTH_TOKEN_PATH", str(Path.home() / ".ray" / "auth_token")),
        "gpus": int(ray.cluster_resources().get("GPU", 0)),
    }
    partial = ready_file.with_suffix(".partial")
    partial.write_text(json.dumps(fields), encoding="utf-8")
    partial.replace(ready_file)
    parent, raylet = os.getppid(), _raylet()
    while not stop.wait(1.0):
        if os.getppid() != parent:
            break
        if raylet is not None and not _lives(raylet):
            # Without its raylet Ray does not answer, and a shutdown would wait for it.
            print("the raylet has ended", file=sys.stderr, flush=True)  # noqa: T201 - the log file of this process
            os._exit(1)
    serve.shutdown()
    ray.shutdown()
    return 0


def _raylet() -> psutil.Process | None:
    return next((child for child in psutil.Process().children() if child.name() == "raylet"), None)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    sys.exit(main())
