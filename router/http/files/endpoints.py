"""Endpoints that a batch may have, with the readers of their bodies."""

from __future__ import annotations

from penstock.batch.embeddings import EMBEDDINGS_URL, read_embed
from penstock.batch.input import ENDPOINTS as COMMON
from router.http.responses.lines import URL, read_response_line

ENDPOINTS = {**COMMON, EMBEDDINGS_URL: read_embed, URL: read_response_line}
