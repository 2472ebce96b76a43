"""The parts that flags ask for, and what they need of a trace."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cluster.errors import SettingsError
from loadtest.simulate.given_flags import given
from loadtest.simulate.parts.prefixes import share
from loadtest.simulate.parts.settings import Parts
from loadtest.traces import TraceRequest


def parts_of(options: argparse.Namespace) -> Parts:
    """Return the parts that the flags ask for.

    Raises:
        SettingsError: a flag has no effect.
    """
    tiers = tuple(tier for tier in (options.cpu_cache, options.disk_cache) if tier is not None)
    if tiers and options.no_prefix_cache:
        raise SettingsError(f"{tiers[0].name}-cache does not go together with no-prefix-cache, got {tiers[0].tokens}")
    if options.shared_prefix and options.no_prefix_cache:
        raise SettingsError(
            f"shared-prefix does not go together with no-prefix-cache, got {options.shared_prefix.tokens}"
        )
    if not tiers and "kv_bytes" in given(options):
        raise SettingsError(f"kv-bytes is for cpu-cache and disk-cache: nothing else moves, got {options.kv_bytes}")
    return Parts(options.kv_bytes, tiers, options.shared_prefix)


def with_parts(trace: Sequence[TraceRequest], parts: Parts, block_tokens: int, seed: int = 1) -> Sequence[TraceRequest]:
    """Return the trace that the parts need.

    Args:
        trace: as it was read.
        parts: what the flags ask for.
        block_tokens: block size of the KV cache, where the trace has none.
        seed: of the draws.

    Raises:
        SettingsError: a part has no effect on the trace.
    """
    if parts.shared is not None:
        trace = share(trace, parts.shared, block_tokens, seed)
    block = trace[0].block_tokens if trace else block_tokens
    for tier in parts.tiers:
        if not block:
            raise SettingsError(
                f"{tier.name}-cache has no effect on a trace that does not tell which prompts begin alike (hash_ids or "
                f"shared-prefix), got {tier.tokens}"
            )
        if tier.tokens < block:
            raise SettingsError(
                f"{tier.name}-cache must be at least one block of the trace, {block} tokens, got {tier.tokens}"
            )
    return trace
