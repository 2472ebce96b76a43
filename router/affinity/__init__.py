"""Where a request's beginning is already cached: which replicas it prefers, and whose cache it may share."""

from router.affinity.blocks import Trail, trail_of
from router.affinity.index import BlockIndex
from router.affinity.policy import Affinity
from router.affinity.salt import CacheSalts

__all__ = ["Affinity", "BlockIndex", "CacheSalts", "Trail", "trail_of"]
