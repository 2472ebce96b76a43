"""Aliases: which model serves a request that names one."""

from router.routing.aliases import Aliases
from router.routing.way import DIRECT, Route, Way, WayKind

__all__ = ["DIRECT", "Aliases", "Route", "Way", "WayKind"]
