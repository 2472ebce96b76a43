"""The parsers that a pool's settings name."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from cluster.errors import EngineStartError
from cluster.settings import VllmSettings
from deployments.engines.vllm.compilers.check import Compiler, special_tokens
from deployments.engines.vllm.compilers.lark import SpecialTokens


@dataclass(frozen=True, slots=True)
class Parsers:
    """Classes of vLLM parsers of one engine. A class makes one parser for each sequence."""

    with_tools: Any
    """For requests with tools; None without a tool parser."""
    without_tools: Any
    """For other requests, whose calls are plain text; None without a reasoning parser."""
    tokenizer: Any
    config: Any
    """vLLM's ModelConfig."""
    name: str
    """Name of the tool parser, for errors."""
    compiler: Compiler
    """Compiler of the engine's constraints."""
    any_whitespace: bool
    """Whether JSON may have any white space between its parts."""
    special_tokens: SpecialTokens
    """Special tokens, as llguidance has them; none for another compiler."""
    short_call_ids: bool
    """Whether the model's chat template takes only ids of nine letters and digits for tool calls."""


def check_names(settings: VllmSettings) -> None:
    """Check that vLLM has the parsers that are set.

    Raises:
        EngineStartError: it does not; the error lists the names that it knows.
    """
    if settings.tool_call_parser is not None:
        from vllm.tool_parsers import ToolParserManager

        _check("tool_call_parser", settings.tool_call_parser, ToolParserManager.list_registered())
    if settings.reasoning_parser is not None:
        from vllm.reasoning import ReasoningParserManager

        _check("reasoning_parser", settings.reasoning_parser, ReasoningParserManager.list_registered())


def load(settings: VllmSettings, config: Any) -> Parsers | None:
    """Load the parsers that are set; None where there are none.

    Args:
        settings: the pool's.
        config: vLLM's ModelConfig.

    Raises:
        EngineStartError: a parser does not work with the model's tokenizer.
    """
    tool, reasoning = settings.tool_call_parser, settings.reasoning_parser
    if tool is None and reasoning is None:
        return None
    from vllm.tokenizers import cached_tokenizer_from_config

    tokenizer = cached_tokenizer_from_config(config)
    return Parsers(
        with_tools=None if tool is None else _class(tool, reasoning, config, tokenizer),
        without_tools=None if reasoning is None else _class(None, reasoning, config, tokenizer),
        tokenizer=tokenizer,
        config=config,
        name=f"tool_call_parser {tool!r}",
        compiler=settings.structured_output.compiler,
        any_whitespace=settings.structured_output.any_whitespace,
        special_tokens=special_tokens(settings.structured_output.compiler, tokenizer),
        short_call_ids=tool == "mistral",
    )


def _class(tool: str | None, reasoning: str | None, config: Any, tokenizer: Any) -> Any:
    from vllm.parser import ParserManager

    try:
        return ParserManager.get_parser(
            tool_parser_name=tool,
            reasoning_parser_name=reasoning,
            enable_auto_tools=tool is not None,
            model_name=config.model,
            is_harmony=config.hf_config.model_type == "gpt_oss",
            tokenizer=tokenizer,
        )
    except Exception as error:
        # Parsers raise exceptions of many kinds for tokens that a tokenizer lacks.
        names = " and ".join(
            f"vllm.{setting} {name!r}"
            for setting, name in (("tool_call_parser", tool), ("reasoning_parser", reasoning))
            if name is not None
        )
        cause = error.__cause__ or error
        raise EngineStartError(f"{names}: not for this model: {' '.join(str(cause).split())}", final=True) from error


def _check(setting: str, name: str, known: list[str]) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"; is it {near[0]!r}?" if near else ""
    raise EngineStartError(
        f"vllm.{setting}: this vLLM has no such parser, {name!r}{guess} It knows: {', '.join(sorted(known))}",
        final=True,
    )
