"""Engines that a profile describes."""

from __future__ import annotations

from dataclasses import replace

from cluster.errors import SettingsError
from loadtest.plan.engine.steps import FirstToken, StepPrior
from loadtest.plan.option import PROFILE, Engine
from loadtest.plan.traffic import Load
from loadtest.profile.stored import Profile

LEAST_PROFILE_ERROR = 0.05
"""Engines vary more from day to day than a profile's own check shows."""
MOST_PROFILE_ERROR = 1.0
LONGER_ERROR = 0.25
"""Error for requests longer than those that a profile measured."""


def engine_of(profile: Profile, prices: dict[str, float]) -> Engine:
    """Return the engine of a profile.

    Raises:
        SettingsError: the profile misses its own held-out points by too much to plan with.
    """
    if profile.error > MOST_PROFILE_ERROR:
        raise SettingsError(
            f"profile: its held-out error of {profile.error:.0%} is more than {MOST_PROFILE_ERROR:.0%}: other work "
            "disturbed it; profile again on a quieter machine"
        )
    first = FirstToken(profile.overhead_s, profile.overhead_steps + 0.5)
    return Engine(
        model=profile.model,
        gpu=profile.hardware,
        tensor_parallel=profile.tensor_parallel,
        precision=profile.precision,
        steps=StepPrior(profile.model_of_steps, 0.0, first=first),
        error=max(LEAST_PROFILE_ERROR, profile.error),
        source="profile",
        kv_tokens=profile.kv_tokens,
        step_limits=(profile.step_tokens, min(profile.max_sequences, profile.batches[1])),
        context=profile.context,
        price=prices.get(profile.hardware),
        overhead_s=profile.overhead_s,
        overhead_steps=profile.overhead_steps,
        measured=PROFILE,
    )


def for_load(engine: Engine, profile: Profile, load: Load) -> Engine:
    """Return the engine with a larger error where requests are longer than the profile measured."""
    mean = load.shape.prompt_tokens + load.shape.output_tokens
    if mean <= profile.lengths[1]:
        return engine
    return replace(engine, error=max(engine.error, LONGER_ERROR), source="profile, of shorter requests")
