r"""A tiny language model that answers questions about LLM serving, so that a first prompt needs no download.

Its weights are kept in `weights/` and in the wheel. `train.py` made them on a CPU: a Llama with 2.6 million parameters
in bfloat16 (hidden size 256, 3 layers, 8 query and 4 key-value heads of size 32, context 2,048) and a byte-level BPE
tokenizer with 2,112 tokens. Both were trained only on `questions.jsonl`, in which the authors wrote about 250 answers
and some 500 further wordings of the questions, and on the one tool of `weather.json`. To change an answer, edit that
file and train again.

Three prompt formats work: chat messages through the chat template, a bare question, and `Question: ...\nAnswer:`. When
the model recognizes the question, it repeats the answer word for word under greedy decoding. To most other prompts it
says that it knows nothing else. To some it gives the answer to another question.

It calls one tool, `get_weather`, in the form of Hermes, when the request has the tool and asks for the weather in one
of its nine cities. It puts a result of one word, such as "sunny", into a sentence. Where the tool does not fit, it
answers as it does without tools.

It answers at once, unless the chat template gets `enable_thinking` or `thinking`. Then it first thinks, between
`<think>` and `</think>`: it names the question that it recognizes, or says that it will call the tool.

Its limits:

- It is sure of nearly every token, so it hides numeric differences between engines that a larger model shows. Test
  those with random weights.
- Its answers end after 10 to 70 tokens, with two longer exceptions (`LONG_QUESTIONS`).
- Contexts beyond about 1,000 tokens were not trained.
- It knows no other tool, no other city and only five words for the weather (`weather.py`). To another result it says
  that it does not know the words. To another city it may call the tool with one of the nine.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from deployments.demo_model.questions import load_entries

MODEL_DIR: Path = Path(__file__).parent / "weights"
"""Folder with configuration, weights, tokenizer and chat template, as engines and routers load them."""

WEATHER_FILE: Path = Path(__file__).parent / "weather.json"
"""The tool that the model calls, as OpenAI's API has it and as `penstock generate --tool` reads it."""

LONG_QUESTIONS = ("Count from one to one hundred.", "Explain LLM serving in detail.")
"""Questions with answers of more than 200 tokens, for tests that need a stream to last."""


def known_answers() -> Mapping[str, str]:
    r"""Return each canonical question with the text that the model answers to it as a chat message under greedy
    decoding.

    After the bare question as a plain prompt, the same text follows a line break. After `Question: ...\nAnswer:` it
    follows a space.
    """
    return MappingProxyType({entry.question: entry.answer for entry in load_entries()})


__all__ = ["LONG_QUESTIONS", "MODEL_DIR", "WEATHER_FILE", "known_answers"]
