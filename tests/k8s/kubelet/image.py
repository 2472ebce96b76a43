"""What images bring: programs on PATH, and nothing of the test's own environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.cluster.queue.servers import require_binary

ROOT = Path(__file__).resolve().parents[3]


def make_image(folder: Path) -> dict[str, str]:
    """Put programs into a folder; returns the environment that every container starts with."""
    redis = Path(require_binary("7.0"))
    cli = next((path for path in (redis.with_name("redis-cli"), Path("/usr/bin/redis-cli")) if path.exists()), redis)
    folder.mkdir()
    for name, target in (("valkey-server", redis), ("valkey-cli", cli)):
        (folder / name).symlink_to(target)
    _script(folder / "python", f'exec {sys.executable} "$@"')
    _script(folder / "penstock", f'exec {sys.executable} -m cluster.cli.main "$@"')
    _script(folder / "ray", f'exec {sys.executable} -m ray.scripts.scripts "$@"')
    return {
        "PATH": f"{folder}:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "proto"))),
        "PYTHONUNBUFFERED": "1",
    }


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    path.chmod(0o755)
