"""HTTP within the cluster."""

from __future__ import annotations

import urllib.request

INSIDE = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opener of URLs of Ray and of our own processes. It ignores the environment's proxy, which is for hosts outside the
cluster."""
