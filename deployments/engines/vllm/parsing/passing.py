"""Output that vLLM's parsers are known to hand on as it is, so that they need not see each token of it.

Inside of text or reasoning nothing changes until a marker may begin. The parser gets what was passed by in one piece,
before the next output that it must see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from deployments.engines.vllm.parsing.hermes import HermesPlace


@dataclass(frozen=True, slots=True)
class Passing:
    """What the parser of one sequence hands on as it is. None where that is not known."""

    text: frozenset[str] | None = None
    """Characters with which a marker in text may begin."""
    reasoning: frozenset[str] | None = None
    """The same in reasoning."""
    special: frozenset[int] = frozenset()
    """Tokens that mean something in reasoning, whatever their text."""
    place: Callable[[Any], HermesPlace | None] | None = None
    """Function that looks for a place in text or calls from which what the parser says is known."""


NOTHING = Passing()


_DELEGATING = (
    "parse_delta", "extract_reasoning_streaming", "_is_reasoning_end_streaming", "extract_tool_calls_streaming",
    "_extract_tool_calls_streaming",
)  # fmt: skip
_ENGINE = ("_feed", "_preprocess_feed", "_events_to_delta", "extract_reasoning_streaming")
"""Methods of vLLM's base classes that must be as they are there."""


def passing_of(parser: Any, request: Any) -> Passing:
    """Return what is known of one of vLLM's parsers.

    - `DelegatingParser` gives reasoning and text to two parsers, one after the other.
    - Without a tool parser, and where the request wants no calls, what follows the reasoning is text.
    - Of Hermes' parser `HermesPlace` knows most.
    - DeepSeek R1's reasoning is all text up to the token that ends it.
    - `StreamingParserEngine.feed` itself hands on text without the first character of any marker and without special
      tokens, and `ParserEngine` adds nothing to reasoning unless it strips its end.
    """
    from vllm.parser.abstract_parser import DelegatingParser
    from vllm.parser.engine.adapters import ParserEngineReasoningAdapter
    from vllm.parser.engine.parser_engine import ParserEngine
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    if not _inherits(type(parser), DelegatingParser, _DELEGATING):
        return NOTHING
    tool, reasoner = parser.tool_parser, parser.reasoning_parser
    text = frozenset[str]() if tool is None else None
    place = None
    if type(tool) is Hermes2ProToolParser:
        if request.tool_choice == "none":
            text = frozenset()
        elif request.tool_choice == "auto" or not tool.supports_required_and_named:
            place = HermesPlace.after
    if (tokens := _deepseek_tokens(reasoner)) is not None:
        return Passing(text, frozenset(), tokens, place)
    engine = getattr(reasoner, "_parser_engine", None)
    if not isinstance(reasoner, ParserEngineReasoningAdapter) or not isinstance(engine, ParserEngine):
        return Passing(text, place=place)
    if (
        not _inherits(type(engine), ParserEngine, _ENGINE)
        or engine.parser_engine_config.strip_trailing_reasoning_whitespace
    ):
        return Passing(text, place=place)
    lexing = engine._engine
    return Passing(text, frozenset(lexing._lexer._literal_first_chars), frozenset(lexing._resolved_token_ids), place)


def _deepseek_tokens(reasoner: Any) -> frozenset[int] | None:
    """Return the tokens around DeepSeek R1's reasoning; None for other parsers."""
    from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser
    from vllm.reasoning.deepseek_v3_reasoning_parser import DeepSeekV3ReasoningParser

    if type(reasoner) is DeepSeekV3ReasoningParser:
        reasoner = reasoner._parser
    if type(reasoner) is not DeepSeekR1ReasoningParser:
        return None
    return frozenset((reasoner.start_token_id, reasoner.end_token_id))


def _inherits(kind: type, base: type, names: Sequence[str]) -> bool:
    return all(getattr(kind, name) is getattr(base, name) for name in names)
