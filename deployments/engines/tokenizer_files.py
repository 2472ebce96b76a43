"""The tokenizer files that a replica gives to routers.

They have one form for all models: tokenizer.json, tokenizer_config.json with the special tokens, and
chat_template.jinja where there is a template. A template of its own for conversations with tools is in the
configuration, beside the default one. Model repositories keep the same things in many places, and the engine's
tokenizer may be none of their files: `transformers` adds tokens, and builds some tokenizers anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from cluster.digests import CONFIG_FILE, TEMPLATE_FILE, TOKENIZER_FILE
from cluster.errors import EngineStartError

_SAMPLES = (
    "",
    "Hello, world! It's 2024; don't.",
    "def f(x):\n\treturn x**2  # 1234567890\n\n\n    pass",
    "  spaces at both ends  \r\n",
    "naïve café \u2013 “quotes” … €5 e\u0301 ﬁ ①",
    "漢字かな交じり文 한국어 русский العربية हिन्दी ไทย",
    "👩‍👩‍👧‍👦🇩🇪 \ufeff\u200d\u00a0\u3000",
    '<html>&amp;</html> {"a": [1, 2.5e-3]} CamelCase ALLCAPS snake_case ▁Ġ',
)
"""Texts of which the files must make the same ids as the engine's tokenizer."""


@dataclass(frozen=True, slots=True)
class Templates:
    """Chat templates of a model."""

    plain: str | None = None
    tool_use: str | None = None
    """Template of conversations with tools; None for the same one."""


_NO_TEMPLATES = Templates()


def of_tokenizer(tokenizer: Any, templates: Templates = _NO_TEMPLATES, *, name: str) -> dict[str, bytes]:
    """Write down a tokenizer of `transformers`, and try the result.

    Args:
        tokenizer: the engine's own.
        templates: the chat templates that the engine's server would use.
        name: the model's name or folder, for errors.

    Raises:
        EngineStartError: it can't be written as a tokenizer.json that makes the same ids.
    """
    kind = type(tokenizer).__name__
    try:
        encoder = _plain(_encoder(tokenizer))
        content = encoder.to_str()
    except Exception as error:
        # The libraries behind it raise exceptions of many kinds.
        raise EngineStartError(
            f"the tokenizer of {name} ({kind}) can't be written as {TOKENIZER_FILE}, which routers need: {error}"
        ) from error
    config: dict[str, Any] = dict(getattr(tokenizer, "special_tokens_map", {}))
    if getattr(tokenizer, "split_special_tokens", False):
        encoder.encode_special_tokens = config["split_special_tokens"] = True
    specials = [f"a {token} b{token}" for token in config.values() if isinstance(token, str)]
    check(encoder, tokenizer, [*_SAMPLES, *specials], name=name)
    return _files(content.encode(), config, templates)


def check(encoder: Tokenizer, tokenizer: Any, texts: Sequence[str] = _SAMPLES, *, name: str) -> None:
    """Compare the ids of texts, with and without the special tokens that the tokenizer adds to text.

    Raises:
        EngineStartError: they are not the same.
    """
    for text in texts:
        for special in (False, True):
            wanted = list(tokenizer.encode(text, add_special_tokens=special))
            found = encoder.encode(text, add_special_tokens=special).ids
            if found != wanted:
                raise EngineStartError(
                    f"the tokenizer of {name} ({type(tokenizer).__name__}) is not the same as {TOKENIZER_FILE}, which "
                    f"routers need: for {text!r} it makes the ids {wanted[:20]}, and not {found[:20]}"
                )


def of_folder(folder: Path) -> dict[str, bytes]:
    """Read a model's folder as `transformers` does, without it where tokenizer.json has all tokens. Then a tokenizer
    that `transformers` would build anew is taken as it is.

    Raises:
        EngineStartError: the folder has no tokenizer, or one that can't be read.
    """
    try:
        config = _object(folder / CONFIG_FILE)
        if "added_tokens_decoder" not in config:
            config |= _object(folder / "special_tokens_map.json")
        templates = _templates(folder, config)
        if not (folder / TOKENIZER_FILE).is_file() or _lacks_tokens(folder, config):
            return _loaded(folder, templates)
        content = _readable(folder / TOKENIZER_FILE)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise EngineStartError(f"the tokenizer in {folder} can't be read: {error}") from error
    config.pop("chat_template", None)
    return _files(content, config, templates)


