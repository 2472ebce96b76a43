"""HTTP within the cluster."""

from __future__ import annotations

import urllib.request

INSIDE = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens URLs of Ray and of our own processes: a proxy that the environment names is for the way out."""
