"""Prefix affinity: where the beginning of a prompt is already cached, and whose cache a request may share."""

from router.affinity.blocks import Trail, trail_of
from router.affinity.policy import Affinity
from router.affinity.salt import CacheSalts

__all__ = ["Affinity", "CacheSalts", "Trail", "trail_of"]
