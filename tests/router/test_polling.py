"""When a router process says how gRPC reads sockets."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

_SHOW = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print(os.environ.get("GRPC_EXPERIMENTS"))

sys.meta_path.insert(0, Watch())
import router.__main__
"""


@pytest.mark.parametrize("own", [None, "some_experiment"])
def test_it_is_said_before_grpc_is_imported(own: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
    if own is not None:
        environment["GRPC_EXPERIMENTS"] = own

    shown = subprocess.run([sys.executable, "-c", _SHOW], env=environment, capture_output=True, text=True, check=True)

    assert (own or "-event_engine_client,-event_engine_listener") == shown.stdout.split("\n")[0]
