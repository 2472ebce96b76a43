"""`penstock down`: stop the cluster of a state folder."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

from rich.markup import escape

from cluster.bootstrap.state_dir import holder, is_held
from cluster.cli.options import settings_from
from cluster.errors import BootstrapError
from cluster.terminal.console import screen
from cluster.terminal.values import folder

DOWN_TIMEOUT_S = 180.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settings", help="the TOML file given to `penstock up`")
    parser.add_argument(
        "--state-dir", type=folder, help="the state folder (default: that of the settings, ~/.penstock)"
    )
    parser.set_defaults(run=run_down)


def run_down(options: argparse.Namespace) -> int:
    """Ask a running `penstock up` to stop, and wait until it has; DOWN_TIMEOUT_S seconds at most."""
    console = screen()
    path = Path(options.state_dir).expanduser() if options.state_dir else settings_from(options).cluster.folder
    if not is_held(path):
        console.print(f"no cluster runs in {escape(str(path))}", highlight=False, soft_wrap=True)
        return 0
    pid = holder(path)
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        # It ended by itself meanwhile.
        pass
    except PermissionError as error:
        raise BootstrapError("cluster", f"process {pid} is another user's") from error
    deadline = time.monotonic() + DOWN_TIMEOUT_S
    with console.status(f"waiting for process {pid} to drain and stop"):
        while is_held(path):
            if time.monotonic() > deadline:
                raise BootstrapError("cluster", f"process {pid} still runs after {DOWN_TIMEOUT_S:.0f} s")
            time.sleep(0.1)
    console.print("stopped")
    return 0
