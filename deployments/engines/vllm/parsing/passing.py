"""Output that vLLM's parsers are known to hand on as it is, so that they need not see each token of it.

Inside of text or reasoning nothing changes until a marker may begin. The parser gets what was passed by in one piece,
before the next output that it must see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Passing:
    """What the parser of one sequence hands on as it is. None where that is not known."""

    text: frozenset[str] | None = None
    """Characters with which a marker in text may begin."""
    reasoning: frozenset[str] | None = None
    """The same in reasoning."""
    special: frozenset[int] = frozenset()
    """Tokens that mean something in reasoning, whatever their text."""


NOTHING = Passing()


def passing_of(parser: Any) -> Passing:
    """Return what is known of one of vLLM's parsers.

    - `DelegatingParser` gives reasoning and text to two parsers, one after the other.
    - Hermes' parser sends text up to the first "<tool_call>", without an end that may be the beginning of it. It looks
      at the text alone.
    - `StreamingParserEngine.feed` itself hands on text without the first character of any marker and without special
      tokens, and `ParserEngine` adds nothing to reasoning unless it strips its end.
    """
    from vllm.parser.abstract_parser import DelegatingParser
    from vllm.parser.engine.adapters import ParserEngineReasoningAdapter
    from vllm.parser.engine.parser_engine import ParserEngine
    from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser

    if type(parser).parse_delta is not DelegatingParser.parse_delta:
        return NOTHING
    tool, reasoner = parser.tool_parser, parser.reasoning_parser
    text = frozenset("<") if type(tool) is Hermes2ProToolParser else frozenset() if tool is None else None
    engine = getattr(reasoner, "_parser_engine", None)
    if not isinstance(reasoner, ParserEngineReasoningAdapter) or not isinstance(engine, ParserEngine):
        return Passing(text)
    kind, own = type(engine), engine._engine
    overridden = any(
        getattr(kind, name) is not getattr(ParserEngine, name)
        for name in ("_feed", "_preprocess_feed", "_events_to_delta", "extract_reasoning_streaming")
    )
    if overridden or engine.parser_engine_config.strip_trailing_reasoning_whitespace:
        return Passing(text)
    return Passing(text, frozenset(own._lexer._literal_first_chars), frozenset(own._resolved_token_ids))
