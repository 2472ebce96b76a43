"""Translation of sampling parameters to those of vLLM."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cluster.errors import EngineRequestError
from cluster.models import GenerationSpec
from deployments.engines.vllm.compilers.names import unnamed_text
from deployments.engines.vllm.compilers.tags import TagForm, format_of
from penstock.models import ConstraintKind, SamplingParams, StructuralTag, StructuredOutput

if TYPE_CHECKING:
    import vllm

RECENT = 256
"""Number of different parameters that an engine's translator remembers."""

PRIOR_KEY = "penstock_prior"
"""Key in `extra_args`: tokens that the sequence produced elsewhere; they are also the end of its prompt."""
CONSTRAINED_PRIOR_KEY = "penstock_constrained_prior"
"""Key in `extra_args`: the end of them that a constraint holds for, where that is not all; reasoning comes before."""
PRESENCE_KEY = "penstock_presence"
FREQUENCY_KEY = "penstock_frequency"
"""Keys in `extra_args`: penalties that `resume.ResumePenalties` applies in vLLM's place."""
_NO_TAG = StructuralTag((), ())
_FOR_MINUS_ONE = 6_364_136_223_846_793_005
"""Seed used for -1: vLLM, also in its engine, takes -1 for no seed. Any other fixed number works."""


class Resumes(enum.Enum):
    """The part that counts a resumed sequence's prior tokens in presence and frequency penalties."""

    PROCESSOR = "processor"
    """`resume.ResumePenalties`, in place of vLLM's first model runner."""
    RUNNER = "runner"
    """vLLM's second model runner, which gets the tokens as output; see `scheduler.HandsOutputOver`."""
    NOBODY = "nobody"
    """No part: while it speculates, vLLM's first model runner takes no processor of ours."""


def to_vllm(spec: GenerationSpec, *, penalties: Resumes = Resumes.PROCESSOR) -> vllm.SamplingParams:
    """Build vLLM's parameters for one sequence.

    A resumed sequence gets the rest of its token bounds. Its prior tokens come along for penalties and grammar.

    Args:
        spec: the sequence.
        penalties: how this engine counts prior tokens in penalties.

    Raises:
        EngineRequestError: nothing is left to generate, or the engine cannot resume what was asked for.
    """
    # Not from `vllm` itself, which searches for names anew each time.
    from vllm.sampling_params import RequestOutputKind
    from vllm.sampling_params import SamplingParams as VllmSamplingParams

    prior = spec.resume.prior_token_ids if spec.resume else ()
    own = _rest_of(spec.sampling, len(prior))
    extra: dict[str, Any] = {}
    if prior:
        extra[PRIOR_KEY] = list(prior)
        if own.presence_penalty or own.frequency_penalty:
            if penalties is Resumes.NOBODY:
                raise EngineRequestError("this engine cannot resume presence and frequency penalties")
            if penalties is Resumes.PROCESSOR:
                extra |= {PRESENCE_KEY: own.presence_penalty, FREQUENCY_KEY: own.frequency_penalty}
                own = replace(own, presence_penalty=0.0, frequency_penalty=0.0)
    return VllmSamplingParams(
        max_tokens=own.max_tokens,
        min_tokens=own.min_tokens,
        temperature=own.temperature,
        top_p=own.top_p,
        top_k=own.top_k,
        min_p=own.min_p,
        presence_penalty=own.presence_penalty,
        frequency_penalty=own.frequency_penalty,
        repetition_penalty=own.repetition_penalty,
        seed=_FOR_MINUS_ONE if own.seed == -1 else own.seed,
        stop=list(own.stop),
        stop_token_ids=list(own.stop_token_ids),
        ignore_eos=own.ignore_eos,
        logprobs=own.logprobs,
        # vLLM does not read its prefix cache then. A resumed sequence asks anew, for a client that had nothing yet.
        prompt_logprobs=own.prompt_logprobs,
        logit_bias=dict(own.logit_bias) or None,
        structured_outputs=to_vllm_constraint(own.structured) if own.structured else None,
        extra_args=extra or None,
        detokenize=True,
        output_kind=RequestOutputKind.DELTA,
        # vLLM works on a copy, which need not be deep. Copies share only the model's own end tokens, and these are the
        # same for all.
        skip_clone=True,
    )


def translator(penalties: Resumes, tags: TagForm) -> Callable[[GenerationSpec], vllm.SamplingParams]:
    """Return `to_vllm` for one engine. It raises only EngineRequestError.

    It remembers the results for new sequences, because applications use the same parameters in every request.
    """

    @lru_cache(maxsize=RECENT)
    def begun(sampling: SamplingParams) -> vllm.SamplingParams:
        return to_vllm(GenerationSpec((), sampling))

    def translate(spec: GenerationSpec) -> vllm.SamplingParams:
        if spec.pooling is not None:
            raise EngineRequestError("this model generates, and neither embeds nor classifies")
        try:
            if spec.resume is None and spec.sampling.small:
                return begun(spec.sampling)
            found = to_vllm(spec, penalties=penalties)
            found.structured_outputs = tags.of(found.structured_outputs)
            return found
        except EngineRequestError:
            raise
        except Exception as error:
            # Raised by vLLM's own checks.
            raise EngineRequestError(str(error)) from error

    return translate


def _rest_of(sampling: SamplingParams, prior_tokens: int) -> SamplingParams:
    if not prior_tokens:
        return sampling
    rest = sampling.max_tokens - prior_tokens
    if rest < 1:
        raise EngineRequestError(f"max_tokens={sampling.max_tokens} is used up by {prior_tokens} prior tokens")
    return replace(sampling, max_tokens=rest, min_tokens=max(0, sampling.min_tokens - prior_tokens))


def to_vllm_constraint(constraint: StructuredOutput) -> Any:
    """Build vLLM's StructuredOutputsParams."""
    from vllm.sampling_params import StructuredOutputsParams

    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return StructuredOutputsParams(json=unnamed_text(constraint.text))
        case ConstraintKind.REGEX:
            return StructuredOutputsParams(regex=constraint.text)
        case ConstraintKind.CHOICE:
            return StructuredOutputsParams(choice=list(constraint.choices))
        case ConstraintKind.GRAMMAR:
            return StructuredOutputsParams(grammar=constraint.text)
        case ConstraintKind.STRUCTURAL_TAG:
            return StructuredOutputsParams(structural_tag=json.dumps(format_of(constraint.tag or _NO_TAG)))
