"""Penstock for its callers: the Python client, plain values, and the API's generated code (`penstock.v1`).

from penstock import Client

with Client("127.0.0.1:50051") as client:
    print(client.generate("demo", "What is a KV cache?", max_tokens=64).text)

Names are loaded at their first use, so that servers import `penstock.v1` and `penstock.values` without the client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client import *  # noqa: F403 - the public names are the client's
else:
    _ROOMS = ("batch", "client", "internal", "testing", "v1", "values", "wire")

    def __getattr__(name: str) -> object:
        # The import of a submodule asks here first, and must not load the client.
        if name == "__all__" or not (name.startswith("_") or name in _ROOMS):
            client = importlib.import_module("penstock.client")
            if name == "__all__" or name in client.__all__:
                return getattr(client, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted((*globals(), *importlib.import_module("penstock.client").__all__))
