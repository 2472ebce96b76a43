"""The demo model's tokenizer with a chat template that shows tools, for simulated engines."""

from __future__ import annotations

import shutil
from pathlib import Path

from deployments.engines.factory import resolve_model

TEMPLATE = (
    "{{ bos_token }}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' }}{{ message['content'] or '' }}{{ message['reasoning_content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}{{ call | tojson }}{% endfor %}"
    "{{ message['tool_call_id'] or '' }}{{ eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tools_model(folder: Path) -> Path:
    """Write the files into a folder and return it."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(resolve_model("demo") / name, folder / name)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder
