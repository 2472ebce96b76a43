"""Aliases: which model serves a request that names one."""

from router.routing.aliases import Aliases
from router.routing.choose import choose, part_of
from router.routing.way import DIRECT, Route, Way, WayKind

__all__ = ["DIRECT", "Aliases", "Route", "Way", "WayKind", "choose", "part_of"]
