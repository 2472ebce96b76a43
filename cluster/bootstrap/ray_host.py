"""Host of a local Ray cluster in a separate process, which keeps Ray's signal handlers, output and threads out of the
CLI.

Run as `python -m cluster.bootstrap.ray_host`; ends with its parent or on SIGTERM.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import psutil

from cluster.ready_file import READY_FLAG, write_ready_file

LOGICAL_CPUS = 10_000_000
"""CPUs that are announced to Ray. Its accounting is logical, and no limit on one machine: all replicas must fit on any,
also those of pools that are added later."""
_USELESS = ("ray/dashboard/dashboard.py", "ray/autoscaler/_private/monitor.py")


def main() -> int:
    """Start Ray and the Serve controller, write the ready file, wait for a signal, stop both."""
    options = _parser().parse_args()
    ready_file, token = Path(options.ready_file), Path(options.token_file).read_text(encoding="ascii").strip()
    stop = threading.Event()
    if not options.dashboard:
        _leave_out_dashboard()
    import ray

    from cluster.ray_serve.host import RayServeControl, serving

    context = ray.init(
        # Not the cluster that RAY_ADDRESS may name.
        address="local",
        num_cpus=LOGICAL_CPUS,
        include_dashboard=options.dashboard,
        dashboard_port=0,
        logging_level="WARNING",
        _temp_dir=options.temp_dir,
    )
    if not options.dashboard:
        _end_useless()
    control = RayServeControl()
    # After ray.init, which installs its own handlers.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    with ExitStack() as stack:
        fields = {
            "api": stack.enter_context(serving(control, token)),
            "dashboard": f"http://{context.dashboard_url}" if options.dashboard else "",
            "gpus": int(ray.cluster_resources().get("GPU", 0)),
        }
        write_ready_file(ready_file, fields)
        _wait(stop)
        from ray import serve

        serve.shutdown()
    ray.shutdown()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument(READY_FLAG, required=True)
    parser.add_argument("--token-file", required=True)
    parser.add_argument("--temp-dir", required=True)
    parser.add_argument("--dashboard", action="store_true")
    return parser


def _leave_out_dashboard() -> None:
    """Make Ray start as where it was installed without its dashboard, so that each of its processes imports less."""
    sys.modules["ray.dashboard.optional_deps"] = None  # type: ignore[assignment]  # an import of it fails


def _end_useless() -> None:
    """End two processes that Ray always starts, 60 MiB each: a dashboard without pages, and a monitor that would add
    machines.
    """
    for child in psutil.Process().children():
        words = " ".join(child.cmdline())
        if any(script in words for script in _USELESS):
            child.terminate()


def _wait(stop: threading.Event) -> None:
    """Wait for a signal or the end of the parent; end this process at once if the raylet ends."""
    parent, raylet = os.getppid(), _raylet()
    while not stop.wait(1.0):
        if os.getppid() != parent:
            break
        if raylet is not None and not _lives(raylet):
            # Without its raylet Ray does not answer, and a shutdown would wait for it.
            print("the raylet has ended", file=sys.stderr, flush=True)  # noqa: T201 - the log file of this process
            os._exit(1)


def _raylet() -> psutil.Process | None:
    return next((child for child in psutil.Process().children() if child.name() == "raylet"), None)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


if __name__ == "__main__":
    sys.exit(main())
