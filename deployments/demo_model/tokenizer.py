"""The tokenizer of the demo model: byte-level BPE, special tokens, tags and one chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BEGIN = "<|begin|>"
END = "<|end|>"
PAD = "<|pad|>"
SYSTEM = "<|system|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
SPECIAL_TOKENS = (BEGIN, END, PAD, SYSTEM, USER, ASSISTANT)
"""Special tokens. The id of each one is its position here."""

THINK = "<think>"
END_THINK = "</think>"
CALL = "<tool_call>"
END_CALL = "</tool_call>"
TAGS = (THINK, END_THINK, CALL, END_CALL)
"""Tokens around reasoning and calls of tools. They follow the special tokens. They are part of the text, for parsers
look for them there.
"""

VOCAB_SIZE = 2112
MAX_POSITIONS = 2048

# No line breaks between turns: clients pay for every token of the template, and the model needs none of these. Tools,
# calls and their results are in the form of Hermes.
# All amounts of reasoning but none are the same to the model.
CHAT_TEMPLATE = (
    "{% set efforts = ['none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'] %}"
    "{% if reasoning_effort and reasoning_effort not in efforts %}"
    "{{ raise_exception('reasoning_effort is one of ' + efforts | join(', ') + ', not ' + reasoning_effort) }}"
    "{% endif %}"
    "{{ bos_token }}"
    "{% if tools %}"
    "{{ '<|system|>' }}"
    "{% if messages[0]['role'] == 'system' %}{{ (messages[0]['content'] | trim) + ' ' }}{% endif %}"
    "{{ '<tools>' + (tools | map(attribute='function') | list | tojson) + '</tools>' + eos_token }}"
    "{% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('roles are system, user, assistant and tool, not ' + message['role']) }}"
    "{% endif %}"
    "{% if message['role'] == 'tool' %}"
    "{{ '<|user|><tool_response>' + (message['content'] | trim) + '</tool_response>' + eos_token }}"
    "{% elif not (tools and loop.first and message['role'] == 'system') %}"
    "{{ '<|' + message['role'] + '|>' + ((message['content'] or '') | trim) }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '<tool_call>{\"name\": ' + (call['function']['name'] | tojson) + ', \"arguments\": ' }}"
    "{{ call['function']['arguments'] | tojson(separators=(',', ':')) }}"
    "{{ '}</tool_call>' }}"
    "{% endfor %}"
    "{{ eos_token }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}"
    "{% if enable_thinking or thinking %}{{ '<think>' }}{% endif %}"
    "{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> Tokenizer:
    """Train the tokenizer. Plain prompts get the begin token; text with `add_special_tokens=False` does not."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIAL_TOKENS, *TAGS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # The trainer makes them special, and would drop them from decoded text.
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{BEGIN} $A",
                pair=f"{BEGIN} $A {BEGIN} $B",
                special_tokens=[(BEGIN, SPECIAL_TOKENS.index(BEGIN))],
            ),
        ]
    )
    return Tokenizer.from_str(tokenizer.to_str())


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` into an existing folder."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": MAX_POSITIONS,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
