"""The parts that flags ask for, and what they need of a trace."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cluster.errors import SettingsError
from cluster.plural import counted
from cluster.settings import SimSettings
from loadtest.simulate.given_flags import given
from loadtest.simulate.parts.flags import LINK_GB_PER_S
from loadtest.simulate.parts.prefixes import share
from loadtest.simulate.parts.settings import Parts, Speculation, Split
from loadtest.traces import TraceRequest

_UNLIKE = "has no effect on a trace that does not tell which prompts begin alike (hash_ids or shared-prefix)"


def parts_of(options: argparse.Namespace, engine: SimSettings, static: Sequence[str]) -> Parts:
    """Return the parts that the flags ask for. `static` are the policies that keep the number of replicas.

    Raises:
        SettingsError: a flag has no effect, or the engine cannot do what it asks for.
    """
    tiers = tuple(tier for tier in (options.cpu_cache, options.disk_cache) if tier is not None)
    if tiers and options.no_prefix_cache:
        raise SettingsError(f"{tiers[0].name}-cache does not go together with no-prefix-cache, got {tiers[0].tokens}")
    if options.shared_prefix and options.no_prefix_cache:
        raise SettingsError(
            f"shared-prefix does not go together with no-prefix-cache, got {options.shared_prefix.tokens}"
        )
    split = _split(options, static)
    if not tiers and split is None and "kv_bytes" in given(options):
        raise SettingsError(
            f"kv-bytes is for cpu-cache, disk-cache and prefill-decode: nothing else moves, got {options.kv_bytes}"
        )
    return Parts(options.kv_bytes, tiers, options.shared_prefix, _speculation(options, engine), split)


def _split(options: argparse.Namespace, static: Sequence[str]) -> Split | None:
    ratio = options.prefill_decode
    if ratio is None:
        if options.kv_link is not None:
            raise SettingsError(f"kv-link is for prefill-decode: no KV cache is sent, got {options.kv_link[0]:g}")
        return None
    shown = f"prefill-decode = {ratio[0]}:{ratio[1]}"
    if options.policy not in static:
        raise SettingsError(f"policy must be {' or '.join(static)} with {shown}, got {options.policy}")
    for name in ("tune", "affinity"):
        if getattr(options, name):
            raise SettingsError(f"{name} does not go together with {shown}")
    groups, rest = divmod(options.replicas, sum(ratio))
    if rest or not groups:
        raise SettingsError(f"replicas must be a multiple of {sum(ratio)} with {shown}, got {options.replicas}")
    gb_per_s, latency_s = options.kv_link or (LINK_GB_PER_S, 0.0)
    return Split(groups * ratio[0], groups * ratio[1], gb_per_s, latency_s)


def _speculation(options: argparse.Namespace, engine: SimSettings) -> Speculation | None:
    drafted = options.draft_tokens
    if drafted is None:
        for name in sorted(given(options) & {"acceptance", "draft_ms", "draft_us", "verify_us"}):
            flag = name.replace("_", "-")
            raise SettingsError(f"{flag} is for draft-tokens: nothing is drafted, got {getattr(options, name):g}")
        return None
    if options.acceptance is None:
        raise SettingsError(f"acceptance must be given with draft-tokens, got draft-tokens = {drafted} alone")
    need = engine.max_num_seqs * (drafted + 1)
    if engine.max_num_batched_tokens < need:
        raise SettingsError(
            f"max-num-batched-tokens must be at least {need}, a token and {counted(drafted, 'draft token')} for each "
            f"of max-num-seqs = {engine.max_num_seqs}, got {engine.max_num_batched_tokens}"
        )
    return Speculation(
        drafted,
        options.acceptance,
        options.draft_ms / 1e3,
        options.draft_us / 1e6,
        None if options.verify_us is None else options.verify_us / 1e6,
    )


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
            raise SettingsError(f"{tier.name}-cache {_UNLIKE}, got {tier.tokens}")
        if tier.tokens < block:
            raise SettingsError(
                f"{tier.name}-cache must be at least one block of the trace, {block} tokens, got {tier.tokens}"
            )
    return trace


def check_alike(options: argparse.Namespace, trace: Sequence[TraceRequest]) -> None:
    """Refuse flags about prompts that begin alike where the trace does not tell which do.

    Raises:
        SettingsError: there is one.
    """
    for name in ("affinity", "no_prefix_cache"):
        if getattr(options, name) and not trace[0].block_tokens:
            raise SettingsError(f"{name.replace('_', '-')} {_UNLIKE}")
