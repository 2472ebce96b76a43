"""The stores of an empty pool, as autoscalers see them."""

from __future__ import annotations

from tests.cluster.autoscaler.conftest import backend, local

__all__ = ["backend", "local"]
