"""A fitted engine as a profile for the planner."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from cluster.errors import SettingsError, plain_reason
from loadtest.profile.stored import Profile
from loadtest.validation.errors import Errors
from loadtest.validation.fit import lengths, replayed
from loadtest.validation.model import EngineModel, Expected
from loadtest.validation.recorded import RecordedRun


def profile_of(run: RecordedRun, expected: Expected, model: EngineModel, fitted: int, seen: Errors) -> Profile:
    """Return the profile of a fitted engine. Its error is that of the predicted requests.

    Raises:
        SettingsError: the engine has data parallel ranks, of which a profile says nothing.
    """
    if run.ranks.data_parallel > 1:
        # Those that share experts would be planned for as ranks of tensor parallelism. Others are several engines.
        raise SettingsError(
            f"save-profile: a profile is of one engine, and the run's has {run.ranks.data_parallel} data parallel ranks"
        )
    done = replayed(run, expected, model)
    batches = done.engines[0].log.sequences
    steps, limits = model.steps, expected.limits(run.engine)
    return Profile(
        model=run.model or "unknown",
        hardware=expected.gpu or run.gpu or "unknown",
        tensor_parallel=run.ranks.tensor_parallel,
        precision=expected.precision,
        a=steps.a,
        b=steps.b,
        g=steps.g,
        overhead_s=model.overhead_s,
        overhead_steps=model.overhead_steps,
        kv_tokens=limits.kv_tokens,
        max_sequences=limits.max_num_seqs,
        step_tokens=limits.max_num_batched_tokens,
        context=limits.max_model_len,
        samples=fitted,
        fit_error=seen.tpot_request_error,
        error=seen.tpot_request_error,
        checks=(),
        batches=(min(batches), max(batches)),
        lengths=lengths(run, range(len(run.trace))),
        seconds=max(run.last_token_s),
        m=steps.m,
        experts=(steps.experts.total, steps.experts.active) if steps.experts else None,
    )


def write_profile(path: Path, profile: Profile) -> None:
    """Write a profile to a file.

    Raises:
        SettingsError: it cannot be written.
    """
    try:
        path.write_text(json.dumps(asdict(profile), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"save-profile: {path} cannot be written: {plain_reason(error)}") from error
