"""Outputs of model families, with the parsers that read them, and a tokenizer that has all their special tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

# ruff: noqa: RUF001 - DeepSeek has such bars in its tokens

SPECIAL = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]",
    "[THINK]", "[/THINK]", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>", "<tool_calls>", "</tool_calls>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>", "<minimax:tool_call>",
    "</minimax:tool_call>", "<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>",
    "<tool_response>", "</tool_response>", "<|tool_call|>",
)  # fmt: skip
WEATHER = '{"city": "Paris, \\"le\\" <b>", "days": 3}'
THOUGHT = "The user wants the weather.\nI call a tool, if 1 < 2."


@dataclass(frozen=True)
class Family:
    """One output of a family, and what is in it."""

    name: str
    output: str
    tool: str | None = None
    reasoning: str | None = None
    thought: str = ""
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Name and arguments of each call."""


_TWO = (("get_weather", WEATHER), ("get_time", '{"zone": "UTC"}'))
_HERMES = "".join(f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>' for name, text in _TWO)
_XML = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>"
)
_DEEPSEEK = (
    "<｜tool▁calls▁begin｜>"
    + "".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{text}\n```<｜tool▁call▁end｜>"
        for name, text in _TWO
    )
    + "<｜tool▁calls▁end｜>"
)
_DEEPSEEK_31 = (
    "<｜tool▁calls▁begin｜>"
    + "".join(f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{text}<｜tool▁call▁end｜>" for name, text in _TWO)
    + "<｜tool▁calls▁end｜>"
)
_KIMI = (
    "<|tool_calls_section_begin|>"
    + "".join(
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{text}<|tool_call_end|>"
        for number, (name, text) in enumerate(_TWO)
    )
    + "<|tool_calls_section_end|>"
)

FAMILIES = (
    Family("hermes", f"Let me look, 1 < 2.{_HERMES}", "hermes", text="Let me look, 1 < 2.", calls=_TWO),
    Family("hermes-text", "Nothing to call: a < b <tool.", "hermes", text="Nothing to call: a < b <tool."),
    Family("hermes-qwen3", f"<think>\n{THOUGHT}\n</think>\n\nHere.{_HERMES}", "hermes", "qwen3",
           thought=f"\n{THOUGHT}\n", text="\n\nHere.", calls=_TWO),
    Family("qwen3-only", f"<think>{THOUGHT}</think>Done, a < b.", None, "qwen3", thought=THOUGHT, text="Done, a < b."),
    Family("qwen3_coder", f"Look.\n{_XML}", "qwen3_coder", text="Look.\n",
           calls=(("get_weather", '{"city": "Paris", "days": 3}'),)),
    Family("qwen3_coder-qwen3", f"<think>{THOUGHT}</think>\n{_XML}", "qwen3_coder", "qwen3", thought=THOUGHT,
           calls=(("get_weather", '{"city": "Paris", "days": 3}'),)),
    Family("deepseek_r1", f"<think>{THOUGHT}</think>The answer.", None, "deepseek_r1", thought=THOUGHT,
           text="The answer."),
    Family("hermes-deepseek_r1", f"<think>{THOUGHT}</think>Look.{_HERMES}", "hermes", "deepseek_r1", thought=THOUGHT,
           text="Look.", calls=_TWO),
    Family("deepseek_v3", f"Look.{_DEEPSEEK}", "deepseek_v3", text="Look.", calls=_TWO),
    Family("deepseek_v31", f"Look.{_DEEPSEEK_31}", "deepseek_v31", text="Look.", calls=_TWO),
    Family("llama3_json", f'<|python_tag|>{{"name": "get_weather", "parameters": {WEATHER}}}', "llama3_json",
           calls=_TWO[:1]),
    Family("llama3_json-text", "Only text, nothing else.", "llama3_json", text="Only text, nothing else."),
    Family("mistral", f'[TOOL_CALLS]get_weather[ARGS]{WEATHER}', "mistral", calls=_TWO[:1]),
    Family("kimi_k2", f"Look.{_KIMI}", "kimi_k2", text="Look.", calls=_TWO),
    Family("glm45", "Look.\n<tool_call>get_time\n<arg_key>zone</arg_key>\n<arg_value>UTC</arg_value>\n</tool_call>",
           "glm45", text="Look.\n", calls=(("get_time", '{"zone": "UTC"}'),)),
    Family("pythonic", '[get_weather(city="Paris", days=3), get_time(zone="UTC")]', "pythonic",
           calls=(("get_weather", '{"city": "Paris", "days": 3}'), _TWO[1])),
    Family("granite", '<|tool_call|>[{"name": "get_time", "arguments": {"zone": "UTC"}}]', "granite",
           calls=_TWO[1:]),
    Family("minimax_m2", '<minimax:tool_call>\n<invoke name="get_time">\n<parameter name="zone">UTC</parameter>\n'
           "</invoke>\n</minimax:tool_call>", "minimax_m2", calls=_TWO[1:]),
    Family("seed_oss", "<seed:think>So.</seed:think>\n<seed:tool_call>\n<function=get_time>\n<parameter=zone>UTC"
           "</parameter>\n</function>\n</seed:tool_call>", "seed_oss", "seed_oss", thought="So.",
           calls=_TWO[1:]),
)  # fmt: skip


def make_tokenizer(folder: Path) -> Any:
    """Return vLLM's form of the demo model's tokenizer with every family's special tokens."""
    from transformers import AutoTokenizer
    from vllm.tokenizers import get_tokenizer

    from deployments.engines.factory import resolve_model

    tokenizer = AutoTokenizer.from_pretrained(resolve_model("demo"))
    tokenizer.add_tokens(list(SPECIAL), special_tokens=True)
    tokenizer.save_pretrained(folder)
    return get_tokenizer(folder)