def with_entry(files: Mapping[str, bytes], name: str, value: str) -> dict[str, bytes]:
    """Return tokenizer files with another entry in the configuration."""
    config = {**json.loads(files[CONFIG_FILE]), name: value}
    return {**files, CONFIG_FILE: _written(config)}


def _files(content: bytes, config: Mapping[str, Any], templates: Templates) -> dict[str, bytes]:
    plain, tool_use = templates.plain, templates.tool_use
    beside: dict[str, bytes] = {}
    if plain and tool_use and tool_use != plain:
        named = {"default": plain, "tool_use": tool_use}
        config = {**config, "chat_template": [{"name": name, "template": each} for name, each in named.items()]}
    elif plain:
        beside = {TEMPLATE_FILE: plain.encode()}
    return {TOKENIZER_FILE: content, CONFIG_FILE: _written(config), **beside}


def _written(config: Mapping[str, Any]) -> bytes:
    return json.dumps(config, ensure_ascii=False, sort_keys=True).encode()


def _readable(file: Path) -> bytes:
    content = file.read_bytes()
    try:
        Tokenizer.from_buffer(content)
    except Exception as error:
        # The library raises this class itself.
        raise ValueError(f"{file.name}: {error}") from error
    return content


def _plain(encoder: Tokenizer) -> Tokenizer:
    """Return a copy that neither truncates nor pads. The library keeps these two from the last call."""
    copy = Tokenizer.from_str(encoder.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _encoder(tokenizer: Any) -> Tokenizer:
    own = getattr(tokenizer, "_tokenizer", None)
    if isinstance(own, Tokenizer):
        return own
    from transformers.convert_slow_tokenizer import SLOW_TO_FAST_CONVERTERS, TikTokenConverter, convert_slow_tokenizer

    # Remote code on top of tiktoken has a pattern of its own.
    pattern = getattr(tokenizer, "pat_str", None)
    if pattern is None or type(tokenizer).__name__ in SLOW_TO_FAST_CONVERTERS:
        converted: Tokenizer = convert_slow_tokenizer(tokenizer)
    else:
        added = tokenizer.get_added_vocab()
        specials = sorted(added, key=added.__getitem__)
        converted = TikTokenConverter(tokenizer.vocab_file, pattern, extra_special_tokens=specials).converted()
    return converted


def _loaded(folder: Path, templates: Templates) -> dict[str, bytes]:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise EngineStartError(f"{folder} needs `transformers` to make {TOKENIZER_FILE} of its tokenizer") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise EngineStartError(f"there is no tokenizer in {folder}: {error}") from error
    return of_tokenizer(tokenizer, templates, name=str(folder))


def _lacks_tokens(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether another file has tokens that tokenizer.json lacks."""
    if "added_tokens_decoder" in config:
        added = [token["content"] for token in config["added_tokens_decoder"].values()]
    else:
        added = list(_object(folder / "added_tokens.json"))
    if not added:
        return False
    encoder = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    return any(encoder.token_to_id(token) is None for token in added)


def _templates(folder: Path, config: Mapping[str, Any]) -> Templates:
    """Return the chat templates, from the first place that has any."""
    named = _named_templates(folder, config)
    plain, tool_use = named.get("default"), named.get("tool_use")
    # Processors of models with images keep it here. vLLM asks the processor first, but not where there are tools.
    legacy = _object(folder / "chat_template.json").get("chat_template")
    if legacy and not (folder / "additional_chat_templates").is_dir():
        return Templates(str(legacy), tool_use or plain)
    return Templates(plain, tool_use)


def _named_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    files = {file.stem: file for file in (folder / "additional_chat_templates").glob("*.jinja")}
    if (folder / TEMPLATE_FILE).is_file():
        files.setdefault("default", folder / TEMPLATE_FILE)
    if files:
        return {name: file.read_text(encoding="utf-8") for name, file in files.items()}
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {each["name"]: each["template"] for each in template}
    named = template if isinstance(template, dict) else {"default": template}
    return {name: str(each) for name, each in named.items() if each}


def _object(file: Path) -> dict[str, Any]:
    """Return a JSON object; an empty one where there is no file."""
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise TypeError(f"{file.name} is not a JSON object")
    return content
