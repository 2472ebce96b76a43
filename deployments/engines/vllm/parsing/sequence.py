"""What parsing adds to one sequence: its parser, and changes of its sampling parameters."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Any

from cluster.errors import EngineRequestError
from cluster.models import GenerationSpec
from deployments.engines.vllm.parsing.loader import Parsers
from deployments.engines.vllm.parsing.output import VllmOutputParser
from deployments.engines.vllm.parsing.request import chat_request, grammar_request, template_kwargs
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

    def adjust(self, params: Any) -> Any:
        """Return vLLM's sampling parameters with the changes."""
        params = copy(params)
        params.structured_outputs = self.constraint
        params.skip_special_tokens = self.skip_special_tokens
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


def _sequence(parsers: Parsers, kind: Any, parsing: OutputParsing, spec: GenerationSpec) -> ParsedSequence:
    structured = spec.sampling.structured
    request = chat_request(parsing, structured)
    kwargs = template_kwargs(parsing)
    parser = kind(parsers.tokenizer, request.tools, chat_template_kwargs=kwargs, model_config=parsers.config)
    adjusted = parser.adjust_request(grammar_request(parsing, structured))
    reasons = parser.reasoning_parser is not None
    return ParsedSequence(
        VllmOutputParser(parser, request, spec.prompt_token_ids, short_call_ids=parsers.short_call_ids),
        constraint=adjusted.structured_outputs,
        skip_special_tokens=adjusted.skip_special_tokens,
        reasoning_ended=adjusted.resolve_reasoning_ended(parser, list(spec.prompt_token_ids)),
        reasoning_kwargs={"chat_template_kwargs": kwargs} if reasons else None,
    )
