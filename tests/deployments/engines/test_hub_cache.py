"""A real engine without a network takes what `penstock weights` has put into the hub's cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.engines import identity
from deployments.engines.factory import resolve_model
from tests.cluster.weights.hub import COMMIT, NAME, serving

PROGRAM = """
import asyncio, sys
from cluster.settings import PoolSettings
from deployments.engines.factory import build_engine

async def main():
    engine = build_engine(PoolSettings(model=sys.argv[1], revision=sys.argv[2]))
    print("digest", (await engine.start()).model.digest)
    await engine.close()

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.parametrize("revision", [COMMIT, "v1"])
def test_an_engine_starts_offline_with_a_pinned_revision(tmp_path: Path, revision: str) -> None:
    demo = resolve_model("demo")
    home, program = tmp_path / "home", tmp_path / "program.py"
    program.write_text(PROGRAM)
    environ = {**os.environ, "HF_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    with serving({file.name: file.read_bytes() for file in demo.iterdir() if file.is_file()}) as hub:
        fetch = [sys.executable, "-m", "cluster.cli.main", "weights", "fetch", f"{NAME}@{revision}"]
        subprocess.run(fetch, env={**environ, "HF_ENDPOINT": hub.url}, check=True, capture_output=True)
        asked = len(hub.asked)
        offline = {**environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "1"}
        start = [sys.executable, str(program), NAME, revision]
        done = subprocess.run(start, env=offline, capture_output=True, text=True, check=False)
        assert 0 == done.returncode, done.stderr[-2000:]
        assert f"digest {identity.model_digest(demo)}" in done.stdout
        assert asked == len(hub.asked), "the hub was asked for nothing more"
