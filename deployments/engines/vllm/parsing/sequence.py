"""What parsing adds to one sequence: its parser, and changes of its sampling parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from cluster.errors import EngineRequestError
from cluster.models import GenerationSpec, Judgement
from deployments.engines.vllm.parsing.constraint import constraint_of, schema_problem
from deployments.engines.vllm.parsing.loader import Parsers
from deployments.engines.vllm.parsing.output import VllmOutputParser
from deployments.engines.vllm.parsing.passing import passing_of
from deployments.engines.vllm.parsing.request import chat_request, grammar_request, template_kwargs
from deployments.engines.vllm.parsing.tokens import TokenTexts
from deployments.engines.vllm.sampling import CONSTRAINED_PRIOR_KEY, PRIOR_KEY
from deployments.engines.vllm.text import detokenizer_of
from penstock.models import OutputParsing, ToolMode


@dataclass(frozen=True, slots=True)
class ParsedSequence:
    """Parser of one sequence, with what vLLM has to know of it."""

    parser: VllmOutputParser
    constraint: Any
    """vLLM's StructuredOutputsParams; None without a constraint."""
    skip_special_tokens: bool
    reasoning_ended: bool | None
    """Whether a constraint holds from the first token; None leaves it to the engine."""
    reasoning_kwargs: dict[str, Any] | None
    """Arguments of the engine's own reasoning parser."""
    constrained_prior: tuple[int, ...]
    """The output before a resume that the constraint holds for: what follows the reasoning."""

    def adjust(self, params: Any) -> Any:
        """Return vLLM's sampling parameters with the changes."""
        params = copy(params)
        params.structured_outputs = self.constraint
        params.skip_special_tokens = self.skip_special_tokens
        if params.extra_args and PRIOR_KEY in params.extra_args:
            params.extra_args = {**params.extra_args, CONSTRAINED_PRIOR_KEY: list(self.constrained_prior)}
        return params


def parse_sequence(parsers: Parsers | None, spec: GenerationSpec) -> ParsedSequence | None:
    """Prepare the parser of a sequence; None for output that is only text.

    Raises:
        EngineRequestError: tools must be called, and the engine can't have them called.
    """
    parsing = spec.parsing
    if parsing is None:
        return None
    kind = None if parsers is None else parsers.with_tools if parsing.tools else parsers.without_tools
    if parsers is None or kind is None:
        if parsing.mode is ToolMode.REQUIRED:
            raise EngineRequestError("this engine has no tool parser")
        return None
    try:
        return _sequence(parsers, kind, parsing, spec)
    except EngineRequestError:
        raise
    except Exception as error:
        # vLLM's own checks, and parsers of many kinds.
        raise EngineRequestError(f"the tools can't be used: {' '.join(str(error).split())}") from error


def judge_calls(parsers: Parsers | None, spec: GenerationSpec) -> tuple[Judgement, Any]:
    """Judge the calls that a sequence demands, and return the constraint that makes the model write them: vLLM's
    StructuredOutputsParams, or None.
    """
    parsing = spec.parsing
    if parsing is None:
        return Judgement(), None
    if parsers is not None and (found := schema_problem(parsers.compiler, parsing)) is not None:
        return Judgement(found[1], field=f"tools[{found[0]}].parameters"), None
    try:
        parsed = parse_sequence(parsers, spec)
    except EngineRequestError as error:
        return Judgement(str(error)), None
    return Judgement(), None if parsed is None else parsed.constraint


def _sequence(parsers: Parsers, kind: Any, parsing: OutputParsing, spec: GenerationSpec) -> ParsedSequence:
    from vllm.tool_parsers.tool_strict_level import ToolStrictLevel

    structured = spec.sampling.structured
    request = chat_request(parsing, structured)
    kwargs = template_kwargs(parsing)
    parser = kind(parsers.tokenizer, request.tools, chat_template_kwargs=kwargs, model_config=parsers.config)
    if structured is not None and parsing.tools:
        # The answer may be either; without this it could only be the client's format.
        parser.tool_strict_level = ToolStrictLevel.FUNCTION
    wanted = grammar_request(parsing, structured)
    client = wanted.structured_outputs
    adjusted = parser.adjust_request(wanted)
    prompt, prior = list(spec.prompt_token_ids), spec.resume.prior_token_ids if spec.resume else ()
    reasoner = parser.reasoning_parser
    ended = adjusted.resolve_reasoning_ended(parser, prompt)
    if ended is False and prior and (place := _reasoning_end(reasoner, prompt, prior)) is not None:
        ended, constrained = True, prior[place:]
    else:
        constrained = () if ended is False else prior
    return ParsedSequence(
        VllmOutputParser(
            parser,
            request,
            prompt,
            _token_texts(parsers, spec, skip_special_tokens=adjusted.skip_special_tokens),
            short_call_ids=parsers.short_call_ids,
            passing=passing_of(parser, request),
        ),
        constraint=constraint_of(parsers, parsing, adjusted, client),
        skip_special_tokens=adjusted.skip_special_tokens,
        reasoning_ended=ended,
        reasoning_kwargs={"chat_template_kwargs": kwargs} if reasoner is not None else None,
        constrained_prior=constrained,
    )


def _token_texts(parsers: Parsers, spec: GenerationSpec, *, skip_special_tokens: bool) -> TokenTexts:
    def begin() -> Callable[[int], str]:
        from vllm.sampling_params import SamplingParams

        params = SamplingParams(skip_special_tokens=skip_special_tokens)
        ids = list(spec.prompt_token_ids)
        wanted: Any = SimpleNamespace(request_id="", sampling_params=params, prompt_token_ids=ids, prompt_embeds=None)
        detokenizer = detokenizer_of(parsers.tokenizer, wanted)

        def decode(token: int) -> str:
            detokenizer.update([token], False)
            return str(detokenizer.get_next_output_text(False, True))

        return decode

    # A stop string holds text back that may be its beginning.
    return TokenTexts(begin, lags=bool(spec.sampling.stop))


def _reasoning_end(reasoner: Any, prompt: list[int], prior: Sequence[int]) -> int | None:
    """Return the place in `prior` from which a constraint holds, as the engine finds it; None inside the reasoning."""
    from vllm.parser.engine.adapters import ParserEngineReasoningAdapter

    if isinstance(reasoner, ParserEngineReasoningAdapter) and reasoner.reasoning_end_token_ids:
        if (end := reasoner.find_reasoning_end(prior)) is None or end.offset == len(prior):
            return None
        return int(end.offset) + (not end.implicit)
    ids = list(prompt)
    for place, token in enumerate(prior, start=1):
        ids.append(token)
        if reasoner.is_reasoning_end_streaming(ids, [token]):
            return place
    return None
