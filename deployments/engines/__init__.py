"""Engines behind one small protocol. `build_engine` makes the one that the settings name."""

from deployments.engines.base import Engine, EngineIdentity, TokenSink

__all__ = ["Engine", "EngineIdentity", "TokenSink"]
